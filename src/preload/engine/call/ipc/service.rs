//! The thread that answers for the blocks that were shared.
//!
//! It starts with the first block that is shared and ends with the process. It blocks all signals, holds nothing that
//! another thread waits for while it waits itself, and calls the driver only to export.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use super::answer::Answer;
use super::channel::{self, Channel};
use super::exports::Exports;
use super::ticket::{self, Ticket};
use crate::engine::{Engine, scope, thread};
use crate::next::INVALID_VALUE;
use base::api::Api;

/// An importer that says nothing for so long is given up: others wait behind it.
const PATIENCE: Duration = Duration::from_secs(10);

/// The listening socket, for a forked child to close: descriptor (-1 for none) and inode.
static LISTENER: AtomicI32 = AtomicI32::new(-1);
static LISTENER_INODE: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Copy)]
pub struct Service {
    pub start: u64,
    pub random: u64,
}

/// One importer, from its ticket to its last granule.
fn serve(exports: &Exports, channel: &Channel) -> io::Result<()> {
    channel.limit(PATIENCE)?;
    if !channel.peer_is_ours() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut request = [0; ticket::BYTES];
    channel.receive(&mut request)?;
    let Some(ticket) = Ticket::decode(&request) else {
        return channel.send(&Answer::Refused(INVALID_VALUE).encode(), &[]);
    };
    let answer = exports.answer(&ticket);
    channel.send(&answer.encode(), &[])?;
    let Answer::Granules { count, .. } = answer else {
        return Ok(());
    };
    // The importer asks for each message: no more descriptors are under way than it has room for.
    let mut done = 0;
    while done < count {
        let mut from = [0; 8];
        channel.receive(&mut from)?;
        let from = u64::from_le_bytes(from);
        match exports.granules(&ticket, from) {
            Ok(descriptors) => {
                done = from.saturating_add(descriptors.len() as u64);
                channel.send(&0i64.to_le_bytes(), &descriptors)?;
            }
            Err(problem) => return channel.send(&i64::from(problem).to_le_bytes(), &[]),
        }
    }
    Ok(())
}

/// Starts the thread.
pub fn start(engine: &'static Engine, service: Service) -> io::Result<()> {
    let named = Ticket {
        version: ticket::VERSION,
        pid: std::process::id(),
        start: service.start,
        address: 0,
        size: 0,
        service: service.random,
        nonce: 0,
    };
    let listener = channel::listen(&named.socket_name())?;
    LISTENER_INODE.store(inode(listener.as_raw_fd()), Ordering::SeqCst);
    LISTENER.store(listener.as_raw_fd(), Ordering::SeqCst);
    let builder = std::thread::Builder::new()
        .name("vramshim-ipc".into())
        .stack_size(256 << 10);
    thread::start(builder, move || listen(engine, &listener))
}

fn listen(engine: &'static Engine, listener: &OwnedFd) {
    // What the driver calls on its way is its own affair, and no request of the job.
    let _scope = scope::driver(Api::Policy);
    let exports = &engine.sharing.exports;
    loop {
        match channel::accept(listener.as_raw_fd()) {
            // An importer that goes away, or is not one, concerns nobody else.
            Ok(channel) => drop(serve(exports, &channel)),
            Err(problem) => match problem.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::ECONNABORTED) => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                // The job closed our socket. The next block that is shared starts another.
                _ => break,
            },
        }
    }
    exports.silent.store(true, Ordering::SeqCst);
}

fn inode(fd: RawFd) -> u64 {
    // SAFETY: a plain C structure, filled by the call.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &mut status) == 0 {
            status.st_ino
        } else {
            0
        }
    }
}

/// The child has no such thread: with the socket open, others would wait there for an answer that never comes. Calls
/// nothing that is not safe in a signal handler.
pub fn in_forked_child() {
    let fd = LISTENER.swap(-1, Ordering::SeqCst);
    // The job may have closed it, and have something else under that number.
    if fd >= 0 && inode(fd) == LISTENER_INODE.load(Ordering::SeqCst) {
        // SAFETY: our own socket, which nothing in this process uses.
        unsafe { libc::close(fd) };
    }
}
