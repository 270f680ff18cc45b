//! The file of an account: what makes it one, what it survives, and what a process does without it.

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use support::member::{Host, Member};
use support::{MIB, assert_says, client, left_out, mounted};

use super::{OUT_OF_MEMORY, assert_one_fits};

/// What a process says that has no account.
const ALONE: &str = "limits hold for this process alone";

/// A host on which a member holds these bytes of a gibibyte, and the file of its account.
fn held(bytes: u64) -> (Host, Member, PathBuf) {
    let host = Host::new("4GiB");
    let mut first = Member::start(host.member("1GiB"));
    assert_eq!(first.allocate(bytes), 0);
    let path = host.account_file();
    (host, first, path)
}

/// A fault of an account's file: words of the library's message about the fault, and a function that makes the fault.
type Trap = (&'static str, fn(&Path));

#[test]
fn a_file_that_cannot_be_trusted_is_replaced() {
    const TRAPS: &[Trap] = &[
        ("wrong size", |path| std::fs::write(path, [0; 100]).unwrap()),
        ("empty", |path| std::fs::write(path, "").unwrap()),
        ("it is no account", |path| overwrite(path, 0, &[0xff; 64])),
        ("another device", |path| overwrite(path, 16, &[0xff; 16])),
        ("other names", |path| {
            std::fs::hard_link(path, path.with_extension("kept")).unwrap()
        }),
        ("symbolic link", |path| {
            let target = path.with_extension("target");
            std::fs::rename(path, &target).unwrap();
            symlink(target, path).unwrap();
        }),
    ];
    for (why, set) in TRAPS {
        let (host, member, path) = held(MIB);
        member.end();
        set(&path);
        let target = path.with_extension("target");
        let untouched = std::fs::read(&target).ok();
        let mut member = Member::start(host.member("1GiB"));
        assert_eq!(member.allocate_mib([700, 700]), [0, OUT_OF_MEMORY], "{why}");
        let mut other = Member::start(host.member("1GiB"));
        assert_eq!(other.allocate(700 * MIB), OUT_OF_MEMORY, "{why}: not the same account");
        other.end();
        let errors = member.end();
        let why = if *why == "empty" { "wrong size" } else { why };
        assert!(errors.contains(why) && errors.contains("replaced"), "{why}: {errors}");
        assert_eq!(mode(&path), 0o600, "{why}");
        let kept = std::fs::read(&target).ok() == untouched;
        assert!(kept, "{why}: the target of the link was written to");
    }
}

/// Who joined an account of another layout would count wrong, and who replaced it would split the group.
#[test]
fn an_account_of_another_layout_is_refused_by_name_and_stays() {
    let (host, first, path) = held(MIB);
    first.end();
    overwrite(&path, 8, &2u32.to_ne_bytes());
    let before = std::fs::read(&path).unwrap();
    let mut strict = Member::start(host.member("1GiB").env("VRAMSHIM_STRICT", "1"));
    assert_eq!(strict.allocate(MIB), OUT_OF_MEMORY);
    assert_says(&strict.end(), "has layout 2");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

/// A mount namespace can show a boot id of its own, and none of the machine's.
#[test]
fn an_account_is_joined_by_who_sees_another_boot_id() {
    let (host, first, _) = held(700 * MIB);
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().join("mount");
    std::fs::create_dir(&mount).unwrap();
    for id in ["", "00010203-0405-0607-0809-0a0b0c0d0e0f\n"] {
        std::fs::write(folder.path().join("id"), id).unwrap();
        let joins = || {
            let id = folder.path().join("id");
            let place = "/proc/sys/kernel/random/boot_id".as_ref();
            let bound = Command::new("mount").args([Path::new("--bind"), &id, place]).status();
            assert!(bound.unwrap().success());
            let mut second = Member::start(host.member("1GiB").env("VRAMSHIM_STRICT", "1"));
            assert_eq!(second.allocate_mib([700, 300]), [OUT_OF_MEMORY, 0]);
            assert!(!second.end().contains("accounts"));
        };
        if !mounted("tmpfs", &mount, "", joins) {
            left_out("no permission to mount");
        }
    }
    first.end();
}

#[test]
fn a_file_that_others_could_read_is_theirs_no_longer_and_stays_the_account() {
    let (host, first, path) = held(700 * MIB);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let mut second = Member::start(host.member("1GiB"));
    assert_eq!(second.allocate(700 * MIB), OUT_OF_MEMORY);
    assert_eq!(mode(&path), 0o600);
    assert!(second.end().contains("its mode is 0600 again"));
    first.end();
}

#[test]
fn a_file_of_another_user_is_refused_and_stays() {
    let (host, first, path) = held(MIB);
    first.end();
    if let Err(problem) = std::os::unix::fs::chown(&path, Some(1), None) {
        return left_out(&format!("only root can give a file away: {problem}"));
    }
    for strict in ["1", "limits"] {
        let mut strict = Member::start(host.member("1GiB").env("VRAMSHIM_STRICT", strict));
        assert_eq!(strict.allocate(MIB), OUT_OF_MEMORY);
        assert!(strict.end().contains("it belongs to user 1"));
    }
    // Without a limit there is none that could not be kept.
    let unlimited = host.job().env("VRAMSHIM_ACCOUNTS", host.accounts());
    let mut unlimited = Member::start(unlimited.env("VRAMSHIM_STRICT", "limits"));
    assert_eq!(unlimited.allocate(MIB), 0);
    unlimited.end();
    let mut other = Member::start(host.member("1GiB"));
    assert_eq!(other.allocate_mib([700, 700]), [0, OUT_OF_MEMORY]);
    assert_says(&other.end(), ALONE);
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&path).unwrap());
    assert_eq!(owner, 1);
}

