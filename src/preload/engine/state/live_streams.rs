//! The streams that the job has named to `vramshim_torch_*`: how they are told apart, and where events can be recorded.
//!
//! A stream that the job created has a number of the driver's. The handles of the default streams stand for another
//! stream in each context, and `CU_STREAM_PER_THREAD` for another in each thread. The identity of such a stream is
//! given here. So is that of a stream which is captured before it was named, because a question for its number would
//! invalidate the capture (`stream_id_in_capture` in tests/assumptions).

use std::collections::HashMap;
use std::sync::{Mutex, RwLock};

use super::captures::{Captures, is_capturing, relaxed};
use crate::next::{self, CUstream, STREAM_LEGACY, STREAM_PER_THREAD};
use base::identity::{thread_id, thread_number};
use base::sync::{lock, read, write};
use policy::UnderWay;

/// The identity of the legacy default stream of a pool's context, which is never destroyed.
const DEFAULT_STREAM: u64 = 0;

/// The lists are searched for streams of threads that have ended each time that they hold a multiple of this many.
const SEARCH_AFTER: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Name {
    handle: usize,
    context: u64,
    /// The number of the stream's thread; 0 unless it is the default stream of one.
    thread: u64,
}

#[derive(Clone, Copy)]
struct LiveStream {
    name: Name,
    /// The context that owns the memory which is allocated in that of the stream.
    owner: u64,
    /// The kernel's id of the stream's thread, by which a thread that has ended is found.
    thread_id: u32,
}

/// Where an event of a stream's work can be recorded by the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On this handle, while this context is current.
    Stream { handle: usize, context: u64 },
    /// On the legacy default stream of the pool's context.
    LegacyStream,
    /// In no stream: the stream is the default stream of another thread, which no handle of this thread names.
    Context(u64),
}

#[derive(Default)]
struct Lists {
    /// By identity.
    known: HashMap<u64, LiveStream>,
    /// The identities of default streams other than `DEFAULT_STREAM`, and of streams that were captured before they were
    /// named.
    specials: HashMap<Name, u64>,
    specials_given: u64,
}

#[derive(Default)]
pub struct LiveStreams {
    lists: RwLock<Lists>,
    /// Calls of the driver that name a stream of the lists. Who takes a stream out waits for their end.
    in_use: UnderWay,
}

impl LiveStreams {
    /// A number that tells streams apart, even if one has the handle of an earlier one. 0 is the default stream of the
    /// context that owns the memory; `None` if there is no such number.
    #[inline]
    pub fn identity(&self, handle: usize, captures: &Captures) -> Option<u64> {
        match handle {
            0 | STREAM_LEGACY if !next::has_green_contexts() => Some(DEFAULT_STREAM),
            handle => self.identity_of(handle, captures),
        }
    }

    #[inline(never)]
    fn identity_of(&self, handle: usize, captures: &Captures) -> Option<u64> {
        match handle {
            0 | STREAM_LEGACY => match next::current_green_context() {
                None => Some(DEFAULT_STREAM),
                Some(context) => Some(self.identity_of_special(STREAM_LEGACY, context, 0)),
            },
            STREAM_PER_THREAD => {
                let context = next::current_context().ok()? as u64;
                Some(self.identity_of_special(STREAM_PER_THREAD, context, thread_number()))
            }
            handle if captures.any_open() => self.identity_beside_captures(handle),
            handle => identity_of_created(handle),
        }
    }

    /// The identity of a created stream that may be capturing.
    #[cold]
    fn identity_beside_captures(&self, handle: usize) -> Option<u64> {
        let known = read(&self.lists).identity_of(handle);
        if known.is_some() {
            return known;
        }
        if is_capturing(handle) {
            Some(self.identity_of_special(handle, next::current_context().ok()? as u64, 0))
        } else {
            relaxed(|| identity_of_created(handle))
        }
    }

