//! What `vramshim replay` says of driver time, waits and repetitions.

use std::process::Command;

use policy::Settings;
use program::replay::{Setup, Trace, play};
use serde_json::{Value, json};

use crate::replay::{MIB, log, peaks, replay};
use support::{Fields, Printed, Runs, assert_fields, assert_says, root};

const US: u64 = 1000;

/// The result of one strategy.
fn played(text: &str, strategy: &str, arguments: &[&str]) -> Value {
    let (page, _) = peaks(text, &[&["--strategy", strategy], arguments].concat());
    page["strategies"][0].clone()
}

fn calls<const N: usize>(row: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| row["calls"][name].number())
}

#[test]
fn calls_are_priced_and_set_against_the_time_of_the_trace() {
    let text = log("100 allocate 1 512 0, 200 free 1 512 0, 10100 allocate 1 1024 0");
    let row = played(&text, "passthrough", &[]);
    // 60 us and 125 us, 60 us and 50 us, 60 us and 250 us.
    let wanted = json!({"driver_ns": (185 + 110 + 310) * US, "waits_in_frees": 1, "waits_in_allocations": 0});
    assert_fields(&row, wanted, "");
    assert_eq!(row["waiting_ns"], 0, "without --lag the GPU is never behind");
    assert!((row["share_of_trace"].as_f64().unwrap() - 0.0605).abs() < 1e-9, "{row}");
    // A trace without times has no duration.
    let (page, _) = peaks(&log("7 allocate 1 1 0, 7 free 1 1 0"), &[]);
    assert_eq!(page["duration_ns"], Value::Null);
}

#[test]
fn the_clock_of_a_log_goes_past_midnight_and_knows_both_spellings() {
    let text = "Thread,Time,Action,Pointer,Size,Stream\n0,23:59:59:500000,allocate,0x1,5,0\n\
                0,00:00:01.25,allocate,0x2,5,0\n0,00:00:01.2,free,0x2,5,0\n";
    let (page, _) = peaks(text, &["--strategy", "torch"]);
    assert_eq!(page["duration_ns"], 1_750_000 * US);
}

#[test]
fn another_stream_gets_what_was_freed_when_the_gpu_has_come_so_far() {
    let text = log("5000 allocate 3 4 8, 10000 allocate 1 4 7, 20000 free 1 4 7, 21000 allocate 2 4 8");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    std::fs::write(&path, text).unwrap();
    let trace = Trace::load(&path, None).unwrap();
    let setup = |lag_us| Setup {
        settings: Settings {
            initial_bytes: 4 * MIB,
            reallocate_bytes: 4 * MIB,
            ..Settings::default()
        },
        device_memory: 80 << 30,
        prices: Default::default(),
        lag_ns: lag_us * US,
        repetitions: 1,
    };
    // Under auto_growth, what a stream has freed stays with this stream as long as memory is not short.
    for (strategy, wanted) in [("naive_best_fit", [8, 8, 12]), ("auto_growth", [12; 3])] {
        let peaks = [0, 900, 2000].map(|lag_us| play(&trace, strategy, &setup(lag_us)).unwrap().peak_reserved);
        assert_eq!(peaks, wanted.map(|mebibytes| mebibytes * MIB), "{strategy}");
    }
}

#[test]
fn pytorch_keeps_a_block_pending_that_another_stream_has_used() {
    // The block of stream 7 is freed on stream 8, and stream 7 asks again.
    let text = |freed_on: u32| {
        let free = format!("20000 free 1 20 {freed_on}");
        log(&format!(
            "10000 allocate 1 20 7, {free}, 21000 allocate 2 20 7, 25000 free 2 20 7"
        ))
    };
    for (freed_on, lag, peak, events) in [(7, "2ms", 20, 0), (8, "2ms", 40, 1), (8, "900us", 20, 1)] {
        let row = played(&text(freed_on), "torch", &["--lag", lag]);
        assert_eq!(row["peak_reserved"].number(), peak * MIB, "{row}");
        assert_eq!(calls(&row, ["cuEventRecord", "cuEventQuery"]), [events; 2], "{row}");
    }
    // Before a request fails, PyTorch waits for the pending block and gives it back, which waits again.
    let row = played(&text(8), "torch", &["--lag", "2ms", "--device-memory", "30MiB"]);
    assert_fields(&row, json!({"failed": 0, "waits_in_allocations": 2}), "");
    assert_eq!(calls(&row, ["cuMemAlloc", "cuMemFree"]), [3, 1]);
}

