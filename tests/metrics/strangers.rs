//! What a user may leave in a folder that `serve` reads makes the metrics of the others neither wrong nor absent.

use std::mem::offset_of;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use journal::format::{Device, Header};
use journal::writer::About;
use support::made::Made;
use support::{Runs, left_out, program, simulated};

use super::server::{Served, Text};
use super::{allocates, once, three};

const STRANGER: u32 = 65533;
const LEFT_OUT: &[(&str, &str)] = &[("what", "left_out")];
const MIB: u64 = 1 << 20;

/// Gives files away. Returns whether this user can.
fn give_away(paths: &[PathBuf]) -> bool {
    paths.iter().all(|path| chown(path, Some(STRANGER), None).is_ok())
}

/// The journal of a process of its own on devices with these UUIDs, each of so many bytes.
fn on_devices(folder: &Path, pid: u32, uuids: &[[u8; 16]], total_memory: u64) -> PathBuf {
    let about = About {
        pid,
        host: "node1".into(),
        wall_start_ns: 1_790_000_000_000_000_000 + u64::from(pid),
        ..About::default()
    };
    let device = |(ordinal, uuid): (usize, &[u8; 16])| Device {
        ordinal: ordinal as i32,
        total_memory,
        uuid: *uuid,
        ..Device::default()
    };
    let devices: Vec<Device> = uuids.iter().enumerate().map(device).collect();
    let made = Made::about(folder, &about, &devices).unwrap();
    made.end(Some(0)).unwrap()
}

fn scrape_anew(served: &Served) -> Text {
    // Answers within half a second are the same, and NVML is not asked twice in a second.
    std::thread::sleep(Duration::from_millis(1100));
    served.scrape()
}

#[test]
fn a_huge_folder_is_listed_in_portions_and_the_next_scrape_goes_on() {
    const NAMES: usize = 70_000;
    const PORTION: usize = 1 << 16;
    let folder = tempfile::tempdir().unwrap();
    let huge = folder.path().join("huge");
    std::fs::create_dir(&huge).unwrap();
    for number in 0..NAMES {
        std::fs::File::create(huge.join(format!("{number}.vraj"))).unwrap();
    }
    three(folder.path());
    let served = Served::start(folder.path(), &["--keep-ended", "8000h"]);
    let first = served.scrape();
    assert_eq!(first.sum("vramshim_node_processes", &[]), 3.0);
    // Of the first names all have a place but three.
    let left_out = |text: &Text| text.value("vramshim_serve_unreadable", LEFT_OUT).unwrap();
    assert!(left_out(&first) <= 3.0);
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let next = scrape_anew(&served);
        assert_eq!(next.sum("vramshim_node_processes", &[]), 3.0);
        if left_out(&next) > 3.0 {
            assert!(left_out(&next) <= (NAMES + 3 - PORTION) as f64);
            break;
        }
        assert!(Instant::now() < until, "the other names are never seen");
    }
}

#[test]
fn a_user_with_many_processes_in_many_folders_leaves_the_others_their_series() {
    let folder = tempfile::tempdir().unwrap();
    let mut theirs = Vec::new();
    for number in 0..251 {
        let inner = folder.path().join(format!("a{number}"));
        std::fs::create_dir(&inner).unwrap();
        for pid in 0..4 {
            theirs.push(allocates(&inner, 1000 + 4 * number + pid, 1, 1));
        }
        theirs.push(inner);
    }
    if !give_away(&theirs) {
        return left_out("root's right to give files away");
    }
    for pid in 1..=8 {
        allocates(folder.path(), pid, 1, 1);
    }
    let (text, _) = once(folder.path(), &[]);
    for pid in 1..=8 {
        let own = text.value("vramshim_process_running", &[("pid", &pid.to_string())]);
        assert_eq!(own, Some(0.0), "process {pid} has no series");
    }
    assert_eq!(text.sum("vramshim_allocations_total", &[]), 1000.0);
    assert_eq!(text.value("vramshim_node_allocations_total", &[]), Some(1012.0));
}

/// 3000 processes on 32 devices each. The figures of a device take about a KiB.
#[test]
fn processes_on_many_devices_take_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    for pid in 1..=3000 {
        let about = About {
            pid,
            host: "node1".into(),
            wall_start_ns: 1_790_000_000_000_000_000,
            ..About::default()
        };
        let mut made = Made::about(folder.path(), &about, &[]).unwrap();
        for device in 0..32 {
            made.alloc(device, MIB, 0).unwrap();
        }
        made.end(Some(0)).unwrap();
    }
    let limited = "ulimit -d 131072; exec \"$0\" serve --once --dir \"$1\"";
    let mut command = Command::new("sh");
    let seen = command
        .args(["-c", limited])
        .arg(program())
        .arg(folder.path())
        .printed();
    assert_eq!(seen.code, Some(0), "{}", seen.said);
    let all = Text::of(&seen.text).value("vramshim_node_allocations_total", &[]);
    assert_eq!(all, Some(96_000.0));
}

