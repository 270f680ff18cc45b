//! Unix sockets of the library: how they are made, and who is at the other end.

use std::os::unix::fs::MetadataExt;
use std::{fs, io, ptr};

use base::descriptor::{Descriptor, result};
use base::identity::effective_user;
use base::sockets::{address_of, peer_of};

/// Runs a system call again if a signal interrupted it. The job's own signal handlers may run at any moment.
pub fn uninterrupted(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        let done = call();
        if done >= 0 {
            return Ok(done as usize);
        }
        let problem = io::Error::last_os_error();
        if problem.kind() != io::ErrorKind::Interrupted {
            return Err(problem);
        }
    }
}

pub fn socket(kind: libc::c_int) -> io::Result<Descriptor> {
    // SAFETY: the call takes numbers only, and makes the descriptor.
    unsafe { Descriptor::made(libc::socket(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0)) }
}

/// A socket at which `backlog` peers can wait.
pub fn listen(kind: libc::c_int, name: &[u8], backlog: libc::c_int) -> io::Result<Descriptor> {
    let socket = socket(kind)?;
    let (address, length) = address_of(name)?;
    // SAFETY: the address outlives the call and has the length that the call is told.
    unsafe {
        result(libc::bind(socket.open_number()?, (&raw const address).cast(), length))?;
        result(libc::listen(socket.open_number()?, backlog))?;
    }
    Ok(socket)
}

pub fn connect(socket: &Descriptor, name: &[u8]) -> io::Result<()> {
    let (fd, (address, length)) = (socket.open_number()?, address_of(name)?);
    // SAFETY: the address outlives the call and has the length that the call is told.
    uninterrupted(|| unsafe { libc::connect(fd, (&raw const address).cast(), length) as isize }).map(drop)
}

/// The next peer. Fails with EBADF if the job closed the listener. No call on the new socket waits.
pub fn accept(listener: &Descriptor) -> io::Result<Descriptor> {
    let listener = listener.open_number()?;
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a null pointer means that the peer's address is not asked for.
    let accept = || unsafe { libc::accept4(listener, ptr::null_mut(), ptr::null_mut(), flags) as isize };
    let accepted = uninterrupted(accept)? as libc::c_int;
    // SAFETY: accept4 has just returned the descriptor.
    unsafe { Descriptor::made(accepted) }
}

/// Whether the process at the other end belongs to this process's user, or to root if `root_may`.
pub fn peer_is_ours(peer: &Descriptor, root_may: bool) -> bool {
    let Some(Ok(who)) = peer.number().map(peer_of) else {
        return false;
    };
    who.uid == effective_user() && tells_a_user(&who) || root_may && who.uid == 0
}

/// Whether the number of the peer's user means one user. In a user namespace the kernel gives each user whom it does not map the
/// same number (user_namespaces(7)). A peer of that number is known by its user namespace, which is ours too.
fn tells_a_user(who: &libc::ucred) -> bool {
    const USUAL: u32 = 65534;
    let of_all = fs::read_to_string("/proc/sys/kernel/overflowuid")
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let maps_all = || {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
    };
    let namespace = |process: &str| {
        fs::metadata(format!("/proc/{process}/ns/user"))
            .ok()
            .map(|file| (file.dev(), file.ino()))
    };
    let is_here = || namespace("self").is_some_and(|ours| namespace(&who.pid.to_string()) == Some(ours));
    who.uid != of_all.unwrap_or(USUAL) || maps_all() || is_here()
}
