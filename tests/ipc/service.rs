//! The thread that answers importers, and processes that mean it no good.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{ALL, Process, job, sharing};
use support::NAIVE_BEST_FIT;

/// More connections than the service keeps.
const SILENT: usize = 100;
/// How often the kernel's list of sockets is read before a socket counts as missing.
const READS: u32 = 100;

/// The abstract name as an address, and its length.
pub fn address_of(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: in the plain C structure zero is a value of every field.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    (address, length as libc::socklen_t)
}

pub fn socket() -> OwnedFd {
    // SAFETY: the call takes numbers only, and the new descriptor belongs to nothing else.
    unsafe {
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        assert!(socket >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(socket)
    }
}

pub fn connect_to(name: &str) -> OwnedFd {
    let socket = socket();
    let (address, length) = address_of(name);
    // SAFETY: the address outlives the call and has the length that the call is told.
    let connected = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
    assert_eq!(connected, 0, "{}", std::io::Error::last_os_error());
    socket
}

pub fn connect(process: &Process) -> OwnedFd {
    let start = format!("vramshim-ipc-{}-", process.0.child.id());
    // The kernel's list is read in pieces, and may lack a socket if others come and go meanwhile.
    for _ in 0..READS {
        let sockets = std::fs::read_to_string("/proc/net/unix").expect("the kernel's list of sockets");
        let mut names = sockets.lines().filter_map(|line| line.split_once('@'));
        if let Some((_, name)) = names.find(|(_, name)| name.starts_with(&start)) {
            return connect_to(name);
        }
    }
    panic!("no socket of the service in {READS} reads of the kernel's list");
}

/// An importer waits 30 seconds at most for the service.
#[test]
fn silent_connections_hold_up_no_importer() {
    for strategy in ALL {
        let (owner, mut user, handle) = sharing(strategy);
        let _silent: Vec<OwnedFd> = (0..SILENT).map(|_| connect(&owner)).collect();
        user.well(&format!("open x {handle}"));
        user.end();
        owner.end();
    }
}

/// The job closes the library's socket, and has the number for a file of its own.
#[test]
fn a_descriptor_of_the_job_that_has_the_number_of_ours_stays_open() {
    let mut owner = Process::start(job(NAIVE_BEST_FIT));
    owner.well("alloc shared 100000");
    let handle = owner.well("get shared");
    owner.well("replace");
    for _ in 0..3 {
        let mut user = Process::start(job(NAIVE_BEST_FIT));
        user.tell(&format!("open x {handle}"));
        user.end();
    }
    assert_eq!(owner.tell("mine"), "0");
    owner.end();
}
