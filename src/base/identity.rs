//! The identity of a process: start time, pid namespace, boot and host. A journal stores it, so that a reader can tell
//! whether the process still runs.

use std::cell::Cell;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::file::names_in;
use crate::text::is_hidden;
use crate::uuid::uuid_bytes;

/// When a process started, in clock ticks after boot (field 22 of `/proc/PID/stat`). `process` is a pid or `self`.
pub fn start_ticks(process: &str) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    start_ticks_in(&stat)
}

/// The folder of a process in `/proc`. If its first thread has ended while others live, the folder of one that lives: that of
/// the first shows no arguments, files or memory any more (mxnet#4242).
pub fn folder_of(process: u32) -> PathBuf {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let is_dead = |folder: &Path| state_of(folder).is_some_and(|state| b"ZXx".contains(&state));
    if !is_dead(&folder) {
        return folder;
    }
    let task = folder.join("task");
    let mut threads = names_in(&task).into_iter().map(|thread| task.join(thread));
    threads.find(|thread| !is_dead(thread)).unwrap_or(folder)
}

/// Whether a pid that NVML tells may be a process of this pid namespace: one that has loaded a library of the driver, or that
/// this user may not examine. NVML tells pids of the host. In another namespace no process has such a pid, or a bystander has.
pub fn may_use_a_device(process: u32) -> bool {
    match std::fs::read(folder_of(process).join("maps")) {
        Ok(maps) => [&b"libcuda"[..], b"nvidia"]
            .iter()
            .any(|name| maps.windows(name.len()).any(|window| window == *name)),
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    }
}

/// The state of the process or thread of this folder (field 3 of `/proc/PID/stat`).
pub fn state_of(folder: &Path) -> Option<u8> {
    let stat = std::fs::read(folder.join("stat")).ok()?;
    fields_from_state(&stat)?.next()?.first().copied()
}

/// Whether a process of this pid namespace can run: it exists, and is neither stopped nor dead.
pub fn can_run(process: u32) -> bool {
    state_of(&folder_of(process)).is_some_and(|state| !b"TtZXx".contains(&state))
}

/// The fields of the text of `/proc/PID/stat` from the state (field 3) on. The program's name in field 2 may contain spaces and
/// parentheses, so fields are counted from the last closing parenthesis.
pub fn fields_from_state(stat: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = stat.get(name_end + 1..)?.split(u8::is_ascii_whitespace);
    Some(fields.filter(|field| !field.is_empty()))
}

/// Field 22.
fn start_ticks_in(stat: &[u8]) -> Option<u64> {
    std::str::from_utf8(fields_from_state(stat)?.nth(19)?)
        .ok()?
        .parse()
        .ok()
}

/// The kernel's id of the calling thread.
pub fn thread_id() -> u32 {
    // SAFETY: gettid has no preconditions; the raw call needs no recent glibc.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// A number of the calling thread. Unlike the kernel's id, no other thread of this process ever has it. The first
/// thread that asks is 1. The thread-local is constant and has no destructor, so that it may be used at any moment of a
/// thread's life.
pub fn thread_number() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(THREADS.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.get()
    })
}

/// The inode number that identifies the pid namespace of this process; 0 if the number cannot be read.
pub fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// The pid of this process in the outermost pid namespace that `/proc` shows of it.
pub fn outermost_pid() -> Option<u32> {
    let status = std::fs::read("/proc/self/status").ok()?;
    let line = status
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(b"NSpid:"))?;
    let first = line.split(u8::is_ascii_whitespace).find(|field| !field.is_empty())?;
    std::str::from_utf8(first).ok()?.parse().ok()
}

pub fn effective_user() -> u32 {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() }
}

/// The path of the cgroup of this process (`/proc/self/cgroup`): of the unified hierarchy if there is one, or else of the
/// first. Empty if it cannot be read.
pub fn cgroup() -> Vec<u8> {
    let text = std::fs::read("/proc/self/cgroup").unwrap_or_default();
    let lines = || text.split(|&byte| byte == b'\n');
    let path = |line: &[u8]| line.splitn(3, |&byte| byte == b':').nth(2).unwrap_or_default().to_vec();
    let unified = lines().find(|line| line.starts_with(b"0::"));
    unified.or_else(|| lines().next()).map(path).unwrap_or_default()
}

/// The id that the kernel gave to the present boot of the machine; zeros if it cannot be read.
pub fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.ok().and_then(|text| uuid_bytes(&text)).unwrap_or_default()
}

/// The host's name; empty if it cannot be read.
pub fn host_name() -> String {
    let mut buffer = [0u8; 256];
    // SAFETY: the length is one byte less than the buffer's, so a NUL always ends the name.
    if unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) } != 0 {
        return String::new();
    }
    CStr::from_bytes_until_nul(&buffer)
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Makes `name` fit for a file name: at most 64 characters and 128 bytes, and no dot in front. An underscore stands for each
/// blank or hidden character, and for ASCII other than letters, digits, dots, dashes and underscores. `host` if nothing is left.
pub fn for_file_name(name: &str) -> String {
    let is_plain = |letter: char| match letter.is_ascii() {
        true => letter.is_ascii_alphanumeric() || "-_.".contains(letter),
        false => !is_hidden(letter) && !letter.is_whitespace(),
    };
    let mut name: String = name.trim_start_matches('.').chars().take(64).collect();
    name.truncate(name.floor_char_boundary(128));
    let name = name.replace(|letter: char| !is_plain(letter), "_");
    if name.is_empty() { "host".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_spaces_and_parentheses_do_not_shift_the_fields() {
        let stat = b"123 (a) b) (c) S 1 123 123 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 0 0\n";
        assert_eq!(start_ticks_in(stat), Some(987654));
        assert_eq!(start_ticks_in(b""), None);
        assert_eq!(start_ticks_in(b"1 (a) S 1"), None);
        assert!(start_ticks("self").is_some());
        assert!(can_run(std::process::id()) && !can_run(0));
    }

    #[test]
    fn host_names_become_file_names() {
        assert_eq!(for_file_name("node-1.cluster"), "node-1.cluster");
        assert_eq!(for_file_name("../a b\u{e9}"), "_a_b\u{e9}");
        assert_eq!(for_file_name("größe\u{202e}模型"), "größe_模型");
        assert_eq!(for_file_name(&"模".repeat(64)).len(), 126);
        assert_eq!(for_file_name(""), "host");
    }

    #[test]
    fn the_process_knows_where_it_is() {
        // In the outermost namespace that it sees, the process may have another number.
        assert!(outermost_pid().is_some_and(|pid| pid > 0));
        assert!(cgroup().is_empty() || cgroup()[0] == b'/');
    }

    #[test]
    fn boot_ids_are_sixteen_bytes() {
        let text = "00010203-0405-0607-0809-0a0b0c0d0e0f\n";
        assert_eq!(uuid_bytes(text).map(|id| (id[0], id[1], id[15])), Some((0, 1, 15)));
        assert_eq!(uuid_bytes("short"), None);
    }
}
