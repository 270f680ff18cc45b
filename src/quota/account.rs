//! The account that the processes on one device share: how many bytes all of them use, and how many each process holds.
//!
//! The account lies in memory that all these processes map. No lock guards it, because a process may be killed or
//! stopped at any instruction. It consists of one *word* and of one *seat* for each process. The word holds three
//! numbers: the bytes used by all, the seat whose operation changed the word last, and that operation's number. A seat
//! holds the number of the latest operation of its process, and the bytes held before and after that operation.
//!
//! An operation takes bytes or gives bytes back, in these steps. If another process changes the word before step 5,
//! the operation starts again at step 1.
//!
//! 1. Read the word and compute the new number of used bytes; stop if it exceeds the limit.
//! 2. Store the bytes held before and after the operation in this process's seat. The seat has one pair of fields for
//!    odd operation numbers and one for even ones.
//! 3. Store the operation's number in this process's seat. Store there too which operation the word names: this process
//!    *expects* that word. Read the word again; if it has changed, start again at step 1.
//! 4. *Acknowledge* the operation that the word names: store its number in the seat of the process that made it.
//! 5. Replace the word by compare-and-swap. At this instant the operation takes effect.
//!
//! So any process can find out whether the latest operation of a dead process took effect. If it did, either the word
//! still names the operation, or the process that replaced the word acknowledged the operation first. An example with
//! two processes, where `word` is (used, seat, number):
//!
//! ```text
//! A has seat 0, B has seat 1                        word (  0, -, 0)
//! A takes 100 as its operation 1                    word (100, 0, 1)   seat 0: number 1, held 0 -> 100
//! B takes  50 as its operation 1                    word (150, 1, 1)   seat 1: number 1, held 0 -> 50
//!     (B acknowledged A's operation 1 in seat 0 before it replaced the word)
//! A begins to take 30 as its operation 2            word (150, 1, 1)   seat 0: number 2, held 100 -> 130
//! A is killed before step 5:  the word does not name seat 0 and number 2, and only operation 1 is acknowledged.
//!                             So A held 100
//! A is killed after step 5:   the word is (180, 0, 2). So A held 130. If B replaces the word, B first acknowledges
//!                             operation 2 in seat 0, so A's 130 bytes stay known
//! ```
//!
//! The word has only the low bits of a number. So after 2,048 operations of one process the same word could come again,
//! and a process that was stopped before step 5 would replace it without acknowledging the later operation. Therefore
//! no process gives an operation a number that another expects: it looks at all seats once in 1,024 operations, and
//! leaves out the numbers that it finds there. A number that is expected later belongs to a newer operation.
//!
//! The next process that locks seat 0 gives A's bytes back with operation 3 (or 2, if A's did not take effect). That
//! process may also be killed at any step.
//!
//! Only one process at a time operates on a seat. `file` decides which process that is.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

pub const SEATS: usize = 2048;
/// The layout of the file. A process of another layout does not join.
pub(super) const VERSION: u32 = 1;

/// The bits of the word, from its low end: the bytes used by all, the seat of the last operation, and the low bits of
/// that operation's number.
const USED_BITS: u32 = 42;
const SEAT_BITS: u32 = 11;
const NUMBER_BITS: u32 = 11;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
/// The most numbers that an operation leaves out.
const MOST_LEFT_OUT: u32 = 512;
/// The most bytes that an account can count: 4 TiB, more than any device has.
pub const MAX_BYTES: u64 = (1 << USED_BITS) - 1;

const _: () = assert!(USED_BITS + SEAT_BITS + NUMBER_BITS == 64 && SEATS == 1 << SEAT_BITS);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Word {
    fn new(used: u64, seat: usize, number: u64) -> Word {
        let number = number & NUMBER_MASK;
        Word(used | (seat as u64) << USED_BITS | number << (USED_BITS + SEAT_BITS))
    }

    fn used(self) -> u64 {
        self.0 & MAX_BYTES
    }

    fn seat(self) -> usize {
        (self.0 >> USED_BITS) as usize & (SEATS - 1)
    }

    /// The low bits of the operation's number.
    fn number(self) -> u64 {
        self.0 >> (USED_BITS + SEAT_BITS)
    }

    /// Seat and number alone, plus 1, because 0 in `Seat::expects` stands for no operation.
    fn operation(self) -> u64 {
        (self.0 >> USED_BITS) + 1
    }

    /// Whether the word was made by operation `number` of `seat`.
    fn names(self, seat: usize, number: u64) -> bool {
        self == Word::new(self.used(), seat, number) && number > 0
    }
}

