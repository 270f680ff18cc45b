//! The inputs that `vramshim replay` can read, and its messages about files that it cannot read.

use base::api::{Api, Class};
use base::shortage::Guard;
use journal::format::Event;
use serde_json::{Value, json};

use crate::replay::{MIB, peaks, replay};
use support::made::Made;
use support::{Fields, Job, assert_fields, client};

fn pickled(value: &Value) -> String {
    // Protocol 0 of pickle is text.
    match value {
        Value::Bool(yes) => format!("I0{}\n", u8::from(*yes)),
        Value::Number(number) => format!("I{number}\n"),
        Value::String(text) => format!("V{text}\n"),
        Value::Array(list) => list
            .iter()
            .fold("(l".to_owned(), |all, entry| all + &pickled(entry) + "a"),
        Value::Object(fields) => fields.iter().fold("(d".to_owned(), |all, (name, entry)| {
            format!("{all}V{name}\n{}s", pickled(entry))
        }),
        Value::Null => "N".to_owned(),
    }
}

#[test]
fn a_snapshot_says_whether_segments_were_expandable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.pickle");
    let snapshot = |size: i64, expandable: bool| {
        let event = serde_json::json!({"action": "alloc", "addr": 4096, "size": size, "stream": 0});
        let page = serde_json::json!({"segments": [], "device_traces": [[event]],
            "allocator_settings": {"expandable_segments": expandable}});
        std::fs::write(&path, pickled(&page) + ".").unwrap();
        replay(&path, &["--json", "--strategy", "auto_growth,torch_expandable"])
    };
    for (expandable, now) in [(false, "torch"), (true, "torch_expandable")] {
        let output = snapshot(2 << 20, expandable);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let page: Value = serde_json::from_slice(&output.stdout).unwrap();
        let advice = &page["recommendation"];
        assert_eq!(advice["compared_with"], now);
        let setting = "vramshim run --torch allocator --strategy auto_growth";
        assert_fields(&advice, json!({"setting": setting, "saves": 18 * MIB}), "");
        // The strategy of the snapshot has no row, because `--strategy` does not name it.
        assert_eq!(page["strategies"].list().len(), 2);
    }
    let output = snapshot(-5, false);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("snapshot.pickle: is no memory snapshot of PyTorch") && said.contains("-5"),
        "{said}"
    );
}