    /// Gives a created stream that is about to be captured an identity which it keeps afterwards.
    pub fn note_before_capture(&self, handle: usize, captures: &Captures) {
        if handle > STREAM_PER_THREAD {
            relaxed(|| {
                if let Some(identity) = self.identity(handle, captures) {
                    self.note(identity, handle);
                }
            });
        }
    }

    /// These identities are even, and those of the driver's numbers are odd.
    fn identity_of_special(&self, handle: usize, context: u64, thread: u64) -> u64 {
        let name = Name {
            handle,
            context,
            thread,
        };
        if let Some(&identity) = read(&self.lists).specials.get(&name) {
            return identity;
        }
        let stream = LiveStream {
            name,
            owner: next::owner_of(context),
            thread_id: thread_id(),
        };
        let mut lists = write(&self.lists);
        if lists.specials.len() % SEARCH_AFTER == SEARCH_AFTER - 1 {
            lists.forget(has_ended);
        }
        // Another thread may have named the same stream meanwhile.
        let fresh = (lists.specials_given + 1) << 1;
        let identity = *lists.specials.entry(name).or_insert(fresh);
        if identity == fresh {
            lists.specials_given += 1;
            lists.known.insert(identity, stream);
        }
        identity
    }

    /// Notes a created stream that the job uses now.
    #[inline]
    pub fn note(&self, identity: u64, handle: usize) {
        let is_created = identity % 2 == 1;
        if is_created {
            self.note_created(identity, handle);
        }
    }

    #[inline(never)]
    fn note_created(&self, identity: u64, handle: usize) {
        if read(&self.lists).known.contains_key(&identity) {
            return;
        }
        let context = next::context_of_stream(handle);
        let name = Name {
            handle,
            context,
            thread: 0,
        };
        let stream = LiveStream {
            name,
            owner: next::owner_of(context),
            thread_id: 0,
        };
        write(&self.lists).known.insert(identity, stream);
    }

    /// Runs `work`, a short call of the driver, with the place for an event of a stream. The stream is not destroyed
    /// meanwhile. `None` if it was destroyed before.
    pub fn with<T>(&self, identity: u64, work: impl FnOnce(Place) -> T) -> Option<T> {
        let (place, ticket) = {
            let lists = read(&self.lists);
            (lists.place(identity)?, self.in_use.begin())
        };
        let result = work(place);
        drop(ticket);
        Some(result)
    }

    /// The stream with this handle is about to be destroyed.
    pub fn stream_closes(&self, handle: usize) {
        if read(&self.lists)
            .known
            .values()
            .any(|stream| stream.name.handle == handle)
        {
            write(&self.lists).forget(|stream| stream.name.handle == handle);
            self.in_use.wait();
        }
    }

    /// The streams of a context are gone with it, or about to go.
    pub fn context_gone(&self, context: u64) {
        write(&self.lists).forget(|stream| stream.name.context == context || stream.owner == context);
        self.in_use.wait();
    }
}

/// The identity of a stream that the job created and that does not capture.
fn identity_of_created(handle: usize) -> Option<u64> {
    // SAFETY: the stream is the job's own, and the pointer is to a variable of `told`.
    let number = next::told(0, |number| unsafe { next::cuStreamGetId(handle as CUstream, number) });
    number.ok().map(|number| number << 1 | 1)
}

impl Lists {
    /// The identity of the live stream with this handle, if it was noted.
    fn identity_of(&self, handle: usize) -> Option<u64> {
        let mut noted = self.known.iter().filter(|(_, stream)| stream.name.handle == handle);
        noted.next().map(|(&identity, _)| identity)
    }

    /// Where an event of a stream can be recorded by the calling thread. `None` if the stream was destroyed.
    fn place(&self, identity: u64) -> Option<Place> {
        if identity == DEFAULT_STREAM {
            return Some(Place::LegacyStream);
        }
        let Name {
            handle,
            context,
            thread,
        } = self.known.get(&identity)?.name;
        Some(if thread != 0 && thread != thread_number() {
            Place::Context(context)
        } else {
            Place::Stream { handle, context }
        })
    }

