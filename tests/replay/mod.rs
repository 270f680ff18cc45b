//! Tests of `vramshim replay` on small traces whose results can be computed by hand.

mod inputs;
mod journals;
mod prices;
mod utilisation;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use base::api::{Api, Class};
use journal::format::Device;
use journal::format::Event;
use journal::writer::{Journal, Options};
use policy::Settings;
use program::replay::{Setup, Trace, play};
use serde_json::Value;
use support::{Printed, Runs, assert_says, program};

const MIB: u64 = 1 << 20;

fn replay(trace: &Path, arguments: &[&str]) -> Printed {
    Command::new(program())
        .arg("replay")
        .arg(trace)
        .args(arguments)
        .printed()
}

fn csv(rows: &[(&str, u64, u64)]) -> String {
    let mut text = "Thread,Time,Action,Pointer,Size,Stream\n".to_owned();
    for (action, pointer, size) in rows {
        writeln!(text, "0,00:00:00.000000,{action},{pointer:#x},{size},0").unwrap();
    }
    text
}

fn peaks(text: &str, arguments: &[&str]) -> (Value, Vec<(String, u64, bool)>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    std::fs::write(&path, text).unwrap();
    let page = replay(&path, &[arguments, &["--json"]].concat()).ok().json();
    let rows = page["strategies"].as_array().unwrap().iter().map(|row| {
        let name = row["name"].as_str().unwrap().to_owned();
        (
            name,
            row["peak_reserved"].as_u64().unwrap(),
            row["fits"].as_bool().unwrap(),
        )
    });
    let rows = rows.collect();
    (page, rows)
}

fn reserved(rows: &[(String, u64, bool)], name: &str) -> u64 {
    rows.iter()
        .find(|row| row.0 == name)
        .unwrap_or_else(|| panic!("no {name}"))
        .1
}

#[test]
fn each_strategy_reserves_what_its_rules_say() {
    let text = csv(&[
        ("allocate", 0x1000, 100),
        ("allocate", 0x2000, 3 * MIB),
        ("allocate", 0x3000, 11 * MIB + 1),
        ("free", 0x2000, 3 * MIB),
        ("free", 0x7777, 1),
    ]);
    let (page, rows) = peaks(&text, &[]);
    assert_eq!(page["peak_live"], 100 + 3 * MIB + 11 * MIB + 1);
    assert_eq!(page["unmatched"], 1);
    assert_eq!(reserved(&rows, "passthrough"), page["peak_live"].as_u64().unwrap());
    // 2 MiB for the small block and 20 MiB for the middle one. The rest of the 20 MiB serves the large block.
    assert_eq!(reserved(&rows, "torch"), 22 * MIB);
    // Small blocks take pages of 2 MiB, large blocks take pages of 20 MiB.
    assert_eq!(reserved(&rows, "torch_expandable"), 22 * MIB);
    // All blocks are live when the large one is requested. Only a range is checked here; unit tests of auto_growth
    // check exact values.
    let own = reserved(&rows, "auto_growth");
    assert!((14 * MIB + 101..=16 * MIB).contains(&own), "{own}");
    // Each block takes a chunk of its size, rounded to 256 bytes.
    assert_eq!(reserved(&rows, "paddle_auto_growth"), 256 + 3 * MIB + 11 * MIB + 256);
    // 0.92 of 95% of 80 GiB.
    assert_eq!(reserved(&rows, "paddle_naive_best_fit"), 75_076_028_334);
    let names: Vec<&str> = rows.iter().map(|row| row.0.as_str()).collect();
    assert_eq!(
        names,
        [
            "passthrough",
            "naive_best_fit",
            "auto_growth",
            "torch",
            "torch_expandable",
            "paddle_auto_growth",
            "paddle_naive_best_fit",
        ]
    );
}