#[test]
fn pytorchs_recorded_tensors_are_played_and_not_its_segments() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::with(folder.path(), 70, 0, "", "framework=PyTorch 2.12.0").unwrap();
    let segment = 0x7f00_0000_0000u64;
    job.alloc_at(0, segment, 64 * MIB, 0).unwrap();
    let path = job.end(Some(0)).unwrap();
    let (at, other) = (1_790_000_000_000_000u64, segment + 40 * MIB);
    let tensors = format!(
        "vramshim-tensors\t1\t70\t2.12.0\nS\t{at}\t0\t{segment}\t{}\nA\t{at}\t0\t{segment}\t{}\t0\t0\n\
         A\t{at}\t0\t{other}\t{MIB}\t77\t0\nF\t{}\t0\t{segment}\nD\t{at}\t3\t0\n",
        64 * MIB,
        40 * MIB,
        at + 300
    );
    std::fs::write(path.with_extension("tensors"), tensors).unwrap();
    let output = replay(folder.path(), &["--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_fields(&page, json!({"requests": 3, "peak_live": 41 * MIB}), "");
    assert_eq!(page["recommendation"]["compared_with"], "torch");
    let notes = page["notes"].to_string();
    assert!(notes.contains("those for PyTorch's recorded tensors"), "{notes}");
    assert!(!notes.contains("segments"), "{notes}");
    // No tensor waits for the GPU when it is freed, though each is on a stream of its own.
    let strategies = page["strategies"].list();
    assert!(
        strategies
            .iter()
            .filter(|row| row["name"] != "passthrough")
            .all(|row| row["waits_in_frees"] == 0),
        "{page}"
    );
}

#[test]
fn a_snapshot_does_not_say_how_large_the_device_is() {
    let event = serde_json::json!({"action": "alloc", "addr": 4096, "size": MIB, "stream": 0});
    let page = serde_json::json!({"segments": [], "device_traces": [[event]], "allocator_settings": {}});
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.pickle");
    std::fs::write(&path, pickled(&page) + ".").unwrap();
    let told = |arguments: &[&str]| String::from_utf8(replay(&path, arguments).stdout).unwrap();
    assert!(
        told(&[]).contains("it is taken as 80.0 GiB; --device-memory sets it"),
        "{}",
        told(&[])
    );
    assert!(!told(&["--device-memory", "4GiB"]).contains("is taken as"));
}

/// A pickle contains an object once, and later refers to the object by a number.
#[test]
fn a_snapshot_may_refer_to_the_same_object_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.pickle");
    let event = |action: &str, number: u32| {
        let frames = if number == 1 { "(lp9\n(dVline\nI7\nsa" } else { "g9\n" };
        format!("(dp{number}\nVaction\nV{action}\nsVaddr\nI4096\nsVsize\nI3145728\nsVframes\n{frames}sa")
    };
    let trace = format!("(lp3\n{}{}g1\nag2\na", event("alloc", 1), event("free_completed", 2));
    // The second device's history refers to the first device's, and so does another entry of the page.
    let page = format!("(dVdevice_traces\n(l{trace}ag3\nasVagain\ng3\ns.");
    std::fs::write(&path, page).unwrap();
    for device in ["0", "1"] {
        let output = replay(&path, &["--json", "--device", device]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let page: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_fields(&page, json!({"requests": 4, "peak_live": 3 * MIB}), "");
        let other = if device == "0" { "of 1" } else { "of 0" };
        assert!(page["notes"][0].text().contains(other), "{page}");
    }
    let absent = replay(&path, &["--device", "2"]);
    let said = String::from_utf8_lossy(&absent.stderr).into_owned();
    assert_eq!(absent.status.code(), Some(2));
    assert!(said.contains("tells of no device 2: there is 0, 1"), "{said}");
}

#[test]
fn a_malicious_pickle_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.pickle");
    let nested = [
        b"\x80\x02".as_slice(),
        &b"]".repeat(100_000),
        &b"a".repeat(99_999),
        b".",
    ]
    .concat();
    let marks = [b"\x80\x02".as_slice(), &b"(".repeat(300_000), b"."].concat();
    // 50 lists, each of which holds the list before it twice.
    let doubled: Vec<u8> = b"]q\x00"
        .iter()
        .copied()
        .chain((0..50u8).flat_map(|number| [b']', b'h', number, b'a', b'h', number, b'a', b'q', number + 1]))
        .chain(*b".")
        .collect();
    for content in [nested, marks, doubled, b"cos\nsystem\n(S'exit'\ntR.".to_vec()] {
        std::fs::write(&path, &content).unwrap();
        let output = replay(&path, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("is no memory snapshot of PyTorch"), "{said}");
    }
}

