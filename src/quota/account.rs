//! The account that the processes on one device share: how many bytes they use together, and how many each of them
//! holds.
//!
//! The account lies in memory that all these processes map. No lock guards it, because a process may be killed or
//! stopped at any instruction. It consists of one *word* and of one *seat* for each process. The word holds three
//! numbers: the bytes used by all, the seat whose operation changed the word last, and that operation's number. A seat
//! tells what the latest operation of its process is to change: the bytes held before it and after it.
//!
//! An operation (take or give back bytes) does these steps. If another process changes the word before step 5, the
//! operation starts again at step 1.
//!
//! 1. Read the word and compute the new number of used bytes; stop if it exceeds the limit.
//! 2. Store the bytes held before and after in the own seat, in the pair for odd or for even operation numbers.
//! 3. Store the operation's number in the own seat.
//! 4. *Acknowledge* the operation that the word names: store its number in the seat of the process that made it.
//! 5. Replace the word by compare-and-swap. At this instant the operation takes effect.
//!
//! So any process can tell whether the latest operation of a dead process took effect: either the word still names it,
//! or a process that replaced the word has acknowledged it first. An example with two processes, where `word` is (used,
//! seat, number):
//!
//! ```text
//! A has seat 0, B has seat 1                        word (  0, -, 0)
//! A takes 100 as its operation 1                    word (100, 0, 1)   seat 0: number 1, held 0 -> 100
//! B takes  50 as its operation 1                    word (150, 1, 1)   seat 1: number 1, held 0 -> 50
//!     (B acknowledged A's operation 1 in seat 0 before it replaced the word)
//! A begins to take 30 as its operation 2            word (150, 1, 1)   seat 0: number 2, held 100 -> 130
//! A is killed before step 5:  the word does not name seat 0 and number 2, and only operation 1 is acknowledged:
//!                             A held 100
//! A is killed after step 5:   the word is (180, 0, 2): A held 130. If B replaces the word, it first acknowledges
//!                             operation 2 in seat 0, so A's 130 bytes stay known
//! ```
//!
//! The next process on seat 0 gives these bytes back with an operation of its own, and may itself be killed at any
//! step.
//!
//! A seat has one process that operates on it at a time. `file` decides which.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

pub const SEATS: usize = 2048;

/// Bits of the word, from its low end: bytes used by all, the seat of the last operation, and that operation's number,
/// of which the word keeps the low bits.
const USED_BITS: u32 = 42;
const SEAT_BITS: u32 = 11;
const NUMBER_BITS: u32 = 11;
/// The most that an account can count: 4 TiB, more than any device has.
pub const MAX_BYTES: u64 = (1 << USED_BITS) - 1;

const _: () = assert!(USED_BITS + SEAT_BITS + NUMBER_BITS == 64 && SEATS == 1 << SEAT_BITS);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Word {
    fn new(used: u64, seat: usize, number: u64) -> Word {
        let number = number & ((1 << NUMBER_BITS) - 1);
        Word(used | (seat as u64) << USED_BITS | number << (USED_BITS + SEAT_BITS))
    }

    fn used(self) -> u64 {
        self.0 & MAX_BYTES
    }

    fn seat(self) -> usize {
        (self.0 >> USED_BITS) as usize & (SEATS - 1)
    }

    /// Whether the operation of this seat with this number made the word.
    fn names(self, seat: usize, number: u64) -> bool {
        self == Word::new(self.used(), seat, number) && number > 0
    }
}

/// The account in shared memory. If all bytes are zero, no process holds anything.
#[repr(C, align(128))]
pub struct Account {
    word: AtomicU64,
    /// Bytes that all processes together may use, as the last process with such a limit wrote it; 0 if there is none.
    /// Only for display: each process applies its own limit.
    pub limit: AtomicU64,
    /// Keeps the word on a cache line of its own.
    _padding: [u64; 14],
    seats: [Seat; SEATS],
}

/// The entry of one process. If another process takes the seat, it goes on counting from the last operation's number.
#[repr(C, align(128))]
pub struct Seat {
    /// The number of the operation that began last; 0 before the first.
    number: AtomicU64,
    /// Operations up to this number are known to have taken effect.
    acknowledged: AtomicU64,
    /// Bytes held before and after an operation: the first pair for even operation numbers, the second for odd ones.
    held: [[AtomicU64; 2]; 2],
    /// 1 if a process has the seat, or had it and died; else 0.
    pub taken: AtomicU64,
    /// The process as it knows itself: process id in its own pid namespace, the inode number of that namespace, and
    /// start time in clock ticks.
    pub pid: AtomicU64,
    pub namespace: AtomicU64,
    pub start_ticks: AtomicU64,
}

