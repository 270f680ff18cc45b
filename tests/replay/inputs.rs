//! The inputs that `vramshim replay` can read, and its messages about files that it cannot read.

use std::path::Path;

use base::api::{Api, Class};
use base::shortage::Guard;
use journal::format::Event;

use crate::formats::hostile::{pickled, snapshot_of};
use crate::replay::{MIB, peaks, replay, row};
use support::made::Made;
use support::{Fields, Job, assert_says, client};

#[test]
fn a_size_that_is_none_is_told_by_its_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.pickle");
    let event = serde_json::json!({"action": "alloc", "addr": 4096, "size": -5, "stream": 0});
    let page = serde_json::json!({"segments": [], "device_traces": [[event]]});
    std::fs::write(&path, snapshot_of(&page)).unwrap();
    let output = replay(&path, &[]);
    let said = &output.said;
    assert_eq!(output.code, Some(1));
    assert_says(&said, "snapshot.pickle: is no memory snapshot of PyTorch");
    assert_says(&said, "-5");
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
        "vramshim-pytorch\t1\t70\t2.12.0\nS\t{at}\t0\t{segment}\t{}\nA\t{at}\t0\t{segment}\t{}\t0\t0\n\
         A\t{at}\t0\t{other}\t{MIB}\t77\t0\nF\t{}\t0\t{segment}\nD\t{at}\t3\t0\n",
        64 * MIB,
        40 * MIB,
        at + 300
    );
    std::fs::write(path.with_extension("tensors"), tensors).unwrap();
    let page = replay(folder.path(), &["--json"]).ok().json();
    assert_eq!((&page["requests"], &page["peak_live"]), (&3.into(), &(41 * MIB).into()));
    let notes = page["notes"].to_string();
    assert!(notes.contains("those for PyTorch's recorded tensors"), "{notes}");
    assert!(!notes.contains("segments"), "{notes}");
    // No tensor waits for the GPU when it is freed, though each is on a stream of its own.
    for row in page["strategies"].list() {
        assert!(row["name"] == "passthrough" || row["waits_in_frees"] == 0, "{page}");
    }
}

/// A job gives its cache back between two tensors, so it never holds the segments of both.
#[test]
fn what_pytorch_gave_back_is_given_back_in_replay() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::with(folder.path(), 70, 0, "", "framework=PyTorch 2.12.0").unwrap();
    let mut tensors = "vramshim-pytorch\t1\t70\t2.12.0\n".to_owned();
    for (address, size) in [(0x7f00_0000_0000u64, 64 * MIB), (0x7f10_0000_0000, 128 * MIB)] {
        job.alloc_at(0, address, size, 0).unwrap();
        let at = 1_790_000_000_000_000 + job.now_ns() / 1000;
        tensors += &format!(
            "S\t{at}\t0\t{address}\t{size}\nA\t{}\t0\t{address}\t{size}\t0\t0\nF\t{}\t0\t{address}\n\
             U\t{}\t0\t{address}\t{size}\n",
            at + 100,
            at + 200,
            at + 1000
        );
        job.free(0, address, size).unwrap();
    }
    let path = job.end(Some(0)).unwrap();
    std::fs::write(path.with_extension("tensors"), tensors).unwrap();
    let page = replay(folder.path(), &["--json", "--strategy", "torch"]).ok().json();
    assert_eq!(page["strategies"][0]["peak_reserved"], 128 * MIB, "{page:#}");
}

/// A job with 12 of 16 MiB in the pool of a graph asks for 8 MiB and dies.
#[test]
fn tensors_in_private_pools_serve_their_pool_alone_and_a_failure_leaves_least_figures() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::with(folder.path(), 70, 0, "", "framework=PyTorch 2.12.0").unwrap();
    let (at, segment) = (1_790_000_000_000_000u64, 0x7f00_0000_0000u64);
    job.alloc_at(0, segment, 12 * MIB, 0).unwrap();
    let path = job.end(Some(1)).unwrap();
    let lines = |pool: &str| {
        format!(
            "vramshim-pytorch\t1\t70\t2.12.0\nS\t{at}\t0\t{segment}\t{}\t{pool}\nA\t{at}\t0\t{segment}\t{}\t0\t0\t-\t{pool}\n\
             F\t{at}\t0\t{segment}\nO\t{at}\t0\t{}\t0\nD\t{at}\t2\t0\n",
            12 * MIB,
            12 * MIB,
            8 * MIB
        )
    };
    for (pool, fits) in [("0.0", true), ("77.1", false)] {
        std::fs::write(path.with_extension("tensors"), lines(pool)).unwrap();
        let arguments = ["--device-memory", "16MiB", "--json"];
        let page = replay(folder.path(), &arguments).ok().json();
        assert!(
            page["at_least"] == true && row(&page, "torch")["fits"] == fits,
            "{page}"
        );
        assert_eq!(row(&page, "auto_growth")["not_known"].is_null(), fits, "{page}");
        let text = replay(folder.path(), &arguments[..2]).text;
        assert_says(&text, "at least ");
        assert!(!text.contains(" yes"), "nothing says that the whole job fits: {text}");
    }
}