/// Replays one strategy. Returns its peak of reserved bytes, its driver calls and its failures.
fn one(text: &str, name: &str, arguments: &[&str]) -> (u64, u64, u64) {
    let (page, _) = peaks(text, &[&["--strategy", name], arguments].concat());
    let rows = page["strategies"].as_array().unwrap();
    assert_eq!(rows.len(), 1);
    let number = |field: &str| rows[0][field].as_u64().unwrap();
    (number("peak_reserved"), number("driver_calls"), number("failed"))
}

#[test]
fn a_stream_gets_what_another_freed_without_a_wait() {
    for second in [7, 8] {
        let text = format!(
            "Thread,Time,Action,Pointer,Size,Stream\n\
             0,0,allocate,0x1,{size},7\n\
             0,0,allocate,0x2,{size},8\n\
             0,0,free,0x1,{size},7\n\
             0,0,allocate,0x3,{size},{second}\n",
            size = 2 * MIB
        );
        let (page, _) = peaks(&text, &["--strategy", "auto_growth"]);
        let row = &page["strategies"][0];
        assert_eq!(row["waits_in_allocations"], 0, "{page}");
        assert_eq!(row["peak_reserved"], 4 * MIB, "{page}");
    }
}

/// The same for settings that only a journal's job can have.
fn one_with(text: &str, name: &str, settings: &Settings, device_memory: u64, lag_ns: u64) -> (u64, u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    std::fs::write(&path, text).unwrap();
    let setup = Setup {
        settings: settings.clone(),
        device_memory,
        prices: Default::default(),
        lag_ns,
        repetitions: 1,
    };
    let outcome = play(&Trace::load(&path, None).unwrap(), name, &setup).unwrap();
    (outcome.peak_reserved, outcome.bill().driver_calls(), outcome.failed)
}

#[test]
fn paddles_models_by_hand() {
    let split = csv(&[
        ("allocate", 1, 3 * MIB),
        ("allocate", 2, MIB / 2),
        ("free", 1, 3 * MIB),
        ("allocate", 3, 3 * MIB + MIB / 2),
    ]);
    // In the first chunk, half a MiB before the second block is free, and 3 MiB after it. So the third block does not
    // fit, and a second chunk of 4 MiB is obtained.
    let name = "paddle_auto_growth";
    assert_eq!(one(&split, name, &["--chunk", "4MiB"]), (8 * MIB, 2, 0));
    let chunks = csv(&[
        ("allocate", 1, 4 * MIB),
        ("allocate", 2, 4 * MIB),
        ("free", 1, 4 * MIB),
        ("free", 2, 4 * MIB),
        ("allocate", 3, 8 * MIB),
    ]);
    // Two free chunks cannot be joined.
    assert_eq!(one(&chunks, name, &[]), (16 * MIB, 3, 0));
    // The request is refused, both free chunks are given back, and the request is repeated.
    let narrow = ["--device-memory", "10MiB"];
    assert_eq!(one(&chunks, name, &narrow), (8 * MIB, 6, 0));
    // The retry asks for the size of a chunk again, not for the size of the request.
    let arguments = [&narrow[..], &["--chunk", "6MiB"]].concat();
    assert_eq!(one(&chunks, name, &arguments), (8 * MIB, 6, 1));

    let name = "paddle_naive_best_fit";
    let sizes = Settings {
        initial_bytes: 8 * MIB,
        reallocate_bytes: 4 * MIB,
        ..Settings::default()
    };
    let text = csv(&[
        ("allocate", 1, 7 * MIB),
        ("allocate", 2, 2 * MIB),
        ("allocate", 3, 9 * MIB),
        ("free", 3, 9 * MIB),
        ("allocate", 4, MIB),
        ("allocate", 5, 3 * MIB / 2),
    ]);
    // 8 MiB for the first block, 4 MiB for the second. The third has a segment of its own, with a descriptor of 256
    // bytes, until it is freed. The fourth fits into the second chunk, and the fifth needs another 4 MiB.
    assert_eq!(one_with(&text, name, &sizes, 24 * MIB, 0), (21 * MIB + 256, 5, 0));
    let small = csv(&[("allocate", 1, 7 * MIB), ("allocate", 2, 2 * MIB)]);
    // 95% of 4.5 MiB hold a chunk, 95% of 4 MiB do not.
    assert_eq!(one_with(&small, name, &sizes, 25 * MIB / 2, 0), (12 * MIB, 2, 0));
    assert_eq!(one_with(&small, name, &sizes, 12 * MIB, 0), (8 * MIB, 1, 1));
    // The first chunk is 0.95 * 0.92 of 100 MiB, the next is the same share of the rest.
    let shares = csv(&[("allocate", 1, 87 * MIB), ("allocate", 2, MIB)]);
    let first = 91_645_542;
    let free = 100 * MIB - first;
    let second = ((free - (free as f64 * 0.05) as u64) as f64 * 0.92) as u64;
    let told = one(&shares, name, &["--device-memory", "100MiB"]);
    assert_eq!(told, (first + second, 2, 0));
}