#[test]
fn files_that_are_no_trace_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    let header = "Thread,Time,Action,Pointer,Size,Stream\n";
    let rows = |rows: &str| format!("{header}{rows}");
    for (content, words) in [
        (String::new(), "is empty: expected a first line Thread,Time"),
        (
            "a,b\n1,2\n".to_owned(),
            "looks like text without the first line of RMM's log, Thread,Time,Action,Pointer,Size,Stream: give a \
             journal (.vraj), a memory snapshot of PyTorch (.pickle) or RMM's log (.csv, .csv.gz)",
        ),
        ("root:x:0:0\n".to_owned(), "looks like text without the first line"),
        (
            "Thread,Time,Action,Pointer,Stream\n".to_owned(),
            "line 1: has no column Size",
        ),
        (
            rows("0,0,allocate,0x1,many,0\n"),
            "line 2: Size \"many\" is no number: expected",
        ),
        (
            rows("0,0,allocate,0x1,1,0\n0,0,allocate,0x2,-5,0\n"),
            "line 3: Size \"-5\" is no number: expected",
        ),
        (rows("0,0,free,-1,5,0\n"), "line 2: Pointer \"-1\" is no number"),
        (rows("0,0,allocate,0x1\n"), "line 2: no Size: the row is cut short"),
        (rows("0,0,borrow,0x1,1,0\n"), "line 2: action \"borrow\""),
        (rows("0,0,allocate,0x1,0,0\n"), "no request"),
        (rows(""), "no request"),
    ] {
        std::fs::write(&path, content).unwrap();
        let output = replay(&path, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words) && said.contains("trace.csv"), "{said}");
    }
    // A gzip header and one stored block, whose length field says 9 bytes more than the file has.
    let text = rows("0,0,allocate,0x1,1,0\n");
    let length = text.len() as u16 + 9;
    let mut cut = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1];
    cut.extend([length.to_le_bytes(), (!length).to_le_bytes()].concat());
    cut.extend(text.as_bytes());
    let compressed = folder.path().join("trace.csv.gz");
    for (content, words) in [
        (&cut[..5], "line 1: the compressed file is cut short"),
        (b"", "line 1: the compressed file is cut short"),
        (b"no gzip at all", "line 1: cannot be read"),
    ] {
        std::fs::write(&compressed, content).unwrap();
        let output = replay(&compressed, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("trace.csv.gz: ") && said.contains(words), "{said}");
    }
    // Logs of jobs that were killed while they wrote.
    for (path, content, words) in [
        (
            &compressed,
            &cut[..],
            "line 3: the compressed file is cut short: copy it again; what",
        ),
        (
            &path,
            rows("0,0,allocate,0x1,1,0\n0,0,allocate,0x2,").as_bytes(),
            "line 3: Size \"\" is no number",
        ),
        (
            &path,
            rows("0,0,allocate,0x1,1,0\n0,0,allocate,0x2,5").as_bytes(),
            "line 3: no Stream: the row is cut",
        ),
        (
            &path,
            rows("0,0,allocate,0x1,1,0\n0,0,al").as_bytes(),
            "line 3: action \"al\" is neither",
        ),
    ] {
        std::fs::write(path, content).unwrap();
        let output = replay(path, &["--json"]);
        let page: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_fields(
            &page,
            json!({"requests": 1, "peak_live": 1}),
            "the rows before the fault are played",
        );
        let note = page["notes"][0].text();
        assert!(
            note.contains(words) && note.contains("what comes before is played"),
            "{note}"
        );
    }
    let journal = folder.path().join("cut.vraj");
    std::fs::write(&journal, "VRAMSHIM").unwrap();
    // Named by itself, and as the only journal of the folder.
    for path in [&*journal, folder.path()] {
        let output = replay(path, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.matches(&journal.display().to_string()).count(), 1, "{said}");
    }
    let pickle = folder.path().join("snapshot.pickle");
    for (content, words) in [
        (&b"\x80\x04}\x94."[..], "missing field `device_traces`"),
        (b"\x80\x04]K\x01a.", "is no memory snapshot of PyTorch"),
        (b"\x80\x04}\x94(", "is no memory snapshot of PyTorch"),
        (b"", "is no memory snapshot of PyTorch"),
    ] {
        std::fs::write(&pickle, content).unwrap();
        let output = replay(&pickle, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(words), "{said}");
    }
    for names in ["torch,best", "all,best", "Torch", ""] {
        let output = replay(&path, &["--strategy", names]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("known: all, passthrough") && said.contains("paddle_naive_best_fit"),
            "{said}"
        );
    }
    for option in ["--device-memory", "--chunk", "--initial", "--reallocate"] {
        assert_eq!(replay(&path, &[option, "much"]).status.code(), Some(2), "{option}");
    }
}

#[test]
fn a_log_is_read_as_rmm_writes_it() {
    let text = "Thread,Time,Action,Pointer,Size,Stream\n0,0,allocate,0x100,5000,0\n0,0,allocate failure,(nil),99,0\n\
                0,0,free,(nil),0,0\n0,0,allocate,(nil),0,0\n0,0,allocate,0x100,7000,0\n0,0,free,0x100,7000,0\n";
    let (page, _) = peaks(text, &["--strategy", "passthrough"]);
    assert_eq!(page["peak_live"], 7000);
    // An allocation at the address of a live block implies that the block was freed.
    assert_eq!(page["unmatched"], 1);
}

