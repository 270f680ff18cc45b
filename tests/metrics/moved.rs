//! Journals whose folder moves, goes away and comes back, and journals that cannot be read yet.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use support::made::Made;
use support::{Runs, program};

use super::dies;
use super::server::{Served, Text};

/// Answers within half a second are the same.
fn scrape_anew(served: &Served) -> Text {
    std::thread::sleep(Duration::from_millis(600));
    served.scrape()
}

/// What was counted for the node: failures, processes that ended with an error, and allocations.
fn counted(text: &Text) -> [Option<f64>; 3] {
    [
        text.value("paddle_gpu_malloc_failed_total", &[]),
        text.value("vramshim_node_processes_ended_total", &[("how", "failed")]),
        text.value("vramshim_node_allocations_total", &[]),
    ]
}

fn followed(text: &Text) -> f64 {
    text.sum("vramshim_node_processes", &[])
}

#[test]
fn a_journal_that_moves_or_comes_back_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base");
    let elsewhere = folder.path().join("elsewhere");
    let [one, two] = ["one", "two"].map(|name| base.join(name));
    std::fs::create_dir(&base).unwrap();
    let nothing = tempfile::tempdir().unwrap();
    let served = Served::start(nothing.path(), &["--dir", base.to_str().unwrap()]);
    assert_eq!(counted(&served.scrape())[0], Some(0.0));
    dies(&one);
    let until = Instant::now() + Duration::from_secs(60);
    let before = loop {
        let text = scrape_anew(&served);
        if counted(&text)[1] == Some(1.0) {
            break text;
        }
        assert!(Instant::now() < until, "{:?}", text.0);
    };
    assert!(counted(&before)[0] >= Some(1.0) && counted(&before)[2] >= Some(1.0));
    assert_eq!(followed(&before), 1.0);

    let assert_same = |is_there: bool| {
        let text = scrape_anew(&served);
        assert_eq!(counted(&text), counted(&before));
        assert_eq!(followed(&text), f64::from(u8::from(is_there)));
    };
    std::fs::rename(&one, &two).unwrap();
    assert_same(true);
    std::fs::rename(&two, &elsewhere).unwrap();
    assert_same(false);
    // Its process has ended, and was counted.
    std::fs::rename(&elsewhere, &one).unwrap();
    assert_same(false);
}

/// `serve` of a user who may read what others may.
fn of_another_user(folder: &Path) -> Served {
    let mut command = Command::new(program());
    command.args(["serve", "--listen", "127.0.0.1:0", "--keep-ended", "8000h", "--dir"]);
    command.arg(folder);
    // SAFETY: the call takes nothing and changes nothing.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(65534).gid(65534);
    }
    Served::of(&mut command)
}

#[test]
fn a_journal_that_cannot_be_read_yet_is_read_later() {
    let folder = tempfile::tempdir().unwrap();
    let allow = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    allow(folder.path(), 0o755);
    let mut made = Made::new(folder.path(), 1, 1).unwrap();
    made.alloc(0, 1 << 20, 0).unwrap();
    let path = made.end(Some(0)).unwrap();
    allow(&path, 0);
    let served = of_another_user(folder.path());
    let text = served.scrape();
    assert_eq!(followed(&text), 0.0);
    let unreadable = |text: &Text| text.value("vramshim_serve_unreadable", &[("what", "journal")]);
    assert_eq!(text.value("vramshim_serve_damaged_total", &[]), Some(0.0));
    assert_eq!(unreadable(&text), Some(1.0));
    allow(&path, 0o644);
    let text = scrape_anew(&served);
    assert_eq!((followed(&text), unreadable(&text)), (1.0, Some(0.0)));
}

#[test]
fn metrics_are_not_written_into_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(program());
    command.args(["serve", "--every", "1h", "--textfile", "/dev/stdout", "--dir"]);
    let output = command.arg(folder.path()).printed();
    let said = &output.said;
    assert_eq!(output.code, Some(2), "{said}");
    assert!(said.contains("/dev/stdout: "), "{said}");
}
