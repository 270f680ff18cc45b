//! What `vramshim replay` says of devices that are little larger than the trace's live peak.

use serde_json::{Value, json};
use support::{Fields, assert_fields};

use crate::replay::{MIB, log, replay, row};

/// A trace whose memory PyTorch's cache keeps in part: 4 and 16 MiB share a segment of 20 MiB, and the 4 MiB are freed last.
/// Returns the JSON and the table of three strategies. A call to allocate costs 10 us, one to free 5 us.
fn played() -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let (trace, prices) = (folder.path().join("trace.csv"), folder.path().join("prices.toml"));
    let text = "allocate_us = 10\nallocate_us_per_gib = 0\nfree_us = 5\nfree_us_per_gib = 0\n";
    std::fs::write(&prices, text).unwrap();
    let rows = [
        (10_000, "allocate", 1, 4 * MIB, 0),
        (20_000, "allocate", 2, 16 * MIB, 0),
        (30_000, "allocate", 3, 20 * MIB, 0),
        (40_000, "free", 2, 16 * MIB, 0),
        (50_000, "free", 3, 20 * MIB, 0),
        (60_000, "free", 1, 4 * MIB, 0),
    ];
    std::fs::write(&trace, log(&rows)).unwrap();
    let names = "passthrough,torch,paddle_naive_best_fit";
    let options = [
        "--repeat",
        "2",
        "--lag",
        "1ms",
        "--strategy",
        names,
        "--prices",
        prices.to_str().unwrap(),
    ];
    let page = replay(&trace, &[&options[..], &["--json"]].concat()).json();
    (page, replay(&trace, &options).ok().text)
}

#[test]
fn driver_time_and_the_largest_request_by_hand() {
    let (page, _) = played();
    // The live peak is 40 MiB, and a device has at least 4 MiB more.
    let devices = [(4.0, 160), (1.3, 52), (1.1, 44), (1.03, 44)];
    // passthrough makes three calls of each kind in each repetition, and each free waits for 1 ms. PyTorch gets two segments
    // of 20 MiB once. Paddle's pool reserves 0.92 * 0.95 of the device once. The 38.5 MiB of 44 MiB are too few.
    let passthrough = 2 * (3 * 10_000 + 3 * (5_000 + 1_000_000));
    for (name, ns, failed) in [
        ("passthrough", passthrough, [0; 4]),
        ("torch", 2 * 10_000, [0; 4]),
        ("paddle_naive_best_fit", 10_000, [0, 0, 2, 2]),
    ] {
        let told = row(&page, name)["headroom"].list();
        assert_eq!(told.len(), devices.len(), "{name}");
        for ((told, (headroom, mib)), failed) in told.iter().zip(devices).zip(failed) {
            let wanted =
                json!({"headroom": headroom, "device_memory": mib * MIB, "fits": failed == 0, "failed": failed});
            assert_fields(told, wanted, name);
            assert!(failed > 0 || told["driver_ns"] == ns, "{name}: {told}");
        }
    }
    // After the second free 4 of 52 MiB are live. PyTorch's segment keeps 16 of the 48 MiB, so 32 are left. In Paddle's pool of
    // 45.4 MiB there are 41.4 MiB. At the end both get more.
    for (name, share) in [("passthrough", 1.0), ("torch", 0.66), ("paddle_naive_best_fit", 0.86)] {
        assert_eq!(row(&page, name)["one_request_gets"], share, "{name}");
    }
}

#[test]
fn the_table_of_small_devices_has_what_json_has() {
    let (page, text) = played();
    let (_, below) = text.split_once("Driver time and waiting").expect("a second table");
    let table: Vec<&str> = below.lines().skip(1).collect();
    let heads = " strategy 4 x (160.0 MiB) 1.3 x (52.0 MiB) 1.1 x (44.0 MiB) 1.03 x (44.0 MiB) one request gets";
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words(table[0]), heads.trim());
    for (row, line) in page["strategies"].list().iter().zip(&table[1..]) {
        let mut wanted = row["name"].text().to_owned();
        for device in row["headroom"].list() {
            wanted += &format!(" {:.1} ms", device["driver_ns"].number() as f64 / 1e6);
            if device["failed"] != 0 {
                wanted += &format!(" ({} failed)", device["failed"]);
            }
        }
        let share = row["one_request_gets"]
            .as_f64()
            .map(|share| format!(" {:.0} %", share * 100.0));
        assert_eq!(
            words(line),
            wanted + &share.unwrap_or_else(|| " -".to_owned()),
            "{text}"
        );
    }
}
