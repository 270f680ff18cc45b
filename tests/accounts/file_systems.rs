//! The file systems on which an account works: the table in docs/limits.md. A thread of the test mounts each for itself.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{assert_answers, assert_one_fits};
use support::member::{Host, Member};
use support::{OUT_OF_MEMORY, client, left_out, mounted};

/// A host, and the folder of its accounts, where a file system can be mounted.
fn host() -> (Host, PathBuf) {
    let host = Host::new("4GiB");
    std::fs::create_dir(host.accounts()).unwrap();
    let folder = host.accounts();
    (host, folder)
}

/// Two processes share a limit, the dead give back, and nobody says anything of accounts. A job that closes all descriptors
/// keeps its seat.
fn works(host: &Host) {
    let start = || Member::start(host.member("1GiB").env("VRAMSHIM_STRICT", "1"));
    for closes in [false, true] {
        let (mut first, mut second) = (start(), start());
        assert_answers([&mut first, &mut second], [700, 1], [0, 0]);
        if closes {
            assert_eq!((first.ask("x"), second.ask("x")), ("0".into(), "0".into()));
        }
        let mut third = start();
        assert_answers([&mut second, &mut third], [700, 700], [OUT_OF_MEMORY; 2]);
        first.kill();
        assert_one_fits(&mut second, &mut third, 700);
        for member in [second, third] {
            let errors = member.end();
            assert!(!errors.contains("accounts"), "{errors}");
        }
    }
}

/// Runs this on a file system of this kind, if this process may mount one.
fn on(kind: &str, folder: &Path, options: &str, work: impl FnOnce() + Send) {
    if !mounted(kind, folder, options, work) {
        left_out(&format!("no permission to mount {kind}"));
    }
}

/// Runs a program that mounts something in the mount namespace of this thread.
fn succeeds(program: &str, arguments: &[&Path]) -> bool {
    Command::new(program)
        .args(arguments)
        .status()
        .is_ok_and(|status| status.success())
}

#[test]
fn tmpfs() {
    let (host, folder) = host();
    on("tmpfs", &folder, "", || works(&host));
}

#[test]
fn overlayfs() {
    let (host, folder) = host();
    let other = |name: &str| {
        let other = host.folder.path().join(name);
        std::fs::create_dir(&other).unwrap();
        other.display().to_string()
    };
    let [lower, upper, work] = ["lower", "upper", "work"].map(other);
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    on("overlay", &folder, &options, || works(&host));
}

#[test]
fn ext4() {
    let (host, folder) = host();
    let disk = host.folder.path().join("disk");
    std::fs::File::create(&disk).unwrap().set_len(32 << 20).unwrap();
    let on_disk = || {
        let options: &[&Path] = &["-q".as_ref(), "-F".as_ref(), &disk];
        let mount: &[&Path] = &["-o".as_ref(), "loop".as_ref(), &disk, &folder];
        if succeeds("mkfs.ext4", options) && succeeds("mount", mount) {
            return works(&host);
        }
        left_out("no loop device");
    };
    on("tmpfs", &folder, "", on_disk);
}

/// Files of FUSE show no blocks, and this file system has neither fallocate nor a rename that does not replace.
#[test]
fn fuse() {
    let (host, folder) = host();
    let behind = tempfile::tempdir().unwrap();
    let serve = client("accounts/fuse.c", "fuse", &[]);
    let in_user_space = || {
        let mut server = Command::new(&serve);
        server.args([&folder, behind.path()]).stdout(Stdio::piped());
        let mut server = server.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        if line.is_empty() {
            left_out("no FUSE");
        } else {
            works(&host);
            let file = std::fs::read_dir(behind.path()).unwrap().next().unwrap().unwrap();
            let file = std::fs::metadata(folder.join(file.file_name())).unwrap();
            assert_eq!(std::os::unix::fs::MetadataExt::blocks(&file), 0);
        }
        let _ = server.kill();
        server.wait().unwrap();
    };
    on("tmpfs", &folder, "", in_user_space);
}