#[test]
fn pytorch_waits_when_it_gives_its_cache_back() {
    let text = |stream: u32| {
        log(&format!(
            "0 allocate 1 60 0, 9000 free 1 60 0, 10000 allocate 2 80 {stream}"
        ))
    };
    let arguments = ["--device-memory", "100MiB", "--lag", "1ms"];
    let row = played(&text(0), "torch", &arguments);
    // The second cudaMalloc is refused.
    assert_eq!(calls(&row, ["cuMemAlloc", "cuMemFree"]), [3, 1]);
    // The price of the call that was refused passes before the wait begins.
    let wanted = json!({"waits_in_allocations": 1, "waits_in_frees": 0, "waiting_ns": (1000 - 60) * US});
    assert_fields(&row, wanted, "");
    // Expandable segments, and another stream: of four new handles of 20 MiB two fit, and are released again. PyTorch
    // waits, unmaps and releases the three handles of the first stream, and creates four.
    let row = played(&text(1), "torch_expandable", &arguments);
    assert_fields(&row, json!({"failed": 0, "waits_in_allocations": 1}), "");
    let wanted = json!({"cuMemAddressReserve": 2, "cuMemCreate": 3 + 3 + 4, "cuMemMap": 3 + 4, "cuMemSetAccess": 2,
        "cuMemUnmap": 3, "cuMemRelease": 2 + 3});
    assert_fields(&row["calls"], wanted, "");
}

#[test]
fn later_repetitions_are_told_apart_from_the_first() {
    let text = log("0 allocate 1 20 0, 1000 allocate 2 20 0, 2000 free 1 20 0");
    let (page, _) = peaks(&text, &["--strategy", "passthrough,torch", "--repeat", "3"]);
    assert_eq!(page["repetitions"], 3);
    let memory_calls = |index: usize| {
        let bills = page["strategies"][index]["repetitions"].list().iter();
        bills.map(|bill| bill["memory_calls"].number()).collect::<Vec<_>>()
    };
    // What the trace leaves live is freed at the beginning of the next repetition.
    assert_eq!(memory_calls(0), [3, 4, 4]);
    assert_eq!(memory_calls(1), [2, 0, 0]);
    let wanted = json!({"memory_calls": 11, "waits_in_frees": 5});
    assert_fields(&page["strategies"][0], wanted, "");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    std::fs::write(&path, &text).unwrap();
    let output = replay(&path, &["--repeat", "3", "--lag", "1ms"]);
    let text = output.text;
    assert_says(&text, "played 3 times; the host runs 1.0 ms ahead of the GPU");
}

#[test]
fn a_file_replaces_prices() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prices.toml");
    let trace = folder.path().join("trace.csv");
    std::fs::write(&trace, log("0 allocate 1 1024 0")).unwrap();
    let with = |prices: &str| {
        std::fs::write(&path, prices).unwrap();
        let prices = path.to_str().unwrap();
        replay(&trace, &["--json", "--strategy", "passthrough", "--prices", prices])
    };
    let page = with("allocate_us = 1.5\n").json();
    assert_eq!(page["strategies"][0]["driver_ns"], 251_500);
    let wanted = json!({"allocate_us": 1.5, "free_us": 60.0});
    assert_fields(&page["prices"], wanted, "");
    assert_eq!(page["price_table"], path.display().to_string());
    let table = replay(&trace, &[]).text;
    assert!(table.contains("\nprices of driver calls: built in\n"), "{table}");
    for (text, words) in [
        (
            "map_us = 1\nmop_us = 2\n",
            "line 2: \"mop_us\" is the name of no price: there is create_us, ",
        ),
        ("map_us = 1 # us\n\nmap_us = 2", "line 3: map_us has a price already"),
        ("map_us", "line 1: \"map_us\" is no price"),
        ("map_us = -1", "line 1: map_us = \"-1\" is no time"),
        ("map_us = 2 us", "line 1: map_us = \"2 us\" is no time"),
        ("map_us = NaN", "line 1: map_us = \"NaN\" is no time"),
        ("map_us = 1e9", "line 1: map_us = \"1e9\" is no time"),
        ("map_us =", "line 1: map_us = \"\" is no time"),
    ] {
        let output = with(text);
        assert_eq!(output.code, Some(2), "{text}");
        assert_says(&output.said, &format!("prices.toml: {words}"));
    }
    let missing = replay(&trace, &["--prices", "/nowhere"]);
    assert_eq!(missing.code, Some(2));
    assert_says(&missing.said, "--prices /nowhere: cannot be read");
}