#[test]
fn a_cache_is_given_back_before_a_request_fails() {
    let text = csv(&[
        ("allocate", 1, 60 * MIB),
        ("free", 1, 60 * MIB),
        ("allocate", 2, 80 * MIB),
    ]);
    let (page, rows) = peaks(&text, &["--device-memory", "100MiB"]);
    for row in page["strategies"].as_array().unwrap() {
        // Paddle's naive_best_fit never gives memory back: its first chunk, 0.874 of the device, must hold 80 MiB.
        let expected = if row["name"] == "paddle_naive_best_fit" { 92 } else { 80 };
        assert_eq!(row["smallest_device"], expected * MIB, "{row}");
    }
    assert!(rows.iter().all(|(_, _, fits)| *fits), "{rows:?}");
    let (_, rows) = peaks(&text, &["--device-memory", "70MiB"]);
    assert!(rows.iter().all(|(_, _, fits)| !*fits), "{rows:?}");
}

#[test]
fn the_journal_of_a_job_can_be_played() {
    let path = support::client("support/clients/training.c", "training", &[]);
    let finished = support::Job::new(path).run().ok();
    let journal = &finished.journals()[0];
    let output = replay(journal, &["--json"]);
    let page = output.json();
    let told = finished.inspect();
    assert_eq!(page["peak_live"], told["devices"][0]["requested"]["peak"]);
    // passthrough reserves exactly what is live, so no strategy reserves less.
    assert_eq!(page["recommendation"]["compared_with"], "passthrough");
    assert_eq!(page["recommendation"]["strategy"], Value::Null);
    let finished = support::Job::new(support::client("support/clients/training.c", "training", &[]))
        .strategy(support::NAIVE_BEST_FIT)
        .env("FLAGS_initial_gpu_memory_in_mb", "4096")
        .run()
        .ok();
    let page = replay(&finished.journals()[0], &["--json"]).json();
    let advice = &page["recommendation"];
    assert_eq!(advice["compared_with"], "naive_best_fit");
    // For the job's own strategy `replay` uses the job's settings.
    let row = |name| {
        page["strategies"]
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["name"] == name)
            .unwrap()
    };
    assert_eq!(row("naive_best_fit")["peak_reserved"], 4096 * MIB);
    // A journal does not say what PyTorch would have requested, so no setting of PyTorch is recommended.
    // How long the job lasted decides whether the setting is recommended, or only named as too slow: a tenth of these few
    // milliseconds is about what the calls of another strategy take.
    let why = advice["why"].as_str().expect("a reason");
    let setting = advice["setting"].as_str().unwrap_or_else(|| {
        let named = why.strip_prefix("none: ").expect("no setting, and why");
        assert!(why.contains(" that the trace lasts"), "{advice}");
        named
    });
    assert!(setting.starts_with("FLAGS_allocator_strategy=auto_growth"), "{advice}");
    assert!(!why.contains("PYTORCH"), "{advice}");
}

