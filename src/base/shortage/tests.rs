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
        ..Reading::default()
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
    assert_eq!(of(22 * GIB, [2 * GIB, 0, GIB, 0]), Verdict::LiveSet);
    assert_eq!(
        of(24 * GIB, [2 * GIB, 0, GIB, 0]),
        Verdict::LargerThanDevice,
        "the context stays"
    );
    assert_eq!(of(2 * GIB, [18 * GIB, 5 * GIB, GIB, 0]), Verdict::Unusable);
    assert_eq!(of(GIB, [22 * GIB, GIB, GIB, 0]), Verdict::LiveSet, "1 GiB is cached");
    assert_eq!(of(2 * GIB, [3 * GIB, 2 * GIB, GIB, 18 * GIB]), Verdict::OtherProcesses);
    assert_eq!(of(2 * GIB, [10 * GIB, 8 * GIB, GIB, 4 * GIB]), Verdict::Unusable);
    assert_eq!(of(12 * GIB, [12 * GIB, 2 * GIB, GIB, 9 * GIB]), Verdict::LiveSet);
    assert_eq!(of(GIB, [10 * GIB, 0, 0, 0]), Verdict::Unusable, "14 GiB are free");
    let full = shortage(2 * GIB, [22 * GIB, 0, GIB, 0]);
    let of = |change: fn(&mut Shortage)| {
        let mut short = full;
        change(&mut short);
        short.verdict()
    };
    assert_eq!(of(|short| short.grown = 20 * GIB), Verdict::Growth);
    assert_eq!(of(|short| short.result = 999), Verdict::Driver);
    assert_eq!(of(|short| short.parts = None), Verdict::NotEnoughEvidence);
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
    // The members may hold more than the limit.
    let beyond = refused(GIB, 9 * GIB, GIB, true).explanation();
    assert!(beyond.contains("With 2.00 GiB more this request fits"), "{beyond}");
}

/// What the cache holds suffices only as far as it can go back: in segments without a live block.
#[test]
fn what_the_cache_holds_is_said_to_suffice_if_it_does() {
    // 2 GiB are free on the device and 3 GiB in the cache.
    for (asked, largest, unused, told) in [
        (4, 3, Some(2), "in one block, which is too short. 2.00 GiB of it"),
        (4, 1, Some(2), "and suffice together with what is free"),
        (3, 1, Some(3), "which can go back and suffice"),
        (4, 1, Some(1), "too little for this request"),
        (4, 1, Some(0), "none of them can go back"),
        (4, 1, None, "the largest block 1.00 GiB"),
    ] {
        let short = Shortage {
            largest_cached: largest * GIB,
            unused: unused.map(|unused| unused * GIB),
            ..shortage(asked * GIB, [18 * GIB, 3 * GIB, GIB, 0])
        };
        let text = short.explanation();
        assert!(text.contains(told), "{text}");
        assert_eq!(text.contains("suffice"), unused >= Some(2), "{text}");
    }
}

#[test]
fn what_the_driver_does_not_count_is_printed_as_a_part() {
    let over = Parts {
        total: 1 << 30,
        live: 3 << 29,
        unknown: -(1 << 29),
        others: Some(0),
        ..Parts::default()
    };
    let short = Shortage {
        parts: Some(over),
        ..shortage(2 * GIB, [GIB, 0, 0, 0])
    };
    assert_eq!(
        short.equation().unwrap(),
        "Device 1024.00 = this process 1536.00 (live 1536.00 + cached 0.00 + context 0.00) + others 0.00 - not counted by \
         the driver 512.00 + free 0.00 (MiB)"
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
                ..Reading::default()
            });
            let sum = i128::from(parts.own()) + i128::from(others.unwrap_or(0)) + i128::from(parts.unknown);
            assert_eq!(sum + i128::from(parts.free), i128::from(total), "{parts:?}");
        }
    }
}

#[test]
fn a_guard_is_the_verdict_unless_the_device_is_smaller() {
    for (of_device, verdict) in [(true, Verdict::LargerThanDevice), (false, Verdict::Guard)] {
        let short = Shortage {
            guard: Some(Guard { bytes: GIB, of_device }),
            ..shortage(962 * GIB, [GIB, 0, 0, 0])
        };
        assert_eq!(short.verdict(), verdict);
    }
}
