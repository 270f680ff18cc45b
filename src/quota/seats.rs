//! Which process has which seat of an account's file.
//!
//! One byte of the file stands for each seat. A process has a seat as long as it holds the lock on that byte. The kernel
//! drops the lock when the process ends, however it ends, and in every pid namespace. So if a process can lock a seat that
//! another process took, the other process is dead. The process with the lock may then give back what the dead process held.
//!
//! The job must not lose a seat by closing descriptors. So a process locks its seat through an open file that it maps and
//! then closes: the mapping keeps the lock, and there is no descriptor that the job could close. A forked child does not
//! inherit the mapping, and closes a descriptor that its parent had still open. All other questions go through one more open
//! file.
//!
//! On some file systems (overlayfs) a mapping does not keep the lock, and some systems (gVisor) lock no open files. There the
//! process itself holds the lock. If the job closes a descriptor of the file, such a lock is lost, until the process locks
//! its seat again. So the seat is marked, and others of the same pid namespace do not take a living process for dead.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::account::{SEATS, SeatHandle};
use super::file::{SharedAccount, all_seats, byte};
use super::locks::{self, Look, Own};
use super::problem::Problem;
use base::descriptor::Inherited;
use base::identity;
use base::locks::Owner;
use base::sync::lock;
use base::text::shown;

/// The open file through which this process locks a seat. Its lock lasts as long as a forked child has the descriptor. If two
/// threads take seats of two devices at once, it is the later one.
static LOCKING: Inherited = Inherited::none();

/// A child that was forked while a thread of its parent took a seat has no part in that seat.
pub fn in_forked_child() {
    LOCKING.close();
}

/// How often `take_seat` looks for a seat, with a millisecond between.
const ROUNDS: usize = 200;

/// One process that holds memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process id in the pid namespace of the process.
    pub pid: u32,
    /// The inode number of that pid namespace.
    pub namespace: u64,
    /// Bytes that the process holds.
    pub held: u64,
}