/// Memory that the job maps itself, such as PyTorch's expandable segments, is not played, and a note says so.
#[test]
fn requests_that_no_strategy_serves_are_named() {
    let path = support::client("support/clients/exercise.c", "linked", &["libcuda.so.1"]);
    let finished = support::Job::new(path).args(["1", "300", "1"]).run().ok();
    let output = replay(&finished.journals()[0], &["--strategy", "auto_growth"]);
    let page = output.text;
    for class in ["vmm", "async"] {
        let words = format!("memory of class {class} (such as PyTorch's");
        assert_says(&page, &words);
        assert_says(&page, "run --torch allocator");
    }
}

#[test]
fn the_table_ends_with_the_recommendation_and_json_has_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    // PyTorch reserves 20 MiB for these 2 MiB in one call. passthrough makes twenty calls.
    let mut rows = Vec::new();
    for id in 1..=10 {
        rows.extend([("allocate", id, 2 * MIB), ("free", id, 2 * MIB)]);
    }
    std::fs::write(&path, csv(&rows)).unwrap();
    let output = replay(&path, &["--device-memory", "1GiB"]);
    let table = output.text;
    let last = table.trim_end().lines().last().unwrap();
    assert!(output.said.is_empty(), "no bar without a terminal");
    let words = "Recommendation: FLAGS_allocator_strategy=auto_growth reserves 2.00 MiB instead of 20.0 MiB under torch: \
                 saves 18.0 MiB (90.0%), and fits a device of 2.00 MiB";
    assert!(last.starts_with(words), "{last}");
    let page = replay(&path, &["--device-memory", "1GiB", "--json"]).json();
    let advice = &page["recommendation"];
    assert_eq!(format!("Recommendation: {}", advice["why"].as_str().unwrap()), last);
    assert_eq!(advice["strategy"], "auto_growth");
    assert_eq!(advice["setting"], "FLAGS_allocator_strategy=auto_growth");
    assert_eq!(advice["saves"], 18 * MIB);
    assert_eq!(advice["compared_with"], "torch");
    assert_eq!(page["trace"], path.display().to_string());
    assert_eq!((&page["peak_live"], &page["requests"]), (&(2 * MIB).into(), &20.into()));
    assert_eq!(page["device_memory"], 1u64 << 30);
    let torch = &page["strategies"][3];
    let bill = |allocations: u64, ns: u64| {
        let mut page = serde_json::json!({"driver_calls": allocations, "memory_calls": allocations, "driver_ns": ns,
            "waits_in_allocations": 0, "waits_in_frees": 0, "waiting_ns": 0, "calls": {}});
        for name in [
            "cuMemCreate",
            "cuMemMap",
            "cuMemSetAccess",
            "cuMemUnmap",
            "cuMemRelease",
            "cuMemFree",
            "cuMemAddressReserve",
            "cuMemAddressFree",
            "cuEventRecord",
            "cuEventQuery",
        ] {
            page["calls"][name] = 0.into();
        }
        page["calls"]["cuMemAlloc"] = allocations.into();
        page
    };
    // 60 us and 20 MiB / GiB of 250 us.
    let mut expected = bill(1, 64_883);
    expected["repetitions"] = vec![bill(1, 64_883)].into();
    let rest = serde_json::json!({"name": "torch", "peak_reserved": 20 * MIB, "utilisation": 0.1,
        "share_of_trace": null, "smallest_device": 20 * MIB, "fits": true, "failed": 0});
    expected
        .as_object_mut()
        .unwrap()
        .extend(rest.as_object().unwrap().clone());
    assert_eq!(torch, &expected);
}