/// A pickle contains an object once, and later refers to the object by a number.
#[test]
fn a_snapshot_may_refer_to_the_same_object_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.pickle");
    let text = |text: &str| pickled(&text.into());
    let event = |action: &str, number: u8| {
        let fields = serde_json::json!({"action": action, "addr": 4096, "size": 3145728});
        let frames = match number {
            1 => [b"]q\x09".as_slice(), &pickled(&serde_json::json!({"line": 7})), b"a"].concat(),
            _ => b"h\x09".to_vec(),
        };
        [&pickled(&fields)[..], b"q", &[number], &text("frames"), &frames, b"s"].concat()
    };
    let (made, freed) = (event("alloc", 1), event("free_completed", 2));
    let trace = [b"]q\x03(", &made[..], &freed, b"h\x01h\x02e"].concat();
    // The second device's history refers to the first device's, and so does another entry of the page.
    let traces = [b"](", &trace[..], b"h\x03e"].concat();
    let (name, again) = (text("device_traces"), text("again"));
    let page = [b"\x80\x04}(", &name[..], &traces, &again, b"h\x03u."].concat();
    std::fs::write(&path, page).unwrap();
    for device in ["0", "1"] {
        let page = replay(&path, &["--json", "--device", device]).ok().json();
        assert_eq!((&page["requests"], &page["peak_live"]), (&4.into(), &(3 * MIB).into()));
        let other = if device == "0" { "of 1" } else { "of 0" };
        assert_says(page["notes"][0].text(), other);
    }
    let absent = replay(&path, &["--device", "2"]);
    assert_eq!(absent.code, Some(2));
    assert_says(&absent.said, "tells of no device 2: there is 0, 1");
}

/// What is wrong with a file: the exit code is 1, and the message names the file once.
fn refused(path: &Path, content: &[u8], words: &str) {
    std::fs::write(path, content).unwrap();
    let output = replay(path, &[]);
    let said = &output.said;
    assert_eq!(output.code, Some(1), "{said}");
    assert_eq!(said.matches(&*path.to_string_lossy()).count(), 1, "{said}");
    assert_says(said, words);
}

