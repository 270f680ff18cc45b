//! Deaths over a layer. Each sum is of one teller's figures, and the verdict names who holds the memory.

use base::shortage::{MemInfo, Parts, Reading, Refusal, Refuser, Shortage, Verdict};
use serde_json::{Value, json};
use support::layer::{Form, Habits};
use support::member::{Host, Member};
use support::{AUTO_GROWTH, Fields, Finished, GIB, Job, MIB, PASSTHROUGH, assert_fields, assert_says};

use super::{CONTEXT, Told, explained, job};

/// The layer shows what its limit leaves, also if the device has less. Stream-ordered memory is real memory there.
const OVERSOLD: Habits = &[("LAYER_LINEAR", "oversold")];

/// Holds and asks for as many MiB: of the pool, of its own, and of the pool again, which fails.
fn stream(mib: [&str; 3], limit: &str, habits: Habits) -> Job {
    job("stream").args(mib).over(Form::Preloaded, limit, habits)
}

/// A host with 24 GiB, so many of which another process holds.
fn taken(gib: u64) -> (Host, Member) {
    let host = Host::new("24GiB");
    let mut other = Member::start(host.job());
    assert_eq!(other.allocate(gib * GIB), 0);
    (host, other)
}

/// The parts of the sum, which are of one teller, and no part of which is negative.
#[track_caller]
fn assert_sums(told: &Told, teller: &str) {
    let ledger = &told.page["why"]["ledger"];
    assert_eq!(ledger["told_by"], teller, "{}", told.text);
    let parts = ["live", "cached", "context", "others", "unknown", "free"];
    let sum: i64 = parts.iter().map(|part| ledger[*part].as_i64().unwrap_or(0)).sum();
    assert_eq!(Some(sum), ledger["total"].as_i64(), "{ledger}");
    assert!(ledger["unknown"].as_i64() >= Some(0), "{ledger}");
}

#[track_caller]
fn assert_never_says(finished: &Finished, told: &Told, words: &[&str]) {
    for word in words {
        assert!(!told.text.contains(word), "{word}: {}", told.text);
        assert!(!finished.stderr.contains(word), "{word}: {}", finished.stderr);
    }
}

/// The normal death on an overcommitted node. One layer shows what its limit leaves, the other no more than the device has.
#[test]
fn a_device_that_is_full_behind_the_layer_is_no_limit_and_no_fragmentation() {
    let (scarce, full): (Habits, _) = (&[], ["12", "100", "1000"]);
    for (habits, shown) in [(OVERSOLD, 3984 * MIB), (scarce, GIB - 432 * MIB)] {
        let (host, other) = taken(23);
        let (finished, told) = explained(host.runs(stream(full, "4GiB", habits)), "other_processes", 15);
        assert_sums(&told, "driver");
        let pid = other.pid();
        let failure = &told.page["why"]["failure"]["refused_by"];
        assert_eq!(failure["by"], "driver", "{failure}");
        assert!(failure["shown"]["free"].number() >= shown - 400 * MIB, "{failure}");
        assert_eq!(told.page["why"]["ledger"]["total"], 24 * GIB);
        for text in [&told.text, &finished.stderr] {
            assert_says(text, "The device is full behind the layer, which shows ");
        }
        // At a failure NVML has 8 ms to answer. On a busy machine that can be too little, and the library says so.
        if !finished.stderr.contains("others or unknown") {
            assert_says(&finished.stderr, &format!("23.0 GiB by pid {pid} (member)"));
        }
        assert_says(told.page["next"][0].text(), &format!("process {pid} member"));
        assert_never_says(&finished, &told, &["fragmentation", "does not help"]);
        other.end();
    }
}

/// The layer has less left than the request, and so has the device: neither alone is blamed.
#[test]
fn a_limit_of_the_layer_that_more_of_does_not_help_is_told_as_such() {
    let (host, _other) = taken(23);
    let over = stream(["12", "100", "1000"], "1000MiB", OVERSOLD);
    let (finished, told) = explained(host.runs(over), "layer_limit", 20);
    assert_sums(&told, "layer");
    assert_says(&told.text, ", so a larger limit alone does not help");
    assert_says(told.page["next"][0].text(), "use a device with more free memory");
    if !finished.stderr.contains("others or unknown") {
        assert_says(&finished.stderr, "Others on the device: 23.0 GiB by pid");
    }
}

/// The driver's pool has 20 MiB that nobody uses. They are on no book of the layer, so they do not help against its limit.
#[test]
fn what_the_drivers_pool_keeps_is_no_cache_of_the_layer() {
    let (finished, told) = explained(stream(["12", "1000", "16"], "1GiB", &[]), "layer_limit", 20);
    assert_sums(&told, "layer");
    let expected = json!({"live": 1012 * MIB, "cached": 0, "others": null, "free": 12 * MIB, "total": GIB});
    assert_fields(&told.page["why"]["ledger"], expected, &told.text);
    assert_says(
        &finished.stderr,
        "Layer's book 1024.00 = this process 1012.00 (live 1012.00 + cached 0.00) + free 12.00",
    );
    assert_says(told.page["next"][0].text(), "let the layer give as much more");
    assert_never_says(&finished, &told, &["suffice", "cached block"]);
}

