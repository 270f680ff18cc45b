//! Files of 2 TiB that take a few pages on disk, as any user can place them where root looks: each command ends soon
//! and in little memory. What lies beside a journal need not be a file at all.

use std::fs::File;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use support::{Fields, Runs};

use super::sweep::{COMMANDS, with_out};
use super::{journal, look, run};

const LENGTH: u64 = 2 << 40;

/// Makes a journal 2 TiB long, whose header says that all of it was used. In the middle of it is a page of noise.
fn stretch(path: &Path) -> File {
    let file = File::options().read(true).write(true).open(path).unwrap();
    file.set_len(LENGTH).unwrap();
    let claimed = offset_of!(journal::format::Header, claimed) as u64;
    file.write_all_at(&(1u64 << 36).to_le_bytes(), claimed).unwrap();
    file.write_all_at(&[0x5a; 4096], LENGTH / 2).unwrap();
    file
}

/// Locks a file as a running process locks its journal.
fn lock(file: &File) {
    // SAFETY: `flock` is plain data, valid if all zero.
    let mut whole_file: libc::flock = unsafe { std::mem::zeroed() };
    whole_file.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: the descriptor is open, and `whole_file` outlives the call.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &whole_file) }, 0);
}

#[test]
fn a_journal_of_holes_is_read_soon() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = journal(folder.path(), 500);
    let figures = |context: &str| look(&path, &["--json"], context).json()["jobs"][0].clone();
    let whole = figures("whole");
    let file = stretch(&path);
    let out = folder.path().join("out");
    for state in ["killed", "running"] {
        if state == "running" {
            lock(&file);
        }
        for (name, arguments) in COMMANDS {
            let seen = run(name, &path, &with_out(arguments, &out), state);
            let all = format!("{name} {arguments} of a {state} process: {}{}", seen.text, seen.said);
            assert!(!seen.text.is_empty() || !seen.said.is_empty(), "{all}");
            let tells = matches!((*name, *arguments), ("inspect" | "why", "") | ("inspect", "--json"));
            let words = "size: hardly any of the file was ever written";
            assert!(!tells || seen.text.contains(words), "{all}");
        }
    }
    let stretched = figures("stretched");
    // The records before the hole are read, and so is the noise behind it.
    assert_eq!(stretched["events"], whole["events"]);
    assert_eq!(stretched["damaged"], 64, "{stretched:#}");
}

#[test]
fn the_files_beside_a_journal_may_be_holes_or_pipes() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = journal(folder.path(), 500);
    for (ending, head) in [
        ("stacks", "vramshim-stacks\t1\t4000\nN\t1\tstep\n"),
        ("tensors", "vramshim-pytorch\t1\t4000\t2.12.0\n"),
    ] {
        let beside = path.with_extension(ending);
        let _ = std::fs::remove_file(&beside);
        std::fs::write(&beside, head).unwrap();
        let file = File::options().write(true).open(&beside).unwrap();
        file.set_len(LENGTH).unwrap();
        look(&path, &["--top", "stack"], ending);
        run("report", &path, &["--json"], ending);
        run("why", &path, &["--json"], ending);
        std::fs::remove_file(&beside).unwrap();
        assert!(Command::new("mkfifo").arg(&beside).status().unwrap().success());
        run("report", &path, &["--json"], ending);
        let seen = run("why", &path, &["--json"], ending);
        assert!(!seen.text.is_empty(), "{}", seen.said);
        std::fs::remove_file(&beside).unwrap();
    }
}

/// The account file that doctor reads must have its one size, and have it on disk.
#[test]
fn an_account_of_holes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let account = folder.path().join("GPU-51585f66-6d74-7b82-8990-979ea5acb3ba.account");
    let file = File::create(&account).unwrap();
    file.set_len(LENGTH).unwrap();
    let page = Command::new(support::program())
        .args(["doctor", "--json"])
        .env("VRAMSHIM_ACCOUNTS", folder.path())
        .printed()
        .json();
    let findings = page["findings"].list();
    let told = |finding: &serde_json::Value| finding["found"] == "it has the wrong size";
    assert!(findings.iter().any(told), "{page:#}");
}
