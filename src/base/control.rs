//! Where the control socket of a process is. The library makes it, and `vramshim ctl` looks for it.

use std::path::{Path, PathBuf};

/// Where the folder of a user's sockets may be: in the first of these that the process can write. They are fixed, so that
/// who did not start the job finds them.
pub const FOLDERS: [&str; 2] = ["/tmp", "/dev/shm"];
/// The extension of the sockets' names.
pub const EXTENSION: &str = "sock";

/// The folder of a user's sockets. Its mode is 0700.
pub fn folder_in(parent: &Path, user: u32) -> PathBuf {
    parent.join(format!("vramshim-control-{user}"))
}

/// The name of a process's socket: its pid in its own pid namespace, and its start time in clock ticks.
pub fn socket_name(pid: u32, start_ticks: u64) -> String {
    format!("{pid}-{start_ticks}.{EXTENSION}")
}

/// Whether a socket of this name is one of the process.
pub fn is_socket_of(name: &str, pid: u32) -> bool {
    let ticks = name
        .strip_prefix(&format!("{pid}-"))
        .and_then(|rest| rest.strip_suffix(&format!(".{EXTENSION}")));
    ticks.is_some_and(|ticks| ticks.parse::<u64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_leads_to_the_process() {
        assert!(is_socket_of(&socket_name(12, 345), 12));
        assert!(!is_socket_of(&socket_name(123, 45), 12));
        assert!(!is_socket_of("12-345.new", 12) && !is_socket_of("12-.sock", 12) && !is_socket_of("12-3x.sock", 12));
    }
}
