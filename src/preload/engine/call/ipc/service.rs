//! The exporter's service: the thread that answers importers.
//!
//! It starts with the first block that is shared and ends with the process. It blocks all signals. While it waits, it
//! holds no lock. It calls the driver only to export.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use super::answer::{Answer, Handed};
use super::channel::{self, Channel};
use super::exports::Exports;
use super::ticket::{self, ServiceId, Ticket};
use crate::engine::{scope, thread};
use base::api::Api;
use base::cuda::{DriverError, SUCCESS};
use base::descriptor::Descriptor;

/// After this long without a message from an importer, the service turns to the next one.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);

/// The listening socket, so that a forked child can close it: descriptor (-1 for none) and inode.
static LISTENER: AtomicI32 = AtomicI32::new(-1);
static LISTENER_INODE: AtomicU64 = AtomicU64::new(0);

/// Serves one importer, from its ticket to the last handle.
fn serve(exports: &Exports, channel: &Channel) -> io::Result<()> {
    channel.limit_waits(LONGEST_SILENCE)?;
    if !channel.peer_is_ours() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut request = [0; ticket::BYTES];
    channel.receive(&mut request)?;
    let Some(ticket) = Ticket::decode(&request) else {
        return channel.send(&Answer::Refused(DriverError::INVALID_VALUE).encode(), &[]);
    };
    let answer = exports.answer(&ticket);
    channel.send(&answer.encode(), &[])?;
    let Answer::Handles { count, .. } = answer else {
        return Ok(());
    };
    // The importer asks for each message, so that it never receives more descriptors than it has room for.
    let mut done = 0;
    while done < count {
        let mut from = [0; 8];
        channel.receive(&mut from)?;
        let from = u64::from_le_bytes(from);
        match exports.handles(&ticket, from) {
            Ok((sizes, descriptors)) => {
                done = from.saturating_add(descriptors.len() as u64);
                let result = SUCCESS;
                channel.send(&Handed { result, sizes }.encode(), &descriptors)?;
            }
            Err(DriverError(result)) => {
                let sizes = Vec::new();
                return channel.send(&Handed { result, sizes }.encode(), &[]);
            }
        }
    }
    Ok(())
}

/// Starts the thread.
pub fn start(exports: &'static Exports, id: ServiceId) -> io::Result<()> {
    let listener = channel::listen(&id.socket_name(std::process::id()))?;
    if let Some(number) = listener.number() {
        LISTENER_INODE.store(inode(number), Ordering::SeqCst);
        LISTENER.store(number, Ordering::SeqCst);
    }
    let builder = std::thread::Builder::new()
        .name("vramshim-ipc".into())
        .stack_size(256 << 10);
    thread::start(builder, move || listen(exports, &listener))
}

fn listen(exports: &'static Exports, listener: &Descriptor) {
    // Calls that the next layer makes meanwhile are not calls of the job.
    let _scope = scope::driver(Api::Policy);
    loop {
        match channel::accept(listener) {
            // A failure with one importer does not concern the others.
            Ok(channel) => drop(serve(exports, &channel)),
            Err(problem) => match problem.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::ECONNABORTED) => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                // The job closed the socket. The next block that is shared starts another service.
                _ => break,
            },
        }
    }
    exports.service_ends();
}

fn inode(fd: RawFd) -> u64 {
    // SAFETY: in this plain C structure zero is a value of every field. The pointer is to a variable of this frame.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &mut status) == 0 {
            status.st_ino
        } else {
            0
        }
    }
}

/// Closes the socket in a forked child, which has no such thread: importers would wait there for an answer that never
/// comes. This calls only functions that are safe in a signal handler.
pub fn in_forked_child() {
    let fd = LISTENER.swap(-1, Ordering::SeqCst);
    // The job may have closed the socket, and may use its number for something else.
    if fd >= 0 && inode(fd) == LISTENER_INODE.load(Ordering::SeqCst) {
        // SAFETY: the descriptor is the service's socket, and the child has no thread that uses it.
        unsafe { libc::close(fd) };
    }
}
