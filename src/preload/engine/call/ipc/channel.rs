//! Messages between two processes of one user, over a Unix socket in the abstract namespace.
//!
//! The socket is of the sequenced-packet kind: a message arrives whole or not at all. A message that carries memory has
//! file descriptors with it.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use crate::engine::sockets::{self, uninterrupted};
use base::descriptor::{Descriptor, result};

/// The most descriptors in one message. The kernel's own bound is 253 (`SCM_MAX_FD`).
pub const MAX_DESCRIPTORS: usize = 250;

pub struct Channel(Descriptor);

/// Enough for the control message with `MAX_DESCRIPTORS` descriptors.
const CONTROL_BYTES: usize = 1024 + 64;

/// Room for a control message, aligned as the kernel requires.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

fn abstract_name(name: &str) -> Vec<u8> {
    [b"\0", name.as_bytes()].concat()
}

pub fn listen(name: &str) -> io::Result<Descriptor> {
    sockets::listen(libc::SOCK_SEQPACKET, &abstract_name(name), 128)
}

/// The next peer. Fails with EBADF if the job closed the listener. No call on the channel waits.
pub fn accept(listener: &Descriptor) -> io::Result<Channel> {
    sockets::accept(listener).map(Channel)
}

/// Waits until a peer or a message arrives, at most for `longest`. Returns whether a peer waits at the listener, and for each
/// channel whether a message has arrived, or the end of the peer. A channel whose descriptor the job closed counts, too.
/// Fails with EBADF if the job closed the listener.
pub fn wait<'a>(
    listener: &Descriptor,
    channels: impl Iterator<Item = &'a Channel>,
    longest: Duration,
) -> io::Result<(bool, Vec<bool>)> {
    let entry = |fd: RawFd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut entries = vec![entry(listener.open_number()?)];
    entries.extend(channels.map(|channel| entry(channel.0.number().unwrap_or(-1))));
    let longest = longest.as_millis() as libc::c_int;
    // SAFETY: the entries outlive the call, and their number is the one that it is told.
    uninterrupted(|| unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, longest) as isize })?;
    let messages = entries[1..].iter().map(|entry| entry.revents != 0 || entry.fd < 0);
    Ok((entries[0].revents != 0, messages.collect()))
}

/// Connects to a listener; no call on the channel waits longer than `longest_wait`.
pub fn connect(name: &str, longest_wait: Duration) -> io::Result<Channel> {
    let channel = Channel(sockets::socket(libc::SOCK_SEQPACKET)?);
    channel.limit_waits(longest_wait)?;
    sockets::connect(&channel.0, &abstract_name(name))?;
    Ok(channel)
}

impl Channel {
    /// From now on no call on the channel waits longer than this.
    fn limit_waits(&self, longest: Duration) -> io::Result<()> {
        let time = libc::timeval {
            tv_sec: longest.as_secs() as libc::time_t,
            tv_usec: longest.subsec_micros() as libc::suseconds_t,
        };
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            let (value, size) = ((&raw const time).cast(), size_of::<libc::timeval>() as libc::socklen_t);
            // SAFETY: the value outlives the call and has the length that the call is told.
            result(unsafe { libc::setsockopt(self.0.open_number()?, libc::SOL_SOCKET, option, value, size) })?;
        }
        Ok(())
    }

    /// Whether the process at the other end belongs to this process's user.
    pub fn peer_is_ours(&self) -> bool {
        sockets::peer_is_ours(&self.0, false)
    }

    /// Sends one message, with at most `MAX_DESCRIPTORS` descriptors.
    pub fn send(&self, bytes: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
        let fd = self.0.open_number()?;
        let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let payload = size_of::<RawFd>() * raw.len();
        let mut control = Control([0; CONTROL_BYTES]);
        let mut part = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: every pointer is to a variable of this frame, and these outlive the call. The control message has room
        // for as many descriptors as callers may send.
        unsafe {
            let mut message: libc::msghdr = zeroed();
            message.msg_iov = &mut part;
            message.msg_iovlen = 1;
            if !raw.is_empty() {
                message.msg_control = control.0.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(payload as u32) as _;
                let head = libc::CMSG_FIRSTHDR(&message);
                (*head).cmsg_level = libc::SOL_SOCKET;
                (*head).cmsg_type = libc::SCM_RIGHTS;
                (*head).cmsg_len = libc::CMSG_LEN(payload as u32) as _;
                ptr::copy_nonoverlapping(raw.as_ptr().cast::<u8>(), libc::CMSG_DATA(head), payload);
            }
            uninterrupted(|| libc::sendmsg(fd, &message, libc::MSG_NOSIGNAL))?;
        }
        Ok(())
    }

    /// Receives one message of exactly `bytes.len()` bytes. Returns the descriptors that came with it.
    pub fn receive(&self, bytes: &mut [u8]) -> io::Result<Vec<OwnedFd>> {
        let fd = self.0.open_number()?;
        let mut control = Control([0; CONTROL_BYTES]);
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        let mut descriptors = Vec::new();
        // SAFETY: as in `send`. The received descriptors belong to this function alone, and each is taken once.
        let (length, flags) = unsafe {
            let mut message: libc::msghdr = zeroed();
            message.msg_iov = &mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = control.0.len() as _;
            let message = &raw mut message;
            let length = uninterrupted(|| libc::recvmsg(fd, message, libc::MSG_CMSG_CLOEXEC))?;
            let mut head = libc::CMSG_FIRSTHDR(message);
            while !head.is_null() {
                if (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS {
                    let payload = (*head).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let first = libc::CMSG_DATA(head).cast::<RawFd>();
                    for index in 0..payload / size_of::<RawFd>() {
                        descriptors.push(OwnedFd::from_raw_fd(first.add(index).read_unaligned()));
                    }
                }
                head = libc::CMSG_NXTHDR(message, head);
            }
            (length, (*message).msg_flags)
        };
        if flags & libc::MSG_CTRUNC != 0 {
            let why = "too many open files here to take the memory over (ulimit -n)";
            return Err(io::Error::other(why));
        }
        if length == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the exporter hung up"));
        }
        if length != bytes.len() || flags & libc::MSG_TRUNC != 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a message of another length",
            ));
        }
        Ok(descriptors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_bytes_and_descriptors() {
        let name = format!("vramshim-test-{}", std::process::id());
        let listener = listen(&name).expect("a socket");
        assert!(super::connect("vramshim-test-nobody", Duration::from_secs(1)).is_err());
        let here = connect(&name, Duration::from_secs(5)).expect("a peer");
        let there = accept(&listener).expect("the other end");
        assert!(here.peer_is_ours() && there.peer_is_ours());
        let zero = || std::fs::File::open("/dev/zero").expect("a descriptor").into();
        let many: Vec<OwnedFd> = (0..MAX_DESCRIPTORS).map(|_| zero()).collect();
        there.send(b"eight by", &many).expect("a message");
        let mut bytes = [0; 8];
        let came = here.receive(&mut bytes).expect("the message");
        assert_eq!((&bytes, came.len()), (b"eight by", MAX_DESCRIPTORS));
        there.send(b"short", &[]).expect("a message");
        assert!(here.receive(&mut bytes).is_err(), "of another length");
        drop(there);
        assert_eq!(
            here.receive(&mut bytes).map_err(|problem| problem.kind()).err(),
            Some(io::ErrorKind::UnexpectedEof)
        );
    }
}
