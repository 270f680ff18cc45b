//! Each view of a running job has the same figures, to the byte: what is live, what is cached and what is reserved. What is
//! not known is no figure.

use std::ffi::OsStr;
use std::time::{SystemTime, UNIX_EPOCH};

use support::member::{Host, Member};
use support::random::Random;
use support::{vramshim, vramshim_with};

use super::*;

/// A job of a C program in which a library of this name is loaded.
fn member(host: &Host, library: &str) -> Member {
    let library = client("support/clients/count_sync.c", library, &["-shared", "-fPIC"]);
    let mut member = Member::start(host.job().preload(library).env("VRAMSHIM_CONTROL", "1"));
    assert_eq!(member.allocate(3 * MIB), 0);
    member
}

/// What `top` and `serve` say of device 0 of the only process in a folder: live, cached and reserved bytes.
pub fn seen(process: impl AsRef<OsStr>, journals: &Path) -> [(&'static str, [Option<u64>; 3]); 2] {
    let top = vramshim_with(&["top", "--once", "--json"], [process]).json();
    let held = &first(&top["processes"][0]["devices"], "device", json!(0))["held"];
    let metrics = vramshim_with(&["serve", "--once", "--dir"], [journals]);
    let metrics = metrics.ok().text;
    let metric = |name: &str| {
        let begin = format!("vramshim_{name}_bytes{{");
        let is_it = |line: &&str| line.starts_with(&begin) && line.contains("device=\"0\"");
        let line = metrics.lines().find(is_it)?;
        line.rsplit_once(' ')?.1.parse().ok()
    };
    [
        ("top", parts(held)),
        ("serve", ["live", "cached", "reserved"].map(metric)),
    ]
}

fn parts(held: &Value) -> [Option<u64>; 3] {
    ["live", "cached", "reserved"].map(|part| held[part].as_u64())
}

fn first(list: &Value, name: &str, value: Value) -> Value {
    let found = list.list().iter().find(|one| one[name] == value).cloned();
    found.unwrap_or_else(|| panic!("no {name} {value}: {list:#}"))
}

/// Checks what each view says of device 0: live, cached and reserved bytes.
fn assert_seen(member: &Member, wanted: [Option<u64>; 3], context: &str) {
    let pid = member.pid();
    let reconciled = vramshim(&["reconcile", "--json", &pid]).json();
    let stats = vramshim(&["ctl", &pid, "stats", "--json"]).ok().json()["stats"].clone();
    let reconciled = first(&reconciled["devices"][0]["processes"], "pid", json!(member.child.id()));
    let of_ctl = ["live_bytes", "cached_bytes", "reserved"];
    let [top, serve] = seen(&pid, &member.journals());
    for (view, told) in [
        top,
        serve,
        ("reconcile", parts(&reconciled["held"])),
        ("ctl", of_ctl.map(|name| stats[format!("device.0.{name}")].as_u64())),
    ] {
        assert_eq!(told, wanted, "{view}, {context}");
    }
}

pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

#[test]
fn each_view_of_a_running_pytorch_job_agrees() {
    const SEGMENT: u64 = 64 * MIB;
    let host = Host::new("8GiB");
    let mut member = member(&host, "libtorch_cuda.so");
    let mut random = Random::new(45);
    for _ in 0..6 {
        assert_eq!(member.allocate(SEGMENT), 0);
    }
    let reserved = 3 * MIB + 6 * SEGMENT;
    assert_seen(&member, [None, None, Some(reserved)], "nobody told of the tensors");
    let page = support::inspect(&member.journals()).remove(0);
    let live = page["live"].list().iter().filter(|one| one["size"] == SEGMENT);
    let address = |one: &Value| u64::from_str_radix(one["address"].text().trim_start_matches("0x"), 16).unwrap();
    let segments: Vec<u64> = live.map(address).collect();
    let began = now_us();
    let pid = member.pid();
    let mut text = format!("vramshim-pytorch\t1\t{pid}\t2.12.0\tstate\nT\t0\t/x/a.py\t1\tf\n");
    for segment in &segments {
        text += &format!("S\t{began}\t0\t{segment}\t{SEGMENT}\n");
    }
    let path = PathBuf::from(page["path"].text()).with_extension("tensors");
    for moment in 0..4 {
        let mut used = 0;
        let now = now_us();
        for segment in &segments {
            text += &format!("F\t{now}\t0\t{segment}\t1\n");
            let bytes = random.number() % (SEGMENT / 512) * 512;
            if bytes > 0 {
                text += &format!("A\t{now}\t0\t{segment}\t{bytes}\t0\t0\t{bytes}\t0.0\n");
                used += bytes;
            }
        }
        text += &format!("B\t{now}\t0\t{used}\t{used}\t{used}\t{}\nD\t{now}\t1\t0\n", 6 * SEGMENT);
        std::fs::write(&path, &text).unwrap();
        let (live, cached) = (3 * MIB + used, 6 * SEGMENT - used);
        let wanted = [live, cached, reserved];
        assert_seen(&member, wanted.map(Some), &format!("moment {moment}"));
        let device = support::inspect(&member.journals()).remove(0)["devices"][0].clone();
        let [live, reserved] = ["allocated", "reserved"].map(|level| device[level]["current"].number());
        assert_eq!([live, device["free_inside"].number(), reserved], wanted, "{moment}");
    }
    let table = vramshim_with(&["top", "--once"], [member.pid()]).ok().text;
    assert!(!table.contains("utilis") && table.contains("cached"), "{table}");
    // What was said before memory came does not hold.
    assert_eq!(member.allocate(MIB), 0);
    let reserved = reserved + MIB;
    assert_seen(&member, [None, None, Some(reserved)], "memory came");
    // Nor does what was said long ago, for a job that runs.
    let old = now_us() - 60_000_000;
    let text = format!("vramshim-pytorch\t1\t1\t2.12.0\tstate\nB\t{old}\t0\t1\t1\t1\t{SEGMENT}\nD\t{old}\t1\t0\n");
    std::fs::write(&path, text).unwrap();
    assert_seen(&member, [None, None, Some(reserved)], "said too long ago");
    let table = vramshim_with(&["top", "--once"], [member.pid()]).ok().text;
    assert_says(&table, "at most 388.0 MiB");
    assert_says(&table, "what is used inside PyTorch's cache (it last told 6");
}

#[test]
fn other_caches_are_not_called_live() {
    let host = Host::new("8GiB");
    let member = member(&host, "libonnxruntime_providers_cuda.so");
    assert_seen(&member, [None, None, Some(3 * MIB)], "");
    let table = vramshim_with(&["reconcile"], [member.pid()]).text;
    assert_says(&table, "what is used inside the cache of ONNX Runtime is not known");
    assert!(!table.contains(" live  "), "{table}");
}

#[test]
fn a_dump_says_that_no_snapshot_was_had() {
    let host = Host::new("8GiB");
    let member = member(&host, "libtorch_cuda.so");
    let path = PathBuf::from(support::inspect(&member.journals())[0]["path"].text()).with_extension("tensors");
    let dump = |until: u64| {
        let now = now_us();
        let text = format!("vramshim-pytorch\t1\t1\t2.12.0\tstate\nB\t{now}\t0\t1\t1\t1\t2\nD\t{until}\t1\t0\n");
        std::fs::write(&path, text).unwrap();
        let to = host.folder.path().join("now.vraj");
        vramshim_with(&["ctl", &member.pid(), "dump"], [to]).ok().text
    };
    let told = dump(now_us() - 5_000_000);
    assert_says(
        &told,
        "no new snapshot of PyTorch's tensors was had; the last one is 7.",
    );
    assert!(!dump(now_us() + 5_000_000).contains("snapshot"));
}

/// What another process keeps free in its pool goes back by a trim. A failure that the job survived does not read like a death.
#[test]
fn a_neighbour_that_could_give_back_is_named_with_the_command() {
    let host = Host::new("8GiB");
    let job = || host.job().strategy(support::AUTO_GROWTH).env("VRAMSHIM_CONTROL", "1");
    let mut holder = Member::start(job());
    assert_eq!(holder.allocate(5 << 30), 0);
    assert_eq!(holder.ask("f 0"), "0");
    let mut failing = Member::start(job().env("VRAMSHIM_DIR", holder.journals()));
    assert_eq!((failing.allocate(6 << 30), failing.allocate(MIB)), (2, 0));
    let jobs = support::inspect(&holder.journals());
    let is_failing = |job: &&Value| job["pid"].number() == u64::from(failing.child.id());
    let path = jobs.iter().find(is_failing).expect("its journal")["path"].text();
    let why = vramshim_with(&["why", "--json"], [path]).json();
    let went_on = "the job went on; its last failed request: another process";
    assert_says(why["why"]["text"].text(), went_on);
    let (next, pid) = (why["next"][0].text(), holder.pid());
    assert_says(
        next,
        &format!("5.00 GiB of it lie free now and go back by vramshim ctl {pid} trim --device 0"),
    );
    let report = vramshim_with(&["report", "--json"], [path]).json();
    let verdict = &report["processes"][0]["verdict"];
    assert_eq!(verdict["next"], why["steps"]);
    assert!(verdict["explanation"].text().starts_with(went_on), "{verdict}");
}