/// A process's own record of its seat: which seat it is, and how its latest operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeatHandle {
    seat: usize,
    /// The number of the operation that began last.
    number: u64,
    /// Whether that operation took effect.
    done: bool,
    held: u64,
}

impl SeatHandle {
    /// Bytes that the process holds.
    pub fn held(&self) -> u64 {
        self.held
    }
}

/// Why nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Bytes that all processes used at that moment.
    pub used: u64,
}

/// Called before each step that other processes can see. Tests stop an operation there.
trait Steps: FnMut() {}
impl<F: FnMut()> Steps for F {}

impl Account {
    pub fn used(&self) -> u64 {
        Word(self.word.load(SeqCst)).used()
    }

    pub fn seat(&self, seat: usize) -> &Seat {
        &self.seats[seat]
    }

    /// Reads the seat as its last process left it. The caller may operate on it only if no other process does.
    pub fn handle(&self, seat: usize) -> SeatHandle {
        let state = &self.seats[seat];
        let number = state.number.load(SeqCst);
        let done = self.took_effect(seat, number);
        SeatHandle {
            seat,
            number,
            done,
            held: state.held_by(number, done),
        }
    }

    /// Bytes that the process on a seat holds. That process may change them at any moment.
    pub fn held(&self, seat: usize) -> u64 {
        self.handle(seat).held
    }

    fn took_effect(&self, seat: usize, number: u64) -> bool {
        // The word is read first: a process that replaces it has acknowledged the operation before.
        Word(self.word.load(SeqCst)).names(seat, number) || self.seats[seat].acknowledged.load(SeqCst) >= number
    }

    /// Takes `bytes`, unless all processes together would then use more than `limit`.
    pub fn take(&self, handle: &mut SeatHandle, bytes: u64, limit: u64) -> Result<(), Refused> {
        self.operate(
            handle,
            &|used| used.checked_add(bytes).filter(|&sum| sum <= limit.min(MAX_BYTES)),
            bytes as i64,
            &mut || {},
        )
    }

    /// Counts `bytes` that the process already has, whatever the limit. Fails only above `MAX_BYTES`.
    pub fn add(&self, handle: &mut SeatHandle, bytes: u64) -> Result<(), Refused> {
        self.take(handle, bytes, MAX_BYTES)
    }

    /// Gives back `bytes`, but no more than the process holds.
    pub fn give(&self, handle: &mut SeatHandle, bytes: u64) {
        let bytes = bytes.min(handle.held);
        if bytes > 0 {
            // A smaller number is never refused.
            let _ = self.operate(
                handle,
                &|used| Some(used.saturating_sub(bytes)),
                -(bytes as i64),
                &mut || {},
            );
        }
    }

    /// One operation. `becomes` computes the used bytes after it, or `None` if it is refused; the seat then holds
    /// `change`
    /// bytes more.
    fn operate(
        &self,
        handle: &mut SeatHandle,
        becomes: &dyn Fn(u64) -> Option<u64>,
        change: i64,
        step: &mut impl Steps,
    ) -> Result<(), Refused> {
        let state = &self.seats[handle.seat];
        // If the last operation did not take effect, its number is used again.
        let number = handle.number.wrapping_add(u64::from(handle.done));
        let after = handle.held.wrapping_add_signed(change);
        loop {
            step();
            let word = Word(self.word.load(SeqCst));
            let Some(used) = becomes(word.used()) else {
                return Err(Refused { used: word.used() });
            };
            let held = &state.held[number as usize & 1];
            step();
            held[0].store(handle.held, SeqCst);
            step();
            held[1].store(after, SeqCst);
            step();
            state.number.store(number, SeqCst);
            (handle.number, handle.done) = (number, false);
            step();
            self.acknowledge(word);
            step();
            let new = Word::new(used, handle.seat, number);
            if self.word.compare_exchange(word.0, new.0, SeqCst, SeqCst).is_ok() {
                (handle.done, handle.held) = (true, after);
                return Ok(());
            }
        }
    }

    /// Notes that the operation which `word` names took effect, in the seat of the process that made it.
    fn acknowledge(&self, word: Word) {
        let seat = &self.seats[word.seat()];
        let latest = seat.number.load(SeqCst);
        // While the word stays, its operation is the seat's latest or the one before that. If the word has changed, the
        // process that changed it has acknowledged the operation.
        if self.word.load(SeqCst) != word.0 {
            return;
        }
        for number in [latest, latest.wrapping_sub(1)] {
            if word.names(word.seat(), number) {
                seat.acknowledged.fetch_max(number, SeqCst);
                return;
            }
        }
    }
}

impl Seat {
    fn held_by(&self, number: u64, done: bool) -> u64 {
        self.held[number as usize & 1][usize::from(done)].load(SeqCst)
    }
}

#[cfg(test)]
mod tests;