/// If a file that processes use were replaced, new processes would have an account of their own.
#[test]
fn a_file_in_use_is_never_replaced() {
    let (host, first, path) = held(700 * MIB);
    overwrite(&path, 0, &[0xff; 8]);
    let mut strict = Member::start(host.member("1GiB").env("VRAMSHIM_STRICT", "1"));
    assert_eq!(strict.allocate(MIB), OUT_OF_MEMORY);
    let errors = strict.end();
    assert_says(&errors, "running processes use it");
    assert_says(&errors, "VRAMSHIM_STRICT");
    first.kill();
    let mut next = Member::start(host.member("1GiB"));
    assert_eq!(next.allocate(700 * MIB), 0);
    assert!(next.end().contains("replaced by a new one"));
}

#[test]
fn a_file_that_is_removed_while_it_is_used_is_told() {
    let (_host, mut first, path) = held(700 * MIB);
    std::fs::remove_file(path).unwrap();
    assert_eq!(first.allocate(700 * MIB), OUT_OF_MEMORY);
    let errors = first.end();
    assert_says(&errors, "the file was removed while this process uses it");
}

/// Makes and replaces an account while another process has locked the folder for good.
#[test]
fn a_lock_on_the_folder_keeps_nobody_out() {
    let host = Host::new("4GiB");
    std::fs::create_dir(host.accounts()).unwrap();
    let folder = std::fs::File::open(host.accounts()).unwrap();
    folder.lock().unwrap();
    let start = || Member::start(host.member("1GiB"));
    let (mut first, mut second) = (start(), start());
    assert_one_fits(&mut first, &mut second, 700);
    first.end();
    second.end();
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    let mut file = std::fs::File::options().write(true).open(path).unwrap();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(offset)).unwrap();
    file.write_all(bytes).unwrap();
}