#[test]
fn files_that_are_no_trace_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let (log, compressed) = (file("trace.csv"), file("trace.csv.gz"));
    let rows = |rows: &str| format!("Thread,Time,Action,Pointer,Size,Stream\n{rows}");
    let negative = rows("0,0,allocate,0x1,1,0\n0,0,allocate,0x2,-5,0\n");
    for (content, words) in [
        ("", "is empty"),
        ("a,b\n1,2\n", "is of another kind"),
        ("root:x:0:0\n", "is of another kind"),
        ("{\"traceEvents\": []}", "RMM's log"),
        ("\u{7f}ELF\u{2}\u{1}", "RMM's log"),
        ("vramshim-pytorch\t1\t7\t2.12.0\n", "RMM's log"),
        ("Thread,Time,Action,Pointer,Stream\n", "line 1: has no column Size"),
        (&rows("0,0,allocate,0x1,many,0\n"), "line 2: Size \"many\""),
        (&negative, "line 3: Size \"-5\""),
        (&rows("0,0,free,-1,5,0\n"), "line 2: Pointer \"-1\""),
        (&rows("0,0,allocate,0x1\n"), "line 2: no Size"),
        (&rows("0,0,borrow,0x1,1,0\n"), "line 2: action \"borrow\""),
        (&rows("0,0,allocate,0x1,0,0\n"), "no request"),
        (&rows(""), "no request"),
    ] {
        refused(&log, content.as_bytes(), words);
    }
    // A gzip header and one stored block, whose length field says 9 bytes more than the file has.
    let text = rows("0,0,allocate,0x1,1,0\n");
    let length = text.len() as u16 + 9;
    let mut cut = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1];
    cut.extend([length.to_le_bytes(), (!length).to_le_bytes()].concat());
    cut.extend(text.as_bytes());
    refused(&compressed, &cut[..5], "line 1");
    refused(&compressed, b"", "line 1");
    refused(&compressed, b"no gzip at all", "line 1");
    // Logs of jobs that were killed while they wrote.
    let line = "0,0,allocate,0x1,1,0\n";
    let after = |cut: &str| rows(&(line.to_owned() + cut)).into_bytes();
    for (path, content, words) in [
        (&compressed, cut, "line 3"),
        (&log, after("0,0,allocate,0x2,"), "line 3: Size"),
        (&log, after("0,0,allocate,0x2,5"), "line 3: no Stream"),
        (&log, after("0,0,al"), "line 3: action"),
    ] {
        std::fs::write(path, content).unwrap();
        let output = replay(path, &["--json"]);
        let page = output.json();
        let figures = (&page["requests"], &page["peak_live"]);
        assert_eq!(figures, (&1.into(), &1.into()), "the rows before the fault are played");
        assert_says(page["notes"][0].text(), words);
    }
    let alone = file("alone");
    std::fs::create_dir(&alone).unwrap();
    let journal = alone.join("cut.vraj");
    refused(&journal, b"VRAMSHIM", "");
    // The same as the only journal of a folder.
    let output = replay(&alone, &[]);
    assert_eq!(output.code, Some(1));
    let said = &output.said;
    assert_eq!(said.matches(&*journal.to_string_lossy()).count(), 1, "{said}");
    let snapshot = file("snapshot.pickle");
    refused(&snapshot, b"\x80\x04}\x94.", "missing field `device_traces`");
    for content in [
        &b"\x80\x04]K\x01a."[..],
        b"\x80\x04}\x94(",
        b"",
        b"cos\nsystem\n(S'exit'\ntR.",
    ] {
        refused(&snapshot, content, "is no memory snapshot of PyTorch");
    }
    // A trace names one event 60,000 times, and each of 128 devices names the trace.
    let (events, traces) = (b"h\0".repeat(60_000), b"h\x01".repeat(128));
    let name = pickled(&"device_traces".into());
    let inner = [b"](}\x94", &events[..], b"e\x940](", &traces, b"es."].concat();
    let again = [b"\x80\x04}", &name[..], &inner].concat();
    refused(&snapshot, &again, "again and again");
    for names in ["torch,best", "all,best", "Torch", ""] {
        assert_eq!(replay(&log, &["--strategy", names]).code, Some(2), "{names}");
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
    let journal = &finished.journals()[0];
    let page = |arguments: &[&str]| replay(journal, &[arguments, &["--json"]].concat()).json();
    let peaks = ["0", "1"].map(|device| page(&["--device", device])["peak_live"].number());
    assert_ne!(peaks[0], peaks[1]);
    let unasked = page(&[]);
    assert!(peaks.contains(&unasked["peak_live"].number()));
    assert_says(&unasked["notes"].to_string(), "--device");
    let none = replay(journal, &["--device", "7"]);
    assert_eq!(none.code, Some(2));
    assert_says(&none.said, "the journal tells of no device 7: there is 0, 1");
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
    assert_eq!(none.code, Some(1), "no journal");
    add(70);
    let one = replay(folder.path(), &["--strategy", "passthrough"]);
    assert_says(&one.ok().text, "node1-70-1.vraj");
    add(71);
    let two = replay(folder.path(), &[]);
    assert_eq!(two.code, Some(2), "{}", two.said);
    assert_says(&two.said, "node1-70-1.vraj");
    assert_says(&two.said, "node1-71-1.vraj");
}

#[test]
fn times_and_numbers_that_cannot_be_read_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    std::fs::write(&path, crate::replay::csv("allocate 4096 1")).unwrap();
    for (code, rows) in [
        (0, "--lag 1min|--lag 1m|--lag 0.5h|--lag 20ms|--lag 0|--repeat 3"),
        (
            0,
            "--device-memory 1GiB|--chunk 2MiB|--chunk 999GiB --device-memory 1TiB",
        ),
        (2, "--lag 1day|--lag 5|--lag -1ms|--repeat x|--repeat 0|--device first"),
        // 24 bytes are not meant, and no device is so large.
        (2, "--device-memory 24|--chunk 999GiB|--device-memory much|--chunk much"),
    ] {
        for row in rows.split('|') {
            let output = replay(&path, &row.split(' ').collect::<Vec<_>>());
            assert_eq!(output.code, Some(code), "{row}: {}", output.said);
            assert_eq!(output.text.is_empty(), code == 2, "{row}");
        }
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
    let page = replay(&path, &["--json", "--strategy", "passthrough,auto_growth"]).json();
    let mut rows = page["strategies"].list().iter();
    assert!(rows.all(|row| row["fits"] == true), "{page}");
    assert!(!page["notes"].to_string().contains("last request"), "{page}");
}
