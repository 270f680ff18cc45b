//! How a process that finds no memory gets the idle memory of the others that share its account.
//!
//! Each seat has the number of the newest request for memory, and of the newest one that was answered. A thread of the
//! process sleeps on the first number (`FUTEX_WAIT`). Who lacks memory raises the number and wakes the thread, which gives back
//! what its process holds free, stores the answer and wakes those who asked. No lock is involved, so a process that is
//! stopped or killed meanwhile keeps nobody from memory: who asked goes on after `LONGEST_WAIT`.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::file::SharedAccount;
use base::identity;

/// How long a request waits for the answers of others, all together.
pub const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// How often a process that waits for answers looks whether the others can still run.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// How often a process that listens on several words looks at them, if the kernel cannot wait for several.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The most words that the kernel waits for at once (`FUTEX_WAITV_MAX`, linux/futex.h).
const MOST_WORDS: usize = 128;

/// What became of a request to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// How many processes were asked.
    pub processes: u32,
    /// How many of them answered in time.
    pub answered: u32,
    /// Bytes that they gave back.
    pub bytes: u64,
}

/// The seat of a process that answers requests.
#[derive(Clone, Copy)]
pub struct Listener {
    pub(super) account: &'static SharedAccount,
    pub(super) seat: usize,
}

impl Listener {
    /// From now on others may ask. The caller has a thread that answers.
    pub fn begin(&self) {
        let seat = self.account.account().seat(self.seat);
        seat.answered.store(seat.asked.load(SeqCst), SeqCst);
        seat.listener.store(seat.pid.load(SeqCst), SeqCst);
    }

    /// The number of the newest request, if it is not answered yet.
    pub fn asked(&self) -> Option<u32> {
        let seat = self.account.account().seat(self.seat);
        let asked = seat.asked.load(SeqCst);
        (asked != seat.answered.load(SeqCst)).then_some(asked)
    }

    /// Answers request `number` and all before it: `bytes` were given back.
    pub fn answer(&self, number: u32, bytes: u64) {
        let account = self.account.account();
        let seat = account.seat(self.seat);
        seat.given_back.fetch_add(bytes, SeqCst);
        seat.answered.store(number, SeqCst);
        account.answers.fetch_add(1, SeqCst);
        wake(&account.answers);
    }

    fn word(&self) -> (&'static AtomicU32, u32) {
        let seat = self.account.account().seat(self.seat);
        (&seat.asked, seat.answered.load(SeqCst))
    }

    /// Ends a `wait` of this process, which then looks at its seats again.
    pub fn poke(&self) {
        wake(self.word().0);
    }
}

/// Sleeps until a process asks one of these seats, but not longer than `longest`. Without a seat, sleeps as long as the
/// word `otherwise` has this value.
pub fn wait(listeners: &[Listener], otherwise: (&AtomicU32, u32), longest: Duration) {
    let words: Vec<_> = listeners.iter().take(MOST_WORDS).map(Listener::word).collect();
    match words[..] {
        [] => sleep_on(otherwise.0, otherwise.1, longest),
        [(word, answered)] => sleep_on(word, answered, longest),
        _ if sleep_on_any(&words, longest) => {}
        _ => std::thread::sleep(longest.min(POLL_INTERVAL)),
    }
}

