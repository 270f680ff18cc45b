//! Tests of `vramshim replay` on small traces whose results can be computed by hand.

mod inputs;
mod journals;
mod models;
mod prices;
mod utilisation;

use std::path::{Path, PathBuf};

use base::api::{Api, Class};
use journal::format::Event;
use serde_json::{Value, json};
use support::{Fields, Printed, assert_fields, assert_says, vramshim_with};

const MIB: u64 = 1 << 20;

fn replay(trace: &Path, arguments: &[&str]) -> Printed {
    vramshim_with(&[&["replay"], arguments].concat(), [trace])
}

/// A log of such rows, parted by commas: microseconds, action, address, MiB, stream. The times are below one second.
fn log(rows: &str) -> String {
    let mut text = "Thread,Time,Action,Pointer,Size,Stream\n".to_owned();
    for row in rows.split(", ") {
        let words: Vec<&str> = row.split(' ').collect();
        let [us, action, address, mebibytes, stream] = words[..] else {
            panic!("{row}")
        };
        let bytes = mebibytes.parse::<u64>().expect("a size") * MIB;
        let action = action.replace("failure", "allocate failure");
        text += &format!("0,23:59:59.{us:0>6},{action},0x{address},{bytes},{stream}\n");
    }
    text
}

/// The same of one moment and one stream: action, address, MiB.
fn csv(rows: &str) -> String {
    let rows = rows.split(", ").map(|row| format!("0 {row} 0"));
    log(&rows.collect::<Vec<_>>().join(", "))
}

/// The page about a trace, and name, peak of reserved bytes and fitness of each strategy.
fn peaks(text: &str, arguments: &[&str]) -> (Value, Vec<(String, u64, bool)>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    std::fs::write(&path, text).unwrap();
    let page = replay(&path, &[arguments, &["--json"]].concat()).ok().json();
    let row = |row: &Value| {
        let fits = row["fits"].as_bool().unwrap();
        (row["name"].text().to_owned(), row["peak_reserved"].number(), fits)
    };
    let rows = page["strategies"].list().iter().map(row).collect();
    (page, rows)
}

fn row<'a>(page: &'a Value, name: &str) -> &'a Value {
    let mut rows = page["strategies"].list().iter();
    rows.find(|row| row["name"] == name)
        .unwrap_or_else(|| panic!("no {name}: {page}"))
}

#[test]
fn each_strategy_reserves_what_its_rules_say() {
    let text = "Thread,Time,Action,Pointer,Size,Stream\n0,0,allocate,0x1000,100,0\n0,0,allocate,0x2000,3145728,0\n\
                0,0,allocate,0x3000,11534337,0\n0,0,free,0x2000,3145728,0\n0,0,free,0x7777,1,0\n";
    let (page, rows) = peaks(text, &[]);
    let reserved = |name: &str| row(&page, name)["peak_reserved"].number();
    assert_eq!(page["peak_live"], 100 + 3 * MIB + 11 * MIB + 1);
    assert_eq!(page["unmatched"], 1);
    assert_eq!(reserved("passthrough"), page["peak_live"].number());
    // 2 MiB for the small block and 20 MiB for the middle one. The rest of the 20 MiB serves the large block.
    assert_eq!(reserved("torch"), 22 * MIB);
    // Small blocks take pages of 2 MiB, large blocks take pages of 20 MiB.
    assert_eq!(reserved("torch_expandable"), 22 * MIB);
    // A handle for small blocks and one for middle ones, whose rest serves a part of the next.
    assert_eq!(reserved("auto_growth"), 18 * MIB);
    // Each block takes a chunk of its size, rounded to 256 bytes.
    assert_eq!(reserved("paddle_auto_growth"), 256 + 3 * MIB + 11 * MIB + 256);
    // 0.92 of 95% of 80 GiB.
    assert_eq!(reserved("paddle_naive_best_fit"), 75_076_028_334);
    let names: Vec<&str> = rows.iter().map(|row| row.0.as_str()).collect();
    let all = "passthrough naive_best_fit auto_growth torch torch_expandable paddle_auto_growth paddle_naive_best_fit";
    assert_eq!(names.join(" "), all);
}

/// Replays one strategy. Returns its peak of reserved bytes, its driver calls and its failures.
fn one(text: &str, name: &str, arguments: &[&str]) -> (u64, u64, u64) {
    let (page, _) = peaks(text, &[&["--strategy", name], arguments].concat());
    let rows = page["strategies"].list();
    assert_eq!(rows.len(), 1);
    let number = |field: &str| rows[0][field].number();
    (number("peak_reserved"), number("driver_calls"), number("failed"))
}

