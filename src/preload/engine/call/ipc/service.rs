//! The exporter's service: the thread that answers importers.
//!
//! It starts with the first block that is shared and ends with the process. It blocks all signals. While it waits, it
//! holds no lock. It calls the driver only to export. It never waits for one importer, so a silent one holds up no other.

use std::io;
use std::time::{Duration, Instant};

use super::answer::{Answer, Handed};
use super::channel::{self, Channel};
use super::exports::Exports;
use super::ticket::{self, ServiceId, Ticket};
use crate::engine::{scope, thread};
use base::api::Api;
use base::cuda::{DriverError, SUCCESS};
use base::descriptor::{Descriptor, Inherited};

/// After this long without a message from an importer, the service hangs up.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);
/// So many importers are served at a time. For a further one, the service hangs up on the one that was silent longest.
const MOST_IMPORTERS: usize = 64;

/// The listening socket, which a forked child closes.
static LISTENER: Inherited = Inherited::none();

struct Importer {
    channel: Channel,
    last_message: Instant,
    /// What it imports, once its ticket was answered.
    import: Option<Import>,
}

struct Import {
    ticket: Ticket,
    /// The number of handles of the block.
    count: u64,
}

impl Importer {
    /// Takes the next peer. Its first message is its ticket.
    fn next(listener: &Descriptor) -> io::Result<Option<Importer>> {
        let channel = channel::accept(listener)?;
        Ok(channel.peer_is_ours().then(|| Importer {
            channel,
            last_message: Instant::now(),
            import: None,
        }))
    }

    /// Answers one message. Returns whether the importer will send another one.
    ///
    /// The importer asks for each message, so that it never receives more descriptors than it has room for.
    fn serve(&mut self, exports: &Exports) -> io::Result<bool> {
        self.last_message = Instant::now();
        let Some(import) = &self.import else {
            return self.begin(exports);
        };
        let mut from = [0; 8];
        self.channel.receive(&mut from)?;
        let from = u64::from_le_bytes(from);
        let (handed, descriptors) = match exports.handles(&import.ticket, from) {
            Ok((sizes, descriptors)) => (Handed { result: SUCCESS, sizes }, descriptors),
            Err(DriverError(result)) => {
                let sizes = Vec::new();
                (Handed { result, sizes }, Vec::new())
            }
        };
        self.channel.send(&handed.encode(), &descriptors)?;
        let done = from.saturating_add(descriptors.len() as u64);
        Ok(handed.result == SUCCESS && done < import.count)
    }

    fn begin(&mut self, exports: &Exports) -> io::Result<bool> {
        let mut request = [0; ticket::BYTES];
        self.channel.receive(&mut request)?;
        let Some(ticket) = Ticket::decode(&request) else {
            let refused = Answer::Refused(DriverError::INVALID_VALUE);
            return self.channel.send(&refused.encode(), &[]).and(Ok(false));
        };
        let answer = exports.answer(&ticket);
        self.channel.send(&answer.encode(), &[])?;
        if let Answer::Handles { count, .. } = answer {
            self.import = Some(Import { ticket, count });
        }
        Ok(self.import.as_ref().is_some_and(|import| import.count > 0))
    }
}

pub fn start(exports: &'static Exports, id: ServiceId) -> io::Result<()> {
    let listener = channel::listen(&id.socket_name(std::process::id()))?;
    LISTENER.holds(&listener);
    let builder = std::thread::Builder::new()
        .name("vramshim-ipc".into())
        .stack_size(256 << 10);
    thread::start(builder, move || listen(exports, &listener))
}

fn listen(exports: &'static Exports, listener: &Descriptor) {
    // Calls that the next layer makes meanwhile are not calls of the job.
    let _scope = scope::driver(Api::Policy);
    let mut importers: Vec<Importer> = Vec::new();
    let mut job = thread::Job::new();
    // The service ends if the job closes the socket. The next block that is shared starts another one.
    while !job.has_ended() && serve(exports, listener, &mut importers).is_ok() {}
    exports.service_ends();
}

/// Waits a while for peers and messages, and answers them. A failure with one importer does not concern the others.
fn serve(exports: &Exports, listener: &Descriptor, importers: &mut Vec<Importer>) -> io::Result<()> {
    let silence = |importer: &Importer| importer.last_message.elapsed();
    let channels = importers.iter().map(|importer| &importer.channel);
    let (has_peer, messages) = channel::wait(listener, channels, thread::LOOK_PERIOD)?;
    let mut messages = messages.into_iter();
    importers.retain_mut(|importer| match messages.next() {
        Some(true) => importer.serve(exports).unwrap_or(false),
        _ => silence(importer) < LONGEST_SILENCE,
    });
    if has_peer {
        if importers.len() == MOST_IMPORTERS
            && let Some((silent, _)) = importers
                .iter()
                .enumerate()
                .max_by_key(|(_, importer)| silence(importer))
        {
            importers.remove(silent);
        }
        match Importer::next(listener) {
            Ok(next) => importers.extend(next),
            Err(problem) => match problem.raw_os_error() {
                Some(libc::ECONNABORTED | libc::EAGAIN) => {}
                Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                _ => return Err(problem),
            },
        }
    }
    Ok(())
}

/// Closes the socket in a forked child, which has no such thread: importers would wait there for an answer that never
/// comes. This calls only functions that are safe in a signal handler.
pub fn in_forked_child() {
    LISTENER.close();
}