    fn forget(&mut self, gone: impl Fn(&LiveStream) -> bool) {
        let known = &mut self.known;
        known.retain(|_, stream| !gone(stream));
        self.specials.retain(|_, identity| known.contains_key(identity));
    }
}

/// Whether this is the default stream of a thread that has ended, so that nobody can name it. The kernel may have given
/// the thread's id to another thread; then the stream is found later.
fn has_ended(stream: &LiveStream) -> bool {
    if stream.name.thread == 0 {
        return false;
    }
    // SAFETY: signal 0 is not sent: the call only looks the thread up.
    let found = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), stream.thread_id as libc::pid_t, 0) };
    found != 0 && base::file::errno() == libc::ESRCH
}

/// The journal's number of the default stream; 0 means that the record names no stream.
const DEFAULT_NUMBER: u8 = 1;
/// The number of the first stream that is not the default one.
const FIRST_NUMBER: usize = 2;
/// The number of all streams after the last one that has a number of its own.
const NO_NUMBER: u8 = u8::MAX;

/// The numbers by which the journal tells streams apart.
#[derive(Default)]
pub struct StreamNumbers {
    /// Identities of the streams that have a number, in the order of their numbers.
    known: Mutex<Vec<u64>>,
}

impl StreamNumbers {
    /// The journal's number of a stream. An identity of 0 is the default stream.
    pub fn number(&self, stream: Option<u64>) -> u8 {
        let identity = match stream {
            None => return 0,
            Some(DEFAULT_STREAM) => return DEFAULT_NUMBER,
            Some(identity) => identity,
        };
        let mut known = lock(&self.known);
        let index = known.iter().position(|&other| other == identity).unwrap_or(known.len());
        match u8::try_from(FIRST_NUMBER + index) {
            Ok(number) if number != NO_NUMBER => {
                if index == known.len() {
                    known.push(identity);
                }
                number
            }
            _ => NO_NUMBER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_lock_is_held_while_an_event_is_recorded_but_the_stream_stays() {
        let streams = LiveStreams::default();
        let identity = streams.identity_of_special(STREAM_PER_THREAD, 10, thread_number());
        let is_gone = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let used = streams.with(identity, |_| {
                assert!(streams.lists.try_write().is_ok());
                scope.spawn(|| {
                    streams.stream_closes(STREAM_PER_THREAD);
                    is_gone.store(true, std::sync::atomic::Ordering::SeqCst);
                });
                while read(&streams.lists).known.contains_key(&identity) {
                    std::thread::yield_now();
                }
                is_gone.load(std::sync::atomic::Ordering::SeqCst)
            });
            assert_eq!(used, Some(false));
        });
        assert!(streams.with(identity, |_| ()).is_none());
    }

    #[test]
    fn the_default_stream_of_a_thread_is_recorded_on_by_that_thread_alone_and_goes_with_it() {
        let streams = LiveStreams::default();
        let of_this_thread = |context| streams.identity_of_special(STREAM_PER_THREAD, context, thread_number());
        let place = |identity| streams.with(identity, |place| place);
        let own = of_this_thread(10);
        let elsewhere = of_this_thread(11);
        assert_eq!(own, of_this_thread(10));
        let handle = STREAM_PER_THREAD;
        assert_eq!(place(own), Some(Place::Stream { handle, context: 10 }));
        assert_eq!(place(elsewhere), Some(Place::Stream { handle, context: 11 }));
        let other = std::thread::scope(|scope| scope.spawn(|| of_this_thread(10)).join().expect("a thread"));
        assert_ne!(other, own);
        assert_eq!(place(other), Some(Place::Context(10)));
        while place(other).is_some() {
            // The kernel may take a moment to end a thread that was joined.
            write(&streams.lists).forget(has_ended);
        }
        streams.context_gone(10);
        assert_eq!([place(own), place(elsewhere).and(None)], [None, None]);
        assert_ne!(of_this_thread(10), own);
    }
}