/// nvshare shows the same whatever was taken, and counts its reserve to nobody.
#[test]
fn a_figure_that_does_not_fall_makes_no_negative_part() {
    const NVSHARE: Habits = &[("LAYER_LINEAR", "managed"), ("LAYER_TOTAL", "device")];
    for strategy in [PASSTHROUGH, AUTO_GROWTH] {
        let over = job("full").strategy(strategy).over(Form::Preloaded, "22GiB", NVSHARE);
        let (finished, told) = explained(over, "layer_limit", 20);
        assert_sums(&told, "layer");
        let expected = json!({"live": 22 * GIB, "unknown": 2 * GIB, "free": 0, "total": 24 * GIB});
        assert_fields(&told.page["why"]["ledger"], expected, &told.text);
        assert_never_says(&finished, &told, &["fragmentation", "unknown -"]);
    }
}

/// What the library took over is the layer's limit: more of it helps, and who gives it is said.
#[test]
fn an_inherited_limit_is_told_apart_from_one_of_the_library() {
    let limited = |limit: &str| job("limit").env("VRAMSHIM_MEMORY_LIMIT", limit);
    let over = |limit: &str, of_layer| explained(limited(limit).over(Form::Preloaded, of_layer, &[]), "limit", 16);
    let next = |told: &Told| told.page["next"][0].text().to_owned();
    let used = |told: &Told| told.page["why"]["limit"]["used"].number();

    let (finished, told) = over("inherit", "3584MiB");
    assert_eq!(used(&told), 3 * GIB + CONTEXT, "{}", told.text);
    let says = "a limit that the library took from the layer. With 812.0 MiB more this request fits";
    assert_says(&told.text, says);
    assert_says(&next(&told), "Raise the limit of the layer to at least 4396MiB");
    assert_sums(&told, "driver");
    assert_never_says(&finished, &told, &["does not help", "run --limit"]);

    let raise = "Raise the limit to at least 2348MiB (VRAMSHIM_MEMORY_LIMIT or run --limit), or hold";
    let (_, told) = over("1536MiB", "2GiB");
    assert_says(&next(&told), raise);

    let (_, told) = over("1536MiB", "1800MiB");
    assert_says(&told.text, "more, also of the layer, this request fits");
    assert_says(
        &next(&told),
        "(VRAMSHIM_MEMORY_LIMIT or run --limit), and that of the layer, or hold",
    );
    assert_eq!(told.page["why"]["failure"]["refused_by"]["driver"]["total"], 24 * GIB);

    // Without a layer there is nothing to tell apart.
    let (_, told) = explained(limited("1536MiB"), "limit", 16);
    assert_eq!(told.page["why"]["failure"]["refused_by"]["driver"], Value::Null);
    assert_says(&next(&told), raise);
}

/// The next step does not contradict the verdict.
#[test]
fn nobody_is_told_to_raise_a_limit_that_a_full_device_makes_of_no_use() {
    let (host, _other) = taken(22);
    let limited = job("limit").env("VRAMSHIM_MEMORY_LIMIT", "1536MiB");
    let (_, told) = explained(host.runs(limited), "limit", 16);
    assert_says(&told.text, "a larger limit does not help, because the device has only ");
    assert!(!told.text.contains("Raise the limit"), "{}", told.text);
}

/// A request for 2 GiB over a layer that shows 1 of 4 GiB, on a device that has as much free as this.
fn over_layer(by: Refuser, free: u64) -> Shortage {
    let has = |total, free| MemInfo { total, free };
    let (shown, driver) = (has(4 * GIB, GIB), Some(has(24 * GIB, free)));
    let refusal = Some(Refusal {
        by,
        result: None,
        driver,
    });
    let reading = Reading {
        total: shown.total,
        free: shown.free,
        of_layer: true,
        live: 2 * GIB,
        reserved: 3 * GIB,
        in_segments: GIB / 2,
        process: Some(7 * GIB / 2),
        others: Some(20 * GIB),
        context: 0,
    };
    Shortage {
        requested: 2 * GIB,
        result: 2,
        refusal,
        shown: Some(shown),
        layer: base::layers::known("/usr/local/vgpu/libvgpu.so"),
        parts: Some(Parts::of(reading.that_explains(refusal))),
        ..Shortage::default()
    }
}

#[test]
fn a_sum_has_one_teller() {
    let by_layer = over_layer(Refuser::Layer, 20 * GIB);
    assert_eq!(
        by_layer.equation().unwrap(),
        "Layer's book 4.00 = this process 2.50 (live 2.00 + cached 0.50) + context, others or unknown 0.50 + free 1.00 (GiB)"
    );
    assert_eq!(by_layer.verdict(), Verdict::Layer);
    let text = by_layer.explanation();
    let left = "the layer (HAMi-core, CUDA_DEVICE_MEMORY_LIMIT) has 1.00 GiB of 4.00 GiB left";
    assert_says(&text, left);
    let by_driver = over_layer(Refuser::Driver, GIB / 2);
    assert_eq!(
        by_driver.equation().unwrap(),
        "Device 24.00 = this process 3.50 (live 2.00 + cached 1.00 + context 0.50) + others 20.00 + free 0.50 (GiB)"
    );
    assert_eq!(by_driver.verdict(), Verdict::OtherProcesses);
    let text = by_driver.explanation();
    assert_says(&text, "The device is full behind the layer (HAMi-core");
}
