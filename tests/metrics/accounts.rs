//! The accounts of groups, read from outside while their processes allocate, die and end.

use std::path::Path;

use support::member::{Host, Member};
use support::vramshim_with;

use super::once;
use super::server::Text;

const MIB: u64 = 1 << 20;
/// The label of accounts that cannot be read.
const ACCOUNTS: &[(&str, &str)] = &[("what", "account")];

/// The metrics of a folder of accounts, and what was said.
fn read(accounts: &Path) -> (Text, String) {
    let journals = tempfile::tempdir().unwrap();
    once(journals.path(), &["--accounts", accounts.to_str().unwrap()])
}

fn value(text: &Text, name: &str) -> Option<f64> {
    text.value(&format!("vramshim_account_{name}_bytes"), &[])
}

fn bytes(count: u64) -> Option<f64> {
    Some(count as f64)
}

#[test]
fn used_and_limit_are_those_of_the_group_and_nothing_is_changed() {
    let host = Host::new("4GiB");
    let mut one = Member::start(host.member("1GiB"));
    let mut two = Member::start(host.member("1GiB"));
    assert_eq!((one.allocate(100 * MIB), two.allocate(50 * MIB)), (0, 0));
    let file = host.account_file();
    let truth = || crate::accounts::account_at(&file).unwrap().account().used();
    let used = truth();
    assert!(used >= 150 * MIB, "{used}");
    let before = std::fs::read(&file).unwrap();
    let (text, _) = read(&host.accounts());
    assert_eq!(
        (value(&text, "used"), value(&text, "limit")),
        (bytes(used), bytes(1024 * MIB))
    );
    assert_eq!(text.value("vramshim_serve_unreadable", ACCOUNTS), Some(0.0));
    assert_eq!(std::fs::read(&file).unwrap(), before, "the account is as it was");
    // A member that dies holds its bytes until another one looks for room.
    two.kill();
    assert_eq!(value(&read(&host.accounts()).0, "used"), bytes(used));
    // One that holds the lock of the folder and is stopped there must not hold up a reader.
    let folder = std::fs::File::open(host.accounts()).unwrap();
    folder.lock().unwrap();
    assert_eq!(value(&read(&host.accounts()).0, "used"), bytes(used));
    drop(folder);
    // Nobody is left to look for room.
    one.end();
    assert!(truth() > 0);
    assert_eq!(value(&read(&host.accounts()).0, "used"), bytes(0));
}

#[test]
fn what_is_no_account_costs_a_message_and_a_count() {
    let host = Host::new("4GiB");
    let mut one = Member::start(host.member("1GiB"));
    assert_eq!(one.allocate(MIB), 0);
    let good = std::fs::read(host.account_file()).unwrap();
    let folder = host.accounts();
    let at = |name: &str| folder.join(name);
    let other = "GPU-00000000-0000-0000-0000-000000000001.account";
    std::fs::write(at(other), &good).unwrap();
    std::fs::write(at("short.account"), &good[..5000]).unwrap();
    std::fs::write(at("text.account"), vec![b'x'; good.len()]).unwrap();
    std::os::unix::fs::symlink(at(other), at("link.account")).unwrap();
    let pipe = std::ffi::CString::new(at("pipe.account").to_str().unwrap()).unwrap();
    // SAFETY: the name is a C string.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    let (text, said) = read(&folder);
    assert!(value(&text, "used") >= bytes(MIB), "{said}");
    assert_eq!(text.value("vramshim_serve_unreadable", ACCOUNTS), Some(5.0), "{said}");
    for name in [other, "short.account", "text.account", "link.account", "pipe.account"] {
        assert_eq!(said.lines().filter(|line| line.contains(name)).count(), 1, "{said}");
    }
}

#[test]
fn a_missing_folder_is_told_and_fails_a_single_run() {
    let journals = tempfile::tempdir().unwrap();
    let output = vramshim_with(
        &["serve", "--once", "--accounts", "/nowhere", "--dir"],
        [journals.path()],
    );
    let said = output.said;
    assert_eq!(output.code, Some(1), "{said}");
    assert!(said.contains("/nowhere"), "{said}");
    let text = Text::of(&output.text);
    assert_eq!(text.value("vramshim_serve_unreadable", ACCOUNTS), Some(1.0), "{said}");
}

#[test]
fn a_folder_with_several_names_counts_once() {
    let host = Host::new("4GiB");
    let mut one = Member::start(host.member("1GiB"));
    assert_eq!(one.allocate(100 * MIB), 0);
    let folder = host.accounts();
    let again = folder.join(".").join("..").join(folder.file_name().unwrap());
    let journals = tempfile::tempdir().unwrap();
    let [folder, again] = [&folder, &again].map(|path| path.to_str().unwrap());
    let (text, _) = once(journals.path(), &["--accounts", folder, "--accounts", again]);
    // `value` refuses two series.
    assert!(value(&text, "used") >= bytes(100 * MIB));
}