/// The account in shared memory. If all bytes are zero, no process holds anything.
#[repr(C, align(128))]
pub struct Account {
    word: AtomicU64,
    /// Bytes that all processes of the group together may use, as written by the last process that began to use the
    /// account; 0 for no limit. Only for display: each process applies the limit of its own environment.
    pub limit: AtomicU64,
    /// The highest seat that ever had an operation, plus one.
    operated: AtomicU64,
    /// Changes with every answer to a request for memory (`reclaim`). Those who asked sleep on it.
    pub(super) answers: AtomicU32,
    _unused: u32,
    /// Keeps the word on a cache line of its own.
    _padding: [u64; 12],
    seats: [Seat; SEATS],
}

/// The entry of one process. The next process that takes the seat continues the operation numbers.
#[repr(C, align(128))]
pub struct Seat {
    /// The number of the operation that began last; 0 before the first.
    number: AtomicU64,
    /// Operations of this seat up to this number are known to have taken effect.
    acknowledged: AtomicU64,
    /// Bytes held before and after an operation. The first pair is for even operation numbers, the second for odd ones.
    held: [[AtomicU64; 2]; 2],
    /// The operation whose word the seat's process is about to replace, as `Word::operation`; 0 for none.
    expects: AtomicU64,
    /// Of the held bytes, those of the process's contexts; 0 if they are not known.
    pub contexts: AtomicU64,
    _unused: u64,
    /// 1 if a process has the seat, or died with the seat; else 0.
    pub taken: AtomicU32,
    /// 1 if the process may lose its lock on the seat while it lives; else 0.
    pub weak: AtomicU32,
    /// The process id in the pid namespace of the process.
    pub pid: AtomicU64,
    /// The inode number of that pid namespace.
    pub namespace: AtomicU64,
    /// Start time of the process in clock ticks after boot.
    pub start_ticks: AtomicU64,
    /// The process id again, while a thread of the process answers requests for memory (`reclaim`). What a process before
    /// left here does not count, as its process id differs.
    pub(super) listener: AtomicU64,
    /// The number of the newest request for memory. The thread that answers sleeps on it.
    pub(super) asked: AtomicU32,
    /// The newest request that was answered.
    pub(super) answered: AtomicU32,
    /// Bytes that the process gave back at the requests of others, ever.
    pub(super) given_back: AtomicU64,
}

const _: () = assert!(size_of::<Seat>() == 128 && size_of::<Account>() == 128 * (SEATS + 1));

/// What a process knows of its seat: the seat's index, and how the latest operation on the seat ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeatHandle {
    pub(super) seat: usize,
    /// The number of the operation that began last.
    number: u64,
    /// Whether that operation took effect.
    done: bool,
    /// Bytes that the process holds.
    pub held: u64,
    /// No process expects a word with an operation of this seat from the next number up to this one.
    fresh_until: u64,
}

/// Bytes were refused: all processes together would have used more than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Bytes that all processes used when the request was refused.
    pub used: u64,
}

/// The used bytes that the first word of an account holds.
pub(super) fn used_in(word: u64) -> u64 {
    Word(word).used()
}

impl Account {
    /// Where the word is, for who reads it from the file.
    pub(super) const WORD: usize = std::mem::offset_of!(Account, word);

    pub fn used(&self) -> u64 {
        Word(self.word.load(SeqCst)).used()
    }

    /// Sets all to zero. The caller must have locked all seats.
    pub fn clear(&self) {
        for seat in &self.seats {
            // SAFETY: the fields of a seat are atomic numbers, and fill its 128 bytes.
            let words = unsafe { &*ptr::from_ref(seat).cast::<[AtomicU64; 16]>() };
            words.iter().for_each(|word| word.store(0, SeqCst));
        }
        self.word.store(0, SeqCst);
    }

    pub fn seat(&self, seat: usize) -> &Seat {
        &self.seats[seat]
    }

    /// Makes a handle of a seat as it is now. The caller may operate on the seat only if no other process does.
    pub fn handle(&self, seat: usize) -> SeatHandle {
        let state = &self.seats[seat];
        let number = state.number.load(SeqCst);
        let done = self.took_effect(seat, number);
        SeatHandle {
            seat,
            number,
            done,
            held: state.held_by(number, done),
            fresh_until: 0,
        }
    }

    /// Bytes that the process on a seat holds now. If that process runs, the number may change at any moment.
    pub fn held(&self, seat: usize) -> u64 {
        self.handle(seat).held
    }

    fn took_effect(&self, seat: usize, number: u64) -> bool {
        // The word must be read before `acknowledged`: a process that replaces the word acknowledges the operation
        // first.
        Word(self.word.load(SeqCst)).names(seat, number) || self.seats[seat].acknowledged.load(SeqCst) >= number
    }