impl SharedAccount {
    /// Takes a seat for this process. A process that sees one device under two ordinals takes one seat for each.
    pub fn take_seat(&self) -> Result<SeatHandle, Problem> {
        let mut own = lock(&self.own);
        let mut why = Problem::NoSeat;
        for _ in 0..ROUNDS {
            match self.lock_a_seat(&mut own) {
                Ok(Some(seat)) => {
                    own.seats.push(seat);
                    return Ok(self.occupy(seat, own.look.owner == Owner::Process));
                }
                // A process that finds nobody alive has all seats for a moment.
                Ok(None) => {}
                Err(problem @ Problem::NoLocks(_)) => return Err(problem),
                // The next look may find the descriptor open, or one that is free.
                Err(problem) => why = problem,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(why)
    }

    /// Locks a seat for as long as this process lives. `None` if no seat could be locked.
    fn lock_a_seat(&self, own: &mut Own) -> Result<Option<usize>, Problem> {
        if own.look.owner == Owner::Process {
            if own.look.file.number().is_none() {
                own.look.file = self.open_again()?;
            }
            return self.find_seat(&own.look, own);
        }
        // The job may have one descriptor left.
        own.look.file.close();
        let (file, owner) = (self.open_again()?, Owner::OpenFile);
        LOCKING.holds(&file);
        let look = Look { file, owner };
        self.forget_if_nobody_lives(&look);
        let Some(seat) = self.find_seat(&look, own)? else {
            return Ok(None);
        };
        let kept = locks::keep(look.file.number().ok_or(Problem::Closed)?)?;
        drop(look);
        own.look.file = self.open_again()?;
        let fd = own.look.file.number().ok_or(Problem::Closed)?;
        if !owner.finds_locked(fd, byte(seat)).map_err(Problem::of_lock)? {
            // No mapping keeps locks here, or the job closed the descriptor before it was mapped.
            own.look.owner = Owner::Process;
            return Ok(None);
        }
        // The page is kept as long as the process lives.
        std::mem::forget(kept);
        Ok(Some(seat))
    }

    /// Finds a seat that nobody has, and locks it.
    fn find_seat(&self, look: &Look, own: &Own) -> Result<Option<usize>, Problem> {
        // Few seats to choose from while few are in use: the used ones then have low numbers, and `reap` has few to
        // check.
        let span = (2 * self.end_of_seats() + 16).min(SEATS);
        // A hash of the process id is the first seat to try, so that processes which start at once try different seats.
        let pid = u64::from(std::process::id());
        let first = (pid.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % span;
        // The first round tries free seats, the second round tries taken seats, whose processes may be dead.
        for taken in [0, 1] {
            for seat in (0..SEATS).map(|step| (first + step) % SEATS) {
                if self.account().seat(seat).taken.load(SeqCst) == taken
                    && !own.seats.contains(&seat)
                    && !self.is_marked_and_alive(seat)
                    && look.lock(byte(seat)).map_err(Problem::of_lock)?
                {
                    return Ok(Some(seat));
                }
            }
        }
        Ok(None)
    }

    /// No seat with this number or a higher one was ever taken.
    pub(super) fn end_of_seats(&self) -> usize {
        (self.seats_used().load(SeqCst) as usize).min(SEATS)
    }

    /// Sets the account to zero if it counts bytes that no seat holds, and nobody has a seat.
    fn forget_if_nobody_lives(&self, look: &Look) {
        let account = self.account();
        let held = |seats: usize| (0..seats).map(|seat| account.held(seat)).fold(0, u64::wrapping_add);
        let marked = || (0..self.end_of_seats()).any(|seat| self.is_marked_and_alive(seat));
        if account.used() != held(self.end_of_seats()) && !marked() && look.lock(all_seats()) == Ok(true) {
            base::say::warn!(
                "accounts {}: {} bytes belong to no process; they are given back",
                shown(&self.path),
                account.used()
            );
            account.clear();
            look.unlock(all_seats());
        }
    }

    /// Writes this process into a seat that it has locked.
    fn occupy(&self, seat: usize, weak: bool) -> SeatHandle {
        self.seats_used().fetch_max(seat as u32 + 1, SeqCst);
        let state = self.account().seat(seat);
        state.taken.store(1, SeqCst);
        let handle = self.clear(seat);
        state.namespace.store(identity::pid_namespace(), SeqCst);
        state
            .start_ticks
            .store(identity::start_ticks("self").unwrap_or(0), SeqCst);
        state.weak.store(weak.into(), SeqCst);
        state.contexts.store(0, SeqCst);
        state.listener.store(0, SeqCst);
        state.pid.store(std::process::id().into(), SeqCst);
        handle
    }

    /// Gives back what the previous process of a seat held. The calling process must have locked the seat.
    fn clear(&self, seat: usize) -> SeatHandle {
        let account = self.account();
        account.seat(seat).pid.store(0, SeqCst);
        let mut handle = account.handle(seat);
        let held = handle.held;
        account.give(&mut handle, held);
        handle
    }

    /// Whether the process of a seat is alive, although its lock may be lost. A seat of this process that it does not know
    /// of was left by the program that it ran before `exec`.
    fn is_marked_and_alive(&self, seat: usize) -> bool {
        let state = self.account().seat(seat);
        let pid = state.pid.load(SeqCst);
        state.weak.load(SeqCst) == 1
            && pid != u64::from(std::process::id())
            && state.namespace.load(SeqCst) == identity::pid_namespace()
            && identity::start_ticks(&pid.to_string()) == Some(state.start_ticks.load(SeqCst))
    }

    /// Gives back what dead processes held, and frees their seats.
    pub fn reap(&self) {
        let mut own = lock(&self.own);
        if !self.is_open(&mut own) {
            return;
        }
        let look = &own.look;
        if look.owner == Owner::Process {
            // The job may have closed a descriptor of the file.
            for &seat in &own.seats {
                let _ = look.lock(byte(seat));
            }
        }
        for seat in (0..self.end_of_seats()).filter(|seat| !own.seats.contains(seat)) {
            let state = self.account().seat(seat);
            if state.taken.load(SeqCst) == 0 || self.is_marked_and_alive(seat) || look.lock(byte(seat)) != Ok(true) {
                continue;
            }
            // Another process may have cleared the seat before this one locked it.
            if state.taken.load(SeqCst) != 0 {
                self.clear(seat);
                state.taken.store(0, SeqCst);
            }
            look.unlock(byte(seat));
        }
    }

    /// The living processes that hold bytes of this account.
    pub fn holders(&self) -> Vec<Holder> {
        self.reap();
        (0..self.end_of_seats())
            .filter_map(|seat| {
                let state = self.account().seat(seat);
                let pid = state.pid.load(SeqCst);
                let holder = Holder {
                    pid: pid as u32,
                    namespace: state.namespace.load(SeqCst),
                    held: self.account().held(seat),
                };
                (state.taken.load(SeqCst) != 0 && pid != 0 && holder.held > 0).then_some(holder)
            })
            .collect()
    }
}
