//! Journals that are played: their device, their limit, and what PyTorch's cache asked for.

use super::*;
use support::made::direct;

/// The journal of a job on a device of 24 GiB that made these calls.
fn journal(folder: &Path, limit: Option<u64>, software: &[u8], calls: &[Event]) -> PathBuf {
    let journal = Journal::create(&Options {
        directory: folder.into(),
        strategy: "passthrough".into(),
        job: "train".into(),
        max_bytes: 1 << 20,
        command_line: b"python\0train.py".to_vec(),
        environment: Vec::new(),
    })
    .unwrap();
    journal.device(&Device {
        total_memory: 24 << 30,
        uuid: [7; 16],
        name: "GPU".into(),
        limit,
        ..Device::default()
    });
    journal.software(software);
    for event in calls {
        journal.write(event.encode(Api::cudaMalloc, 0));
    }
    journal.path().to_owned()
}

const GIB: u64 = 1 << 30;

#[test]
fn a_job_that_died_asking_for_more_than_its_device_does_not_fit_it() {
    let failed = Event::AllocFailed {
        class: Class::Linear.into(),
        requested: 40 * GIB,
        result: 2,
        over_limit: false,
        guard: None,
    };
    let folder = tempfile::tempdir().unwrap();
    let path = journal(
        folder.path(),
        None,
        b"",
        &[direct(Class::Linear, 1 << 32, GIB), failed, failed],
    );
    let page = replay(&path, &["--json", "--strategy", "passthrough,auto_growth"]).json();
    assert_eq!(page["device_memory"], 24 * GIB, "from the journal's header");
    for row in page["strategies"].as_array().unwrap() {
        assert_eq!(row["fits"], false, "{row}");
        assert!(row["smallest_device"].as_u64().unwrap() >= 41 * GIB, "{row}");
    }
}

#[test]
fn the_device_of_a_replay_is_as_large_as_the_jobs_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = journal(
        folder.path(),
        Some(8 * GIB),
        b"",
        &[direct(Class::Linear, 1 << 32, GIB)],
    );
    let page = replay(&path, &["--json"]).json();
    assert_eq!(page["device_memory"], 8 * GIB);
    assert_says(&page["notes"].to_string(), "as large as the job's limit, 8.00 GiB");
}

#[test]
fn requests_of_pytorchs_cache_are_called_its_segments() {
    let folder = tempfile::tempdir().unwrap();
    let torch = b"framework=PyTorch 2.12.0";
    let path = journal(folder.path(), None, torch, &[direct(Class::Linear, 1 << 32, GIB)]);
    let text = replay(&path, &[]).text;
    assert_says(&text, "these requests are PyTorch's segments, not its tensors");
    let path = journal(folder.path(), None, b"", &[direct(Class::Linear, 1 << 32, GIB)]);
    let text = replay(&path, &[]).text;
    assert!(!text.contains("PyTorch's segments"), "{text}");
    // Under expandable segments PyTorch maps memory, and no request is left to play.
    let path = journal(folder.path(), None, torch, &[direct(Class::Vmm, 7, 20 * GIB)]);
    let output = replay(&path, &[]);
    assert_eq!(output.code, Some(1));
    let told = output.said;
    assert!(told.contains("memory of class vmm (such as PyTorch's"), "{told}");
}

#[test]
fn settings_that_no_device_can_have_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = journal(folder.path(), None, b"", &[direct(Class::Linear, 1 << 32, GIB)]);
    for (arguments, code) in [
        (&["--chunk", "999GiB"][..], 2),
        (&["--chunk", "999GiB", "--device-memory", "1TiB"], 0),
        (&["--tight", "--strategy", "torch,passthrough"], 2),
        // 24 bytes are not meant.
        (&["--device-memory", "24"], 2),
    ] {
        let output = replay(&path, arguments);
        assert_eq!(output.code, Some(code), "{arguments:?}");
        assert_eq!(output.text.is_empty(), code == 2, "{arguments:?}");
    }
}
