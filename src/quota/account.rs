//! The account that the processes on one device share: how much they have together, and who has how much of it.
//!
//! It lies in memory that they all map, and no lock guards it, because a process may be killed or stopped at any
//! instruction. One word says how much is used; taking is one compare-and-swap on it, so of two that race for the last
//! byte one wins. The word also says whose operation it was that changed it last, and the number of that operation. A
//! *seat* belongs to one process and says what its latest operation is to change there. So whoever finds a seat whose
//! process died can tell whether that operation came about: the word names it, or it was *acknowledged*, which everybody
//! does for the operation that the word names before they replace the word. What the dead process had is then known to
//! the byte, and given back by an operation of the same kind in its place.
//!
//! Who sits where is not decided here (see `file`): a seat has one process that operates on it at a time.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

pub const SEATS: usize = 2048;

/// The word, from its low end: bytes used by all, the seat of the last operation, the number of that operation.
const USED_BITS: u32 = 42;
const SEAT_BITS: u32 = 11;
const NUMBER_BITS: u32 = 11;
/// More than any device has: 4 TiB.
pub const MOST: u64 = (1 << USED_BITS) - 1;

const _: () = assert!(USED_BITS + SEAT_BITS + NUMBER_BITS == 64 && SEATS == 1 << SEAT_BITS);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Word {
    fn new(used: u64, seat: usize, number: u64) -> Word {
        let number = number & ((1 << NUMBER_BITS) - 1);
        Word(used | (seat as u64) << USED_BITS | number << (USED_BITS + SEAT_BITS))
    }

    fn used(self) -> u64 {
        self.0 & MOST
    }

    fn seat(self) -> usize {
        (self.0 >> USED_BITS) as usize & (SEATS - 1)
    }

    /// Whether this word was made by the operation of this number.
    fn names(self, seat: usize, number: u64) -> bool {
        self == Word::new(self.used(), seat, number) && number > 0
    }
}

/// The account in shared memory. All zero is an account of nothing.
#[repr(C, align(128))]
pub struct Account {
    word: AtomicU64,
    /// What all together may have, as the last process that has such a limit wrote it; 0 where none has. For onlookers:
    /// each process goes by its own.
    pub limit: AtomicU64,
    /// Keeps the word on a cache line of its own.
    _apart: [u64; 14],
    seats: [Seat; SEATS],
}

/// What one process has. Numbers of operations go on counting when another process takes the seat.
#[repr(C, align(128))]
pub struct Seat {
    /// The operation begun last; 0 before the first.
    number: AtomicU64,
    /// The operations up to this one are known to have come about.
    acknowledged: AtomicU64,
    /// By the operation's number, odd or even: bytes held before and after it.
    held: [[AtomicU64; 2]; 2],
    /// Whether somebody sits here, or did and died.
    pub taken: AtomicU64,
    /// Who, as the process itself knows: process id in its own namespace, that namespace, start time in clock ticks.
    pub pid: AtomicU64,
    pub namespace: AtomicU64,
    pub start_ticks: AtomicU64,
}

/// A process's own view of its seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    seat: usize,
    /// The operation begun last, and whether it came about.
    number: u64,
    done: bool,
    held: u64,
}

impl Place {
    pub fn held(&self) -> u64 {
        self.held
    }
}

/// Why nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Bytes used when it was.
    pub used: u64,
}

/// Called before each step that others can see: tests stop there.
trait Steps: FnMut() {}
impl<F: FnMut()> Steps for F {}

impl Account {
    pub fn used(&self) -> u64 {
        Word(self.word.load(SeqCst)).used()
    }

    pub fn seat(&self, seat: usize) -> &Seat {
        &self.seats[seat]
    }

    /// Takes up the seat as its last process left it, dead or not.
    pub fn sit(&self, seat: usize) -> Place {
        let state = &self.seats[seat];
        let number = state.number.load(SeqCst);
        let done = self.came_about(seat, number);
        Place {
            seat,
            number,
            done,
            held: state.held_by(number, done),
        }
    }

    /// Bytes that the process on a seat has; for onlookers, so it may be a moment old.
    pub fn held(&self, seat: usize) -> u64 {
        self.sit(seat).held
    }

    fn came_about(&self, seat: usize, number: u64) -> bool {
        // The word first: who replaces it has acknowledged before.
        Word(self.word.load(SeqCst)).names(seat, number) || self.seats[seat].acknowledged.load(SeqCst) >= number
    }

    /// Takes `bytes` where all together then have at most `limit`.
    pub fn take(&self, place: &mut Place, bytes: u64, limit: u64) -> Result<(), Refused> {
        self.operate(
            place,
            &|used| used.checked_add(bytes).filter(|&sum| sum <= limit.min(MOST)),
            bytes as i64,
            &mut || {},
        )
    }

    /// Books `bytes` that are had already, whatever the limit. Nothing is booked above `MOST`.
    pub fn add(&self, place: &mut Place, bytes: u64) -> Result<(), Refused> {
        self.take(place, bytes, MOST)
    }

    /// Gives back `bytes`, at most those held.
    pub fn give(&self, place: &mut Place, bytes: u64) {
        let bytes = bytes.min(place.held);
        if bytes > 0 {
            // Never refused.
            let _ = self.operate(
                place,
                &|used| Some(used.saturating_sub(bytes)),
                -(bytes as i64),
                &mut || {},
            );
        }
    }

    /// One operation: `becomes` says what is used after it, or that it must not be; this seat holds `change` more.
    fn operate(
        &self,
        place: &mut Place,
        becomes: &dyn Fn(u64) -> Option<u64>,
        change: i64,
        step: &mut impl Steps,
    ) -> Result<(), Refused> {
        let state = &self.seats[place.seat];
        // The number of an operation that never came about is used again.
        let number = place.number.wrapping_add(u64::from(place.done));
        let after = place.held.wrapping_add_signed(change);
        loop {
            step();
            let word = Word(self.word.load(SeqCst));
            let Some(used) = becomes(word.used()) else {
                return Err(Refused { used: word.used() });
            };
            let held = &state.held[number as usize & 1];
            step();
            held[0].store(place.held, SeqCst);
            step();
            held[1].store(after, SeqCst);
            step();
            state.number.store(number, SeqCst);
            (place.number, place.done) = (number, false);
            step();
            self.acknowledge(word);
            step();
            let new = Word::new(used, place.seat, number);
            if self.word.compare_exchange(word.0, new.0, SeqCst, SeqCst).is_ok() {
                (place.done, place.held) = (true, after);
                return Ok(());
            }
        }
    }

    /// Notes in its seat that the operation which the word names came about.
    fn acknowledge(&self, word: Word) {
        let seat = &self.seats[word.seat()];
        let latest = seat.number.load(SeqCst);
        // While the word stays, its operation is the seat's latest or the one before that. Has the word changed,
        // somebody else has seen to it.
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