#[test]
fn of_several_devices_one_is_played() {
    let client = client("support/clients/exercise.c", "linked", &["libcuda.so.1"]);
    let finished = Job::new(client).args(["1", "400", "1"]).run().ok();
    let page = |arguments: &[&str]| -> Value {
        let output = replay(&finished.journals()[0], &[arguments, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let peaks = ["0", "1"].map(|device| page(&["--device", device])["peak_live"].number());
    assert_ne!(peaks[0], peaks[1]);
    let unasked = page(&[]);
    assert!(peaks.contains(&unasked["peak_live"].number()));
    let notes = unasked["notes"].to_string();
    assert!(notes.contains("--device"), "{notes}");
    let none = replay(&finished.journals()[0], &["--device", "7"]);
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert_eq!(none.status.code(), Some(2));
    assert!(
        said.contains("the journal tells of no device 7: there is 0, 1"),
        "{said}"
    );
}

#[test]
fn a_folder_stands_for_its_only_journal() {
    let folder = tempfile::tempdir().unwrap();
    let add = |pid: u32| {
        let mut job = Made::new(folder.path(), pid, 0).unwrap();
        job.alloc(0, MIB, 0).unwrap();
        job.end(Some(0)).unwrap();
    };
    let none = replay(folder.path(), &[]);
    assert_eq!(none.status.code(), Some(1), "no journal");
    add(70);
    let one = replay(folder.path(), &["--strategy", "passthrough"]);
    let page = String::from_utf8_lossy(&one.stdout).into_owned();
    assert!(one.status.success() && page.contains("node1-70-1.vraj"), "{page}");
    add(71);
    let two = replay(folder.path(), &[]);
    let said = String::from_utf8_lossy(&two.stderr).into_owned();
    assert_eq!(two.status.code(), Some(2), "{said}");
    assert!(
        said.contains("node1-70-1.vraj") && said.contains("node1-71-1.vraj"),
        "{said}"
    );
}

#[test]
fn times_and_numbers_that_cannot_be_read_are_refused_with_what_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    std::fs::write(&path, crate::replay::csv(&[("allocate", 4096, MIB)])).unwrap();
    for lag in ["1min", "1m", "0.5h", "20ms", "0"] {
        let output = replay(&path, &["--lag", lag]);
        assert!(
            output.status.success(),
            "{lag}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    for (arguments, wanted) in [
        (["--repeat", "x"], "give a whole number from 1 to 10000"),
        (["--repeat", "0"], "give a whole number from 1 to 10000"),
        (["--device", "first"], "give a whole number from 0 on"),
        (["--lag", "1 day"], "give one with a unit, such as 500us, 20ms or 1s"),
    ] {
        let output = replay(&path, &arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(wanted), "{arguments:?}: {told}");
    }
}

/// A request that failed for another reason than memory would have failed under every strategy.
#[test]
fn a_wrong_request_is_not_played() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::new(folder.path(), 70, 0).unwrap();
    job.alloc(0, 500 * MIB, 0).unwrap();
    let refused = |result, guard| Event::AllocFailed {
        class: Class::Linear.into(),
        requested: 800 * MIB,
        result,
        over_limit: false,
        guard,
    };
    let of_device = Some(Guard {
        bytes: 1024 * MIB,
        of_device: true,
    });
    for event in [refused(1, None), refused(700, None), refused(2, of_device)] {
        job.happened(0, Api::cudaMalloc, event).unwrap();
    }
    let path = job.end(Some(1)).unwrap();
    let output = replay(&path, &["--json", "--strategy", "passthrough,auto_growth"]);
    let page: Value = serde_json::from_slice(&output.stdout).unwrap();
    for row in page["strategies"].list() {
        assert_eq!(row["fits"], true, "{row}");
    }
    assert!(!page["notes"].to_string().contains("last request"), "{page}");
}