/// SECURITY.md says so: the library could only prevent it by a signal handler in the job, or by a system call an event.
#[test]
fn a_file_that_is_cut_short_ends_its_process() {
    use std::os::unix::process::ExitStatusExt;
    for cut in ["accounts", "journals"] {
        let host = Host::new("4GiB");
        let folder = host.folder.path().join(cut);
        let journals = host.folder.path().join("journals");
        let mut member = Member::start(host.member("1GiB").env("VRAMSHIM_DIR", journals));
        assert_eq!(member.allocate(MIB), 0);
        for file in std::fs::read_dir(folder).unwrap().flatten() {
            let file = std::fs::File::options().write(true).open(file.path()).unwrap();
            file.set_len(0).unwrap();
        }
        member.tell(&format!("a {MIB}"));
        assert_eq!(member.child.wait().unwrap().signal(), Some(libc::SIGBUS), "{cut}");
    }
}

#[test]
fn if_no_account_can_be_made_the_limit_holds_for_each_process_alone() {
    let host = Host::new("4GiB");
    std::fs::write(host.folder.path().join("file"), "").unwrap();
    for folder in ["file", "/proc/nowhere", "/dev/null/x"] {
        let folder = host.folder.path().join(folder);
        let start = || Member::start(host.member("1GiB").env("VRAMSHIM_ACCOUNTS", &folder));
        let (mut first, mut second) = (start(), start());
        assert_eq!((first.allocate(700 * MIB), second.allocate(700 * MIB)), (0, 0));
        assert_eq!(first.allocate(700 * MIB), OUT_OF_MEMORY);
        assert_says(&first.end(), ALONE);
        second.end();
    }
}

fn no_locks(flags: &[&str]) -> PathBuf {
    let name = if flags.is_empty() {
        "libno_locks_of_files.so"
    } else {
        "libno_locks.so"
    };
    client("accounts/no_locks.c", name, &[&["-shared", "-fPIC"], flags].concat())
}

/// gVisor refuses locks of open files. Then each process owns its lock.
#[test]
fn without_locks_of_open_files_processes_own_the_locks() {
    let host = Host::new("4GiB");
    let strict = || host.member("1GiB").env("VRAMSHIM_STRICT", "1");
    let start = || Member::start(strict().preload_in_front(no_locks(&[])));
    let (mut first, mut second) = (start(), start());
    assert_one_fits(&mut first, &mut second, 700);
    first.kill();
    assert_eq!(second.allocate(700 * MIB), 0);
    assert_eq!(second.ask("x"), "0");
    let mut third = start();
    assert_eq!(third.allocate(700 * MIB), OUT_OF_MEMORY);
    second.end();
    assert_eq!(third.allocate(700 * MIB), 0);
    assert!(!third.end().contains("accounts"));
}

/// A job may leave the root and the user that it began with; then the path of the account leads nowhere.
#[test]
fn a_job_that_leaves_its_root_and_user_gets_what_the_dead_held() {
    let (host, first, _) = held(700 * MIB);
    let mut second = Member::start(host.member("1GiB"));
    assert_eq!(second.allocate(MIB), 0);
    if second.ask("h") != "0" {
        return left_out("only root can change its root and user");
    }
    assert_eq!(second.allocate(700 * MIB), OUT_OF_MEMORY);
    first.kill();
    assert_eq!(second.allocate(700 * MIB), 0);
    assert!(!second.end().contains("accounts"));
}

/// Some file systems and sandboxes have no locks. That is neither a descriptor that the job closed, nor a file in use.
#[test]
fn a_file_system_that_refuses_locks_is_named() {
    let no_locks = no_locks(&["-DALL"]);
    let host = Host::new("4GiB");
    for is_distrusted in [false, true] {
        if is_distrusted {
            overwrite(&host.account_file(), 0, &[0xff; 8]);
        }
        let mut member = Member::start(host.member("1GiB").preload_in_front(no_locks.clone()));
        assert_eq!(member.allocate_mib([700, 700]), [0, OUT_OF_MEMORY]);
        let path = host.account_file();
        let errors = member.end();
        let told = errors.lines().find(|line| line.contains("cannot be locked"));
        for words in ["No locks available", path.to_str().unwrap(), ALONE] {
            assert_says(told.expect(&errors), words);
        }
    }
}