#[test]
fn the_request_that_ended_a_job_is_played() {
    // After the failure the job unwinds.
    let died = log("0 allocate 1 10 0, 10 failure 0 40 0, 20 free 1 10 0");
    let arguments = ["--strategy", "passthrough", "--device-memory", "45MiB"];
    let (page, _) = peaks(&died, &arguments);
    assert_eq!(page["peak_live"], 50 * MIB);
    let wanted = json!({"failed": 1, "smallest_device": 50 * MIB});
    assert_fields(&page["strategies"][0], wanted, "");
    assert_says(page["notes"][0].text(), "for 40.0 MiB, failed");
    // A job that got memory after the failure has recovered from it.
    let recovered = died + "0,23:59:59.000030,allocate,0x1,5242880,0\n";
    let (page, _) = peaks(&recovered, &arguments);
    assert_fields(&page, json!({"peak_live": 10 * MIB, "notes": []}), "");
    assert_eq!(page["strategies"][0]["failed"], 0);
}

fn table_of(probe: &str) -> Printed {
    let folder = tempfile::tempdir().unwrap();
    let (script, path) = (root().join("scripts/prices.awk"), folder.path().join("probe"));
    std::fs::write(&path, probe).unwrap();
    Command::new("awk").arg("-f").args([script, path]).printed()
}

#[test]
fn measured_prices_become_a_table() {
    let probe = "on: A GPU, driver 13000\nholds      prices  (measured here)\n    | call | size | median | least |\n\
                 | cuMemCreate | 2 MiB | 10.5 us | 1 us |\n| cuMemCreate | 32 MiB | 99 us | 1 us |\n\
                 | cuMemCreate | 1 GiB | 266 us | 1 us |\n| cuMemMap | 2 MiB | 3.5 us | 1 us |\n\
                 | cuMemMap | 128 MiB | 4 us | 1 us |\n| cuMemSetAccess | 2 MiB | 40 us | 1 us |\n\
                 | cuMemSetAccess | 128 MiB | 200 us | 1 us |\n\
                 | cuMemSetAccess | 2 GiB | 210 us | 1 us |\n| cuMemSetAccess | 64 granules | 9000 us | 1 us |\n\
                 | cuMemUnmap | 2 MiB | 30 us | 1 us |\n| cuMemUnmap | 128 MiB | 31 us | 1 us |\n\
                 | cuMemRelease | 2 MiB | 20 us | 1 us |\n| cuMemRelease | 128 MiB | 25 us | 1 us |\n\
                 | cuMemAlloc | 2 MiB | 60 us | 1 us |\n| cuMemAlloc | 2 GiB | 571.5 us | 1 us |\n\
                 | cuMemFree | 2 MiB | 70 us | 1 us |\n| cuMemFree | 2 GiB | 60 us | 1 us |\n\
                 | cuEventRecord | idle | 1.5 us | 1 us |\n1 hold, 0 differ\n";
    let output = table_of(probe);
    let expected = "# Measured on: A GPU, driver 13000\ncreate_us = 10\ncreate_us_per_gib = 256\nmap_us = 3.5\n\
                    access_us_small = 40\naccess_us_large = 200\nunmap_us = 30\nrelease_us = 19.9\nrelease_us_per_gib = 40.63\nallocate_us = 59.5\n\
                    allocate_us_per_gib = 256\nfree_us = 70\nfree_us_per_gib = 0\nevent_us = 1.5\n";
    let text = output.text;
    assert!(output.code == Some(0) && text.starts_with(expected), "{text}");
    prices::Prices::parse(&text).expect("a table of prices");
    let unmeasured = table_of(&probe.replace("cuMemFree", "cuOther"));
    assert_ne!(unmeasured.code, Some(0));
    assert_says(&unmeasured.said, "no cuMemFree of two sizes");
    // The probe itself still prints such lines.
    let probe = crate::assumptions::probes().args(["prices"]).run().ok().stdout;
    let text = table_of(&probe).text;
    assert!(text.contains("access_us_large = "), "{text}");
    prices::Prices::parse(&text).expect("a table of prices");
}