#[test]
fn a_link_in_the_place_of_a_folder_is_not_followed() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    allocates(elsewhere.path(), 1, 1, 1);
    let served = Served::start(folder.path(), &["--keep-ended", "8000h"]);
    served.scrape();
    std::fs::remove_dir(&inner).unwrap();
    symlink(elsewhere.path(), &inner).unwrap();
    assert_eq!(scrape_anew(&served).sum("vramshim_node_processes", &[]), 0.0);
}

#[test]
fn devices_that_journals_claim_are_bounded_and_each_user_names_some() {
    let folder = tempfile::tempdir().unwrap();
    let mut theirs = Vec::new();
    for pid in 0..20u8 {
        let uuids: Vec<[u8; 16]> = (1..=32)
            .map(|device| [[pid + 1; 15].as_slice(), &[device]].concat().try_into().unwrap())
            .collect();
        theirs.push(on_devices(folder.path(), 100 + u32::from(pid), &uuids, MIB));
    }
    if !give_away(&theirs) {
        return left_out("root's right to give files away");
    }
    on_devices(folder.path(), 900, &[[0xff; 16]], 2 * MIB);
    let (text, _) = once(folder.path(), &[]);
    let all = text
        .0
        .iter()
        .filter(|(name, ..)| name == "vramshim_device_total_bytes")
        .count();
    assert!((1..=256).contains(&all), "{all} devices");
    let own = [("uuid", "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff")];
    assert_eq!(text.value("vramshim_device_total_bytes", &own), Some((2 * MIB) as f64));
    // Whose figure is the true one is not known.
    on_devices(folder.path(), 901, &[[0xff; 16]], 1 << 63);
    assert_eq!(
        once(folder.path(), &[]).0.value("vramshim_device_total_bytes", &own),
        None
    );
}

#[test]
fn the_total_of_nvml_stays_when_it_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libnvidia-ml.so.1");
    symlink(simulated("libnvidia-ml.so.1"), &library).unwrap();
    symlink(simulated("libcuda.so.1"), folder.path().join("libcuda.so.1")).unwrap();
    let mut command = Command::new(program());
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--keep-ended", "8000h", "--dir"])
        .arg(folder.path());
    command
        .env("LD_LIBRARY_PATH", folder.path())
        .env("SIMGPU_MEMORY", "1GiB");
    let served = Served::of(&mut command);
    let told = served.scrape();
    let (_, labels, total) = told
        .0
        .iter()
        .find(|(name, ..)| name == "vramshim_device_total_bytes")
        .expect("a device");
    let uuid = labels[0].1.clone();
    assert!(told.value("vramshim_device_used_bytes", &[("uuid", &uuid)]).is_some());
    let digits: String = uuid.trim_start_matches("GPU-").replace('-', "");
    let bytes: Vec<u8> = (0..16)
        .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    on_devices(folder.path(), 1, &[bytes.try_into().unwrap()], 1 << 63);
    let of_device = |text: &Text, name: &str| text.value(&format!("vramshim_device_{name}_bytes"), &[("uuid", &uuid)]);
    assert_eq!(of_device(&scrape_anew(&served), "total"), Some(*total));
    std::fs::remove_file(library).unwrap();
    let without = scrape_anew(&served);
    assert_eq!(
        (of_device(&without, "total"), of_device(&without, "used")),
        (Some(*total), None)
    );
}

#[test]
fn sums_of_what_journals_claim_do_not_overflow() {
    let folder = tempfile::tempdir().unwrap();
    for pid in 1..=3 {
        let path = allocates(folder.path(), pid, 1, 1);
        let mut bytes = std::fs::read(&path).unwrap();
        // So many slots were taken, and the file has one.
        for (place, value) in [
            (offset_of!(Header, claimed), 1u64 << 63),
            (offset_of!(Header, slots), 0),
        ] {
            bytes[place..place + 8].copy_from_slice(&value.to_le_bytes());
        }
        std::fs::write(path, bytes).unwrap();
    }
    let (text, said) = once(folder.path(), &[]);
    let lost = text.value("vramshim_node_events_lost_total", &[]);
    assert_eq!(lost, Some(u64::MAX as f64), "{said}");
}

#[test]
fn a_folder_of_accounts_with_any_number_of_names_is_told_once() {
    let (journals, accounts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for number in 0..5000 {
        std::fs::write(accounts.path().join(format!("{number}.account")), "").unwrap();
    }
    let (text, said) = once(journals.path(), &["--accounts", accounts.path().to_str().unwrap()]);
    // 4096 names were looked at, and the rest is one more problem.
    assert_eq!(
        text.value("vramshim_serve_unreadable", &[("what", "account")]),
        Some(4097.0),
        "{said}"
    );
}