/// A word that `wait` sleeps on, for others of this process that `wake` the thread.
pub fn word(listeners: &[Listener], otherwise: &'static AtomicU32) -> &'static AtomicU32 {
    listeners.first().map_or(otherwise, |listener| listener.word().0)
}

/// One request to another process.
struct Request {
    seat: usize,
    number: u32,
    /// The process id, if it means the process in this pid namespace too.
    pid: Option<u32>,
    /// Bytes that the process had given back before.
    before: u64,
}

impl SharedAccount {
    pub(super) fn ask_others(&self) -> Asked {
        let end = Instant::now() + LONGEST_WAIT;
        let account = self.account();
        let mut open = self.ask_each();
        let mut asked = Asked {
            processes: open.len() as u32,
            ..Asked::default()
        };
        let mut looked = Instant::now();
        while !open.is_empty() {
            let answers = account.answers.load(SeqCst);
            open.retain(|request| {
                let seat = account.seat(request.seat);
                // The numbers wrap around.
                let is_answered = seat.answered.load(SeqCst).wrapping_sub(request.number) as i32 >= 0;
                if is_answered {
                    asked.answered += 1;
                    asked.bytes += seat.given_back.load(SeqCst).saturating_sub(request.before);
                }
                !is_answered
            });
            if looked.elapsed() >= LOOK_INTERVAL {
                open.retain(|request| request.pid.is_none_or(identity::can_run));
                looked = Instant::now();
            }
            let left = end.saturating_duration_since(Instant::now());
            if open.is_empty() || left.is_zero() {
                break;
            }
            sleep_on(&account.answers, answers, left.min(LOOK_INTERVAL));
        }
        asked
    }

    /// Asks every process that listens and can run. Dead processes lose their seats first.
    fn ask_each(&self) -> Vec<Request> {
        self.reap();
        let own = base::sync::lock(&self.own).seats.clone();
        let here = identity::pid_namespace();
        let ask = |seat: usize| {
            let state = self.account().seat(seat);
            let pid = state.pid.load(SeqCst);
            let listens = state.taken.load(SeqCst) == 1 && pid != 0 && state.listener.load(SeqCst) == pid;
            let known = (state.namespace.load(SeqCst) == here).then_some(pid as u32);
            if !listens || own.contains(&seat) || !known.is_none_or(identity::can_run) {
                return None;
            }
            let before = state.given_back.load(SeqCst);
            let number = state.asked.fetch_add(1, SeqCst).wrapping_add(1);
            wake(&state.asked);
            Some(Request {
                seat,
                number,
                pid: known,
                before,
            })
        };
        (0..self.end_of_seats()).filter_map(ask).collect()
    }
}

/// Sleeps while `word` has this value, until somebody wakes those who sleep on it, but not longer than `longest`.
fn sleep_on(word: &AtomicU32, value: u32, longest: Duration) {
    let time = libc::timespec {
        tv_sec: longest.as_secs() as libc::time_t,
        tv_nsec: longest.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the word is memory that the caller has, and the time outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &time) };
}

/// As `sleep_on`, for several words. False if the kernel cannot (before Linux 5.16), or may not.
fn sleep_on_any(words: &[(&AtomicU32, u32)], longest: Duration) -> bool {
    /// `struct futex_waitv` (linux/futex.h)
    #[repr(C)]
    struct Waiter {
        value: u64,
        address: u64,
        flags: u32,
        reserved: u32,
    }
    /// `FUTEX2_SIZE_U32` (linux/futex.h)
    const U32: u32 = 2;
    let waiter = |&(word, value): &(&AtomicU32, u32)| Waiter {
        value: u64::from(value),
        address: word.as_ptr() as u64,
        flags: U32,
        reserved: 0,
    };
    let waiters: Vec<Waiter> = words.iter().map(waiter).collect();
    // SAFETY: `timespec` is plain data, valid if all zero.
    let mut end: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the time is valid for writing. The kernel's limit for this call is a moment, not a duration.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut end) };
    let ns = end.tv_nsec as u64 + u64::from(longest.subsec_nanos());
    end.tv_sec += (longest.as_secs() + ns / 1_000_000_000) as libc::time_t;
    end.tv_nsec = (ns % 1_000_000_000) as libc::c_long;
    // SAFETY: waiters and time outlive the call, and the words are mapped as long as the accounts are in use.
    let woken = unsafe {
        let (first, count, clock) = (waiters.as_ptr(), waiters.len(), libc::CLOCK_MONOTONIC);
        libc::syscall(libc::SYS_futex_waitv, first, count, 0, &end, clock)
    };
    woken >= 0 || !matches!(base::file::errno(), libc::ENOSYS | libc::EPERM | libc::EINVAL)
}

pub fn wake(word: &AtomicU32) {
    // SAFETY: the word is memory that the caller has.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