#[test]
fn paddles_models_by_hand() {
    let name = "paddle_auto_growth";
    let chunks = csv("allocate 1 4, allocate 2 4, free 1 4, free 2 4, allocate 3 8");
    // Two free chunks cannot be joined.
    assert_eq!(one(&chunks, name, &[]), (16 * MIB, 3, 0));
    // The request is refused, both free chunks are given back, and the request is repeated.
    let narrow = ["--device-memory", "10MiB"];
    assert_eq!(one(&chunks, name, &narrow), (8 * MIB, 6, 0));
    // The retry asks for the size of a chunk again, not for the size of the request.
    let arguments = [&narrow[..], &["--chunk", "6MiB"]].concat();
    assert_eq!(one(&chunks, name, &arguments), (8 * MIB, 6, 1));

    // The first chunk is 0.95 * 0.92 of 100 MiB, the next is the same share of the rest.
    let shares = csv("allocate 1 87, allocate 2 1");
    let first = 91_645_542;
    let free = 100 * MIB - first;
    let second = ((free - (free as f64 * 0.05) as u64) as f64 * 0.92) as u64;
    let told = one(&shares, "paddle_naive_best_fit", &["--device-memory", "100MiB"]);
    assert_eq!(told, (first + second, 2, 0));
}

#[test]
fn a_cache_is_given_back_before_a_request_fails() {
    let text = csv("allocate 1 60, free 1 60, allocate 2 80");
    let (page, rows) = peaks(&text, &["--device-memory", "100MiB"]);
    for row in page["strategies"].list() {
        // Paddle's naive_best_fit never gives memory back: its first chunk, 0.874 of the device, must hold 80 MiB.
        let expected = if row["name"] == "paddle_naive_best_fit" { 92 } else { 80 };
        assert_eq!(row["smallest_device"], expected * MIB, "{row}");
    }
    assert!(rows.iter().all(|(_, _, fits)| *fits), "{rows:?}");
    let (_, rows) = peaks(&text, &["--device-memory", "70MiB"]);
    assert!(rows.iter().all(|(_, _, fits)| !*fits), "{rows:?}");
}

/// The library gives the job blocks of pools, and waits at each free of `cuMemFree`.
#[test]
fn the_journal_of_a_job_can_be_played() {
    let path = support::client("support/clients/training.c", "training", &[]);
    let finished = support::Job::new(&path).sim("8GiB", 1).run().ok();
    let page = replay(&finished.journals()[0], &["--json"]).json();
    assert_eq!(page["device_memory"], 8u64 << 30, "the device of the job");
    assert_eq!(page["peak_live"], finished.inspect()["devices"][0]["requested"]["peak"]);
    let through = row(&page, "passthrough");
    let frees = through["waits_in_frees"].number();
    assert!(frees > 100 && through["calls"]["cuMemFree"] == frees, "{page}");
    // PyTorch's cache waits for nothing.
    for (name, waits) in [("auto_growth", frees), ("naive_best_fit", frees), ("torch", 0)] {
        assert_eq!(row(&page, name)["waits_in_frees"], waits, "{name}");
    }
    let job = support::Job::new(path).strategy(support::NAIVE_BEST_FIT);
    let finished = job.env("FLAGS_initial_gpu_memory_in_mb", "4096").run().ok();
    let page = replay(&finished.journals()[0], &["--json"]).json();
    // For the job's own strategy `replay` uses the job's settings.
    assert_eq!(row(&page, "naive_best_fit")["peak_reserved"], 4096 * MIB);
}

#[test]
fn json_has_the_figures_of_each_strategy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    // PyTorch reserves 20 MiB for these 2 MiB in one call. passthrough makes twenty calls.
    std::fs::write(&path, csv(&["allocate 1 2, free 1 2"; 10].join(", "))).unwrap();
    let output = replay(&path, &["--device-memory", "1GiB", "--json"]);
    assert!(output.said.is_empty(), "no bar without a terminal");
    let page = output.json();
    let wanted =
        json!({"trace": path.display().to_string(), "peak_live": 2 * MIB, "requests": 20, "device_memory": 1 << 30});
    assert_fields(&page, wanted, "");
    // 60 us and 20 MiB / GiB of 250 us.
    let wanted = json!({"peak_reserved": 20 * MIB, "utilisation": 0.1, "smallest_device": 20 * MIB, "fits": true, "failed": 0,
        "driver_calls": 1, "driver_ns": 64_883, "share_of_trace": null});
    assert_fields(row(&page, "torch"), wanted, "");
    // A strategy that does not serve every request has no utilisation.
    let (page, rows) = peaks(&csv("allocate 1 20"), &["--device-memory", "10MiB"]);
    for (name, _, fits) in rows {
        assert_eq!(row(&page, &name)["utilisation"].is_f64(), fits, "{page}");
    }
}
