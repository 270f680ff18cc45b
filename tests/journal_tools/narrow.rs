//! Tables on a narrow screen, of 80 columns: each line fits, and no number is broken.

use std::path::Path;

use journal::format::Device;
use journal::writer::About;
use support::made::Made;
use support::{GIB, MIB, Printed, Runs};

use super::vramshim;
use crate::report::job;

const COLUMNS: usize = 80;

fn narrow(arguments: &[&str], path: &Path) -> Printed {
    let mut command = vramshim();
    command.args(arguments).arg(path).env("COLUMNS", COLUMNS.to_string());
    command.printed()
}

/// Checks that the tables have no line that is too long, and the words, which stand on one line each. Other text is in
/// sentences, which the terminal breaks.
fn assert_fits(printed: &Printed, words: &[&str]) {
    let is_title = |line: &&str| line.starts_with("  ") && !line.contains(". ");
    let mut is_table = false;
    let mut tables = 0;
    for line in printed.text.lines() {
        is_table = line.starts_with("  ") && (is_table || is_title(&line) && !line.contains(": "));
        tables += usize::from(is_table);
        assert!(
            !is_table || line.chars().count() <= COLUMNS,
            "{line:?} in\n{}",
            printed.text
        );
    }
    assert!(tables > 3, "{}", printed.text);
    for word in words {
        let has = printed.text.lines().any(|line| line.contains(word));
        assert!(has, "{word:?} is not in\n{}", printed.text);
    }
}

/// A job with long names.
fn long(folder: &Path, pid: u32) -> std::path::PathBuf {
    let about = About {
        pid,
        wall_start_ns: 1_790_000_000_000_000_000,
        strategy: "passthrough".into(),
        host: "a-machine-with-a-long-name.of.a.cluster".into(),
        job: "a-job-with-a-name-that-is-longer-than-others".into(),
        command_line: b"python\0a-script-with-a-name-that-is-longer-than-others.py".to_vec(),
        environment: format!("RANK={pid}").into_bytes(),
        ..About::default()
    };
    let device = Device {
        total_memory: GIB,
        ..Device::default()
    };
    let mut made = Made::about(folder, &about, &[device]).unwrap();
    made.alloc(0, 300 * MIB, 0).unwrap();
    made.wait(u64::from(pid) * 1_000_000_000);
    made.fail(4 * GIB).unwrap();
    made.end(None).unwrap()
}

#[test]
fn tables_of_why_and_replay_fit_the_screen() {
    let folder = tempfile::tempdir().unwrap();
    for pid in [1, 2, 3] {
        long(folder.path(), pid);
    }
    let why = narrow(&["why"], folder.path());
    assert_fits(&why, &["2.0 s later or more", "300.0 MiB", "larger than the"]);
    let one = tempfile::tempdir().unwrap();
    let journal = job::write(one.path(), 0).unwrap().path;
    let why = narrow(&["why"], &journal);
    assert_fits(&why, &["24.0 GiB  25,769,803,776", "model.py:31 forward"]);
    let replay = narrow(&["replay"], &journal).ok();
    let mut wide = vramshim();
    let wide = wide.arg("replay").arg(&journal).env_remove("COLUMNS").printed().ok();
    assert!(wide.text.lines().any(|line| line.len() > COLUMNS), "{}", wide.text);
    // No column is left out.
    let columns = [
        "peak reserved",
        "waits to allocate",
        "smallest device",
        "paddle_naive_best_fit",
    ];
    assert_fits(&replay, &columns);
    let rows = wide.text.lines().filter(|line| line.starts_with("  "));
    let cells = rows.flat_map(|line| line.split("  ")).map(str::trim);
    for cell in cells.filter(|cell| !cell.is_empty() && !cell.contains(':')) {
        assert!(replay.text.contains(cell), "{cell:?} is not in\n{}", replay.text);
    }
}
