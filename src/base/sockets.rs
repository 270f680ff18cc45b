//! Unix sockets: their addresses, and who is at the other end.

use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::RawFd;

use crate::descriptor::result;

/// The address of this name: a path, or after a NUL a name in the abstract namespace.
pub fn address_of(name: &[u8]) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: in this plain C structure zero is a value of every field.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    if name.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (character, &byte) in address.sun_path.iter_mut().zip(name) {
        *character = byte as libc::c_char;
    }
    // A path ends with a NUL.
    let end = usize::from(!name.starts_with(b"\0"));
    let length = offset_of!(libc::sockaddr_un, sun_path) + name.len() + end;
    Ok((address, length as libc::socklen_t))
}

/// The process at the other end of a connected Unix socket, and its user. The kernel says so, not the peer.
pub fn peer_of(socket: RawFd) -> io::Result<libc::ucred> {
    // SAFETY: in this plain C structure zero is a value of every field.
    let mut who: libc::ucred = unsafe { zeroed() };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option, out) = (libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast());
    // SAFETY: both pointers are to variables of this frame, of the size that the call is told.
    result(unsafe { libc::getsockopt(socket, level, option, out, &mut size) })?;
    Ok(who)
}
