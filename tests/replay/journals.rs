//! Journals that are played: their device, their limit, and what PyTorch's cache asked for.

use journal::format::Device;
use journal::writer::About;
use support::GIB;
use support::made::{Made, direct, failed};

use super::*;

/// The journal of a job on a device of 24 GiB that made these calls.
fn journal(folder: &Path, limit: Option<u64>, software: &[u8], calls: &[Event]) -> PathBuf {
    let device = Device {
        total_memory: 24 * GIB,
        limit,
        ..Device::default()
    };
    let about = About {
        strategy: "passthrough".into(),
        software: software.into(),
        ..About::default()
    };
    let mut made = Made::about(folder, &about, &[device]).unwrap();
    for &call in calls {
        made.happened(0, Api::cudaMalloc, call).unwrap();
    }
    made.end(Some(1)).unwrap()
}

#[test]
fn a_job_that_died_asking_for_more_than_its_device_does_not_fit_it() {
    let failed = failed(40 * GIB, 2, false);
    let folder = tempfile::tempdir().unwrap();
    let calls = [direct(Class::Linear, 1 << 32, GIB), failed, failed];
    let path = journal(folder.path(), None, b"", &calls);
    let page = replay(&path, &["--json", "--strategy", "passthrough,auto_growth"]).json();
    assert_eq!(page["device_memory"], 24 * GIB, "from the journal's header");
    for row in page["strategies"].list() {
        assert_eq!(row["fits"], false, "{row}");
        assert!(row["smallest_device"].number() >= 41 * GIB, "{row}");
    }
}

#[test]
fn the_device_of_a_replay_is_as_large_as_the_jobs_limit() {
    let folder = tempfile::tempdir().unwrap();
    let calls = [direct(Class::Linear, 1 << 32, GIB)];
    let path = journal(folder.path(), Some(8 * GIB), b"", &calls);
    let page = replay(&path, &["--json"]).json();
    assert_eq!(page["device_memory"], 8 * GIB);
    assert_says(&page["notes"].to_string(), "as large as the job's limit, 8.00 GiB");
}

#[test]
fn requests_of_pytorchs_cache_are_called_its_segments() {
    let folder = tempfile::tempdir().unwrap();
    for (number, software) in [b"framework=PyTorch 2.12.0".as_slice(), b""].into_iter().enumerate() {
        let calls = [direct(Class::Linear, 1 << 32, GIB)];
        let place = folder.path().join(number.to_string());
        std::fs::create_dir(&place).unwrap();
        let page = replay(&journal(&place, None, software, &calls), &["--json"]).json();
        // Nobody knows what PyTorch would have asked for with other settings.
        for (name, is_known) in [("torch_expandable", number == 1), ("auto_growth", true)] {
            assert_eq!(row(&page, name)["not_known"].is_null(), is_known, "{page}");
        }
        let notes = page["notes"].to_string();
        let of_segments = notes.contains("PyTorch's segments, not its tensors");
        assert_eq!(of_segments, number == 0, "{notes}");
    }
    // Of memory that no strategy serves nothing is played; the driver's pool has no model, and no history of PyTorch.
    for (class, has_tensors) in [(Class::Vmm, true), (Class::Async, false)] {
        let other = [direct(class, 7, 20 * GIB)];
        let folder = tempfile::tempdir().unwrap();
        let output = replay(&journal(folder.path(), None, b"", &other), &[]);
        assert_eq!(output.code, Some(1));
        assert_says(
            &output.said,
            &format!("not known: what memory of class {}", class.name()),
        );
        assert_eq!(output.said.contains("--torch record"), has_tensors, "{}", output.said);
    }
}