#[test]
fn a_recommendation_tells_what_it_costs() {
    // The sizes change all the time, and two blocks are live at any moment.
    let sizes: Vec<u64> = (0..40).map(|number| (2 + number * 7 % 31) * MIB).collect();
    let mut rows = Vec::new();
    for (number, &size) in sizes.iter().enumerate() {
        let address = |number: usize| (number as u64 + 1) << 32;
        rows.push(("allocate", address(number), size));
        if number >= 2 {
            rows.push(("free", address(number - 2), sizes[number - 2]));
        }
    }
    let (page, _) = peaks(&csv(&rows), &["--strategy", "torch,autogrow"]);
    let why = page["recommendation"]["why"].as_str().unwrap();
    let calls = page["strategies"][1]["driver_calls"].as_u64().unwrap();
    assert_eq!(page["strategies"][1]["name"], "auto_growth");
    assert!(why.contains(&format!("it calls the driver {calls} times")), "{why}");
    // A strategy that does not serve every request has no utilisation.
    let (page, _) = peaks(&csv(&rows), &["--device-memory", "30MiB"]);
    for row in page["strategies"].as_array().unwrap() {
        assert_eq!(row["fits"], row["utilisation"].is_f64(), "{row}");
    }
    let (page, _) = peaks(&csv(&rows), &["--device-memory", "1PiB", "--strategy", "passthrough"]);
    assert_eq!(page["device_memory"], 1u64 << 50);
}

#[test]
fn only_what_helps_is_recommended() {
    let small: &[(&str, u64, u64)] = &[("allocate", 1, 2 * MIB)];
    let busy = &[small, &[("free", 1, 2 * MIB), ("allocate", 1, 2 * MIB)]].concat();
    let whole = &[("allocate", 1, 20 * MIB)];
    let grown = &[
        ("allocate", 1, 12 * MIB),
        ("free", 1, 12 * MIB),
        ("allocate", 2, 30 * MIB),
    ];
    let expandable = Some("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
    let own = "worth setting instead of the job's own, torch (20.0 MiB)";
    let through = Some("FLAGS_allocator_strategy=passthrough");
    let naive = Some("FLAGS_allocator_strategy=naive_best_fit");
    let growth = Some("FLAGS_allocator_strategy=auto_growth");
    for (rows, strategies, device, setting, saves, words) in [
        // 40 MiB in pages of 20 MiB, instead of segments of 12 and 30 MiB.
        (
            &grown[..],
            "torch,torch_expandable",
            "1GiB",
            expandable,
            2,
            "saves 2.00 MiB (4.8%)",
        ),
        (
            whole,
            "all",
            "1GiB",
            None,
            0,
            "nothing to gain over the 20.0 MiB under torch",
        ),
        // For `small` passthrough makes as many driver calls as PyTorch, for `busy` three times as many.
        (
            small,
            "passthrough",
            "1GiB",
            through,
            18,
            "vramshim run --torch allocator",
        ),
        (busy, "passthrough", "1GiB", None, 0, own),
        // On the smaller device naive_best_fit reserves least, although it reserves nearly everything at the start.
        (
            small,
            "naive_best_fit",
            "16MiB",
            naive,
            18,
            "torch has no memory for 1 of them",
        ),
        (small, "naive_best_fit", "21MiB", None, 0, own),
        (small, "auto_growth", "16MiB", growth, 18, "torch one of 20.0 MiB"),
        (small, "paddle_auto_growth,torch", "1GiB", None, 0, own),
        (
            small,
            "all",
            "1MiB",
            None,
            0,
            "serves every request on a device of 1.00 MiB",
        ),
    ] {
        let arguments = ["--strategy", strategies, "--device-memory", device];
        let (page, _) = peaks(&csv(rows), &arguments);
        let advice = &page["recommendation"];
        assert_eq!(advice["setting"].as_str(), setting, "{strategies}: {advice}");
        assert_eq!(advice["strategy"].is_null(), setting.is_none(), "{advice}");
        assert_eq!(advice["saves"], saves * MIB, "{strategies}: {advice}");
        assert!(advice["why"].as_str().unwrap().contains(words), "{advice}");
    }
}
