use super::*;

const GIB: u64 = 1 << 30;

/// A device of 24 GiB of which this much is live, cached, of contexts and of others, and a request.
fn shortage(requested: u64, [live, cached, context, others]: [u64; 4]) -> Shortage {
    let own = live + cached + context;
    let parts = Parts::of(Reading {
        total: 24 * GIB,
        free: 24 * GIB - own - others,
        live,
        reserved: live + cached,
        process: Some(own),
        others: Some(others),
        context: 0,
    });
    Shortage {
        requested,
        result: 2,
        parts: Some(parts),
        largest_cached: cached / 4,
        ..Shortage::default()
    }
}

#[test]
fn the_largest_cause_without_which_the_request_fits_is_the_verdict() {
    let of = |requested, held| shortage(requested, held).verdict();
    assert_eq!(of(40 * GIB, [GIB, 0, 0, 0]), Verdict::LargerThanDevice);
    assert_eq!(of(2 * GIB, [23 * GIB, 0, 0, 0]), Verdict::LiveSet);
    assert_eq!(of(2 * GIB, [18 * GIB, 5 * GIB, GIB, 0]), Verdict::Unusable);
    assert_eq!(of(2 * GIB, [3 * GIB, 2 * GIB, GIB, 18 * GIB]), Verdict::OtherProcesses);
    assert_eq!(of(2 * GIB, [10 * GIB, 8 * GIB, GIB, 4 * GIB]), Verdict::Unusable);
    assert_eq!(of(12 * GIB, [12 * GIB, 2 * GIB, GIB, 9 * GIB]), Verdict::LiveSet);
    assert_eq!(of(GIB, [10 * GIB, 0, 0, 0]), Verdict::Unusable, "14 GiB are free");
    let leak = Shortage {
        grown: 20 * GIB,
        ..shortage(2 * GIB, [22 * GIB, 0, GIB, 0])
    };
    assert_eq!(leak.verdict(), Verdict::Growth);
    let broken = Shortage {
        result: 999,
        ..shortage(GIB, [0; 4])
    };
    assert_eq!(broken.verdict(), Verdict::Driver);
    assert!(broken.explanation().starts_with("a failure of the driver or the host"));
    let blind = Shortage {
        parts: None,
        lost_before: 3,
        ..shortage(GIB, [22 * GIB, 0, GIB, 0])
    };
    assert_eq!(blind.verdict(), Verdict::NotEnoughEvidence);
    assert!(
        blind.explanation().contains("3 events were lost"),
        "{}",
        blind.explanation()
    );
    let faulted = Shortage { result: 719, ..broken };
    assert_eq!(faulted.verdict(), Verdict::Driver);
    assert!(faulted.explanation().starts_with("a fault of earlier work"));
    let blind = Shortage {
        parts: None,
        ..shortage(GIB, [0; 4])
    };
    assert_eq!(blind.verdict(), Verdict::NotEnoughEvidence);
}

/// A limit of 8 GiB refused a request.
fn refused(requested: u64, used: u64, own: u64, group: bool) -> Shortage {
    let allowance = Allowance {
        limit: 8 * GIB,
        used,
        own,
        group,
    };
    Shortage {
        by_limit: true,
        allowance: Some(allowance),
        ..shortage(requested, [own, 0, 0, 0])
    }
}

#[test]
fn the_verdict_names_whose_limit_refused() {
    assert_eq!(refused(2 * GIB, 7 * GIB, 7 * GIB, false).verdict(), Verdict::Limit);
    // Whether other members hold the memory or this one alone.
    for (requested, own) in [(2 * GIB, GIB), (8 * GIB, GIB), (2 * GIB, 7 * GIB)] {
        assert_eq!(refused(requested, 7 * GIB, own, true).verdict(), Verdict::GroupLimit);
    }
    let text = refused(2 * GIB, 7 * GIB, 7 * GIB, false).explanation();
    assert_eq!(
        text,
        "the limit: 1.00 GiB of 8.00 GiB are left. With 1.00 GiB more this fits"
    );
    let alone = refused(2 * GIB, 7 * GIB, 7 * GIB, true).explanation();
    assert!(
        alone.contains("are left, and no other member of the group holds any. With 1.00 GiB more"),
        "{alone}"
    );
}

#[test]
fn figures_of_a_moment_after_the_refusal_are_not_said_to_be_its_reason() {
    let text = refused(2 * GIB, 3 * GIB, GIB, true).explanation();
    assert!(
        text.contains("5.00 GiB of 8.00 GiB are left")
            && text.contains("how much was missing at the refusal is not known"),
        "{text}"
    );
    assert!(!text.contains("this fits"), "{text}");
}