    /// Takes `bytes`, unless all processes together would then use more than `limit`.
    pub fn take(&self, handle: &mut SeatHandle, bytes: u64, limit: u64) -> Result<(), Refused> {
        let becomes = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= limit.min(MAX_BYTES));
        self.operate(handle, &becomes, bytes as i64, &mut || {})
    }

    /// Adds `bytes` that the process already has, whatever the limit. Fails only if the account would exceed
    /// `MAX_BYTES`.
    pub fn add(&self, handle: &mut SeatHandle, bytes: u64) -> Result<(), Refused> {
        self.take(handle, bytes, MAX_BYTES)
    }

    /// Gives back `bytes`, but no more than the process holds.
    pub fn give(&self, handle: &mut SeatHandle, bytes: u64) {
        let bytes = bytes.min(handle.held);
        if bytes > 0 {
            let becomes = |used: u64| Some(used.saturating_sub(bytes));
            // An operation that lowers the used bytes is never refused.
            let _ = self.operate(handle, &becomes, -(bytes as i64), &mut || {});
        }
    }

    /// Does one operation, which adds `change` to the bytes that the seat holds. `becomes` computes the used bytes
    /// after the operation from those before it; `None` refuses the operation. `step` is called before each step that
    /// other processes can see: tests stop an operation there.
    fn operate(
        &self,
        handle: &mut SeatHandle,
        becomes: &dyn Fn(u64) -> Option<u64>,
        change: i64,
        step: &mut impl FnMut(),
    ) -> Result<(), Refused> {
        let state = &self.seats[handle.seat];
        // If the seat's last operation did not take effect, this operation gets the same number.
        let number = self.fresh_number(handle);
        let after = handle.held.wrapping_add_signed(change);
        loop {
            step();
            let word = Word(self.word.load(SeqCst));
            let Some(used) = becomes(word.used()) else {
                state.expects.store(0, SeqCst);
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
            state.expects.store(word.operation(), SeqCst);
            step();
            if !self.acknowledge(word) {
                continue;
            }
            step();
            let new = Word::new(used, handle.seat, number);
            if self.word.compare_exchange(word.0, new.0, SeqCst, SeqCst).is_ok() {
                (handle.done, handle.held) = (true, after);
                step();
                state.expects.store(0, SeqCst);
                return Ok(());
            }
        }
    }

    /// Stores in a seat that the operation which `word` names took effect. The seat is that of the operation. Returns
    /// false, and stores nothing, if the word has changed.
    fn acknowledge(&self, word: Word) -> bool {
        let seat = &self.seats[word.seat()];
        let latest = seat.number.load(SeqCst);
        // As long as the word is unchanged, the operation that it names is the seat's latest or the one before the
        // latest. If the word has changed, the process that changed it has acknowledged the operation already.
        if self.word.load(SeqCst) != word.0 {
            return false;
        }
        let number = latest.wrapping_sub(latest.wrapping_sub(word.number()) & NUMBER_MASK);
        // The first word of an account names no operation.
        if (1..=latest).contains(&number) {
            seat.acknowledged.fetch_max(number, SeqCst);
        }
        true
    }

    /// The number of the seat's next operation. If the last one did not take effect, it may get the same number. A
    /// number that is left out leaves out the next one too, because the fields of the last operation must stay.
    fn fresh_number(&self, handle: &mut SeatHandle) -> u64 {
        let mut number = handle.number.wrapping_add(u64::from(handle.done));
        if number <= handle.fresh_until {
            return number;
        }
        self.operated.fetch_max(handle.seat as u64 + 1, SeqCst);
        // If more numbers were expected than this, most processes of the account would be stopped in an operation.
        for _ in 0..MOST_LEFT_OUT {
            let free = self.free_numbers(handle.seat, number);
            if free > 0 {
                handle.fresh_until = number.wrapping_add(free - 1);
                break;
            }
            number = number.wrapping_add(2);
        }
        number
    }

    /// How many numbers from `number` on name no operation of the seat that a process expects. At most half of all,
    /// because meanwhile others may expect the operations that get these numbers.
    fn free_numbers(&self, seat: usize, number: u64) -> u64 {
        let operated = (self.operated.load(SeqCst) as usize).min(SEATS);
        let expected = self.seats[..operated].iter().map(|other| other.expects.load(SeqCst));
        expected
            .filter(|&operation| operation > 0)
            .map(|operation| Word(operation.wrapping_sub(1) << USED_BITS))
            .filter(|word| word.seat() == seat)
            .map(|word| word.number().wrapping_sub(number) & NUMBER_MASK)
            .fold(1 << (NUMBER_BITS - 1), u64::min)
    }
}

impl Seat {
    /// The bytes held after operation `number` if it took effect (`done`), else those before it.
    fn held_by(&self, number: u64, done: bool) -> u64 {
        self.held[number as usize & 1][usize::from(done)].load(SeqCst)
    }
}

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