#[test]
fn cached_bytes_alone_suffice_only_if_they_are_as_many_as_were_asked_for() {
    // 2 GiB are free on the device and 3 GiB in the cache, and 4 GiB are asked for.
    let pieces = shortage(4 * GIB, [18 * GIB, 3 * GIB, GIB, 0]);
    let one = Shortage {
        largest_cached: 3 * GIB,
        ..pieces
    };
    for text in [pieces, one].map(|short| short.explanation()) {
        assert!(
            text.contains("iven back, they suffice together with the 2.00 GiB that the device has free"),
            "{text}"
        );
        assert!(!text.contains("In one piece"), "{text}");
    }
}

#[test]
fn the_printed_parts_sum_to_the_device() {
    let short = shortage(2 * GIB, [GIB * 10 / 3, GIB * 7 / 3, GIB / 3, GIB * 50 / 3]);
    assert_eq!(
        short.equation().unwrap(),
        "Device 24.00 = this process 6.00 (live 3.33 + cached 2.34 + context 0.33) + others 16.67 + free 1.33 (GiB)"
    );
}

#[test]
fn every_byte_is_in_one_part() {
    let readings = [
        [24, 2, 18, 20, 21, 1],
        [24, 0, 18, 18, 17, 9],
        [24, 30, 18, 18, 17, 9],
        [0, 0, 5, 5, 5, 5],
    ];
    for [total, free, live, reserved, process, others] in readings.map(|reading| reading.map(|gib| gib * GIB)) {
        for (process, others) in [(Some(process), Some(others)), (None, None)] {
            let parts = Parts::of(Reading {
                total,
                free,
                live,
                reserved,
                process,
                others,
                context: GIB,
            });
            let sum = i128::from(parts.own()) + i128::from(others.unwrap_or(0)) + i128::from(parts.unknown);
            assert_eq!(sum + i128::from(parts.free), i128::from(total), "{parts:?}");
        }
    }
}

#[test]
fn a_single_free_block_is_not_said_to_be_in_pieces() {
    let in_pieces = shortage(3 * GIB, [18 * GIB, 3 * GIB, GIB, 0]);
    assert!(
        in_pieces
            .explanation()
            .contains("In one piece, or given back, they suffice"),
        "{}",
        in_pieces.explanation()
    );
    let in_one = Shortage {
        requested: 4 * GIB,
        largest_cached: 3 * GIB,
        ..in_pieces
    };
    let text = in_one.explanation();
    assert!(
        text.contains("in one block") && !text.contains("In one piece"),
        "{text}"
    );
}

#[test]
fn a_guard_is_named_with_its_bound() {
    let guarded = |bytes, of_device| Shortage {
        guard: Some(Guard { bytes, of_device }),
        ..shortage(962 * GIB, [GIB, 0, 0, 0])
    };
    let by_device = guarded(24 * GIB, true);
    assert_eq!(by_device.verdict(), Verdict::LargerThanDevice);
    assert!(
        by_device
            .explanation()
            .contains("the device has 24.0 GiB in all. Check the length")
    );
    let by_setting = guarded(GIB, false);
    assert_eq!(by_setting.verdict(), Verdict::Guard);
    assert!(by_setting.explanation().contains("VRAMSHIM_MAX_REQUEST is 1.00 GiB"));
    let of_host = Shortage {
        of_host: true,
        ..by_setting
    };
    assert_eq!(of_host.verdict(), Verdict::Guard);
    let of_malloc = Shortage {
        by_host_guard: true,
        ..of_host
    };
    let explained = of_malloc.explanation();
    assert!(
        explained.ends_with("VRAMSHIM_HOST_GUARD is 1.00 GiB. The host guard refused it"),
        "{explained}"
    );
    for one in [by_device, by_setting] {
        assert!(one.explanation().ends_with("so the driver was not asked"));
    }
}

/// Neither NVML nor a measurement before tells what the driver holds for the process.
#[test]
fn a_context_that_nobody_told_is_not_said_to_be_nothing() {
    let parts = Parts::of(Reading {
        total: 24 * GIB,
        free: 23 * GIB,
        live: GIB / 2,
        reserved: GIB / 2,
        ..Reading::default()
    });
    let short = Shortage {
        parts: Some(parts),
        ..shortage(40 * GIB, [0; 4])
    };
    assert_eq!(
        short.equation().unwrap(),
        "Device 24.00 = this process 0.50 (live 0.50 + cached 0.00) + context, others or unknown 0.50 + free 23.00 (GiB)"
    );
}
