//! How a request that found no memory waits for the GPU before it fails.
//!
//! A wait may clean freed memory, and giving idle memory back waits in the driver itself. But a driver that has no memory
//! says so at once. So a client may hold a lock meanwhile that the pending work needs: a host function that wants Python's
//! GIL, or the mutex of an allocator that tries, fails and falls back. A wait without bound would never end there.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::growth::Growth;
use super::pool::Pool;
use base::cuda::{CudaResult, DriverError};
use base::sync::lock;
use policy::device_memory::{DeviceMemory, EventId};

/// The longest wait for work that may need the caller. A job that runs ahead of the GPU has about a thousand launches in
/// its queue, which end within this time.
pub const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// The same for work that was waited for in vain once; each further time half of it. A client that often tries and fails
/// must not be slow for that; but the event may be done a moment after the job has seen the end of the work.
const LONGEST_WAIT_AGAIN: Duration = Duration::from_millis(500);
/// It is halved so many times at most.
const MOST_HALVINGS: u32 = 9;
const CHECK_INTERVAL: Duration = Duration::from_micros(100);
/// Other threads may submit work during a wait. If that ends so many times in succession, it does not need the caller.
const MOST_ROUNDS: u32 = 4;
/// The same before a free. Each round may wait for all that the GPU has to do.
const ROUNDS_BEFORE_FREE: u32 = 2;

/// How long the keeper waits for work, before it gives another process what is free. The other waits a little longer.
const FOR_OTHERS: Duration = Duration::from_millis(60);

/// How long a request waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// At most `LONGEST_WAIT` for each piece of work.
    Bounded,
    /// As long as the work takes.
    Unbounded,
    /// The same for a trim: memory stays if work that comes meanwhile does not end soon.
    Trim,
    /// The same for an idle release: memory stays if there is work all the time.
    Background,
    /// At most `FOR_OTHERS`: another process waits.
    ForOthers,
}

/// How a thread frees memory of the next layer. A thread that waits inside `cuMemFree` holds up allocations and launches of
/// other threads (`alloc_waits_beside_waiting_free` in tests/assumptions), and the work may wait for what these threads do
/// next. So the work is waited for by events before.
#[derive(Clone, Copy)]
struct Giving {
    /// The longest wait for work; `None` without bound.
    longest: Option<Duration>,
    /// Whether memory is freed although work comes all the time. Otherwise it stays.
    insists: bool,
    /// Memory has stayed. What comes next stays too, without another wait.
    refused: bool,
}

thread_local! {
    /// A free of the job waits as the driver's does.
    static GIVING: Cell<Giving> = const { Cell::new(Patience::Unbounded.giving()) };
}

impl Patience {
    const fn giving(self) -> Giving {
        let (longest, insists) = match self {
            Patience::Bounded => (Some(LONGEST_WAIT), true),
            Patience::Unbounded => (None, true),
            Patience::Trim => (Some(LONGEST_WAIT_AGAIN), true),
            Patience::Background => (Some(LONGEST_WAIT_AGAIN), false),
            Patience::ForOthers => (Some(FOR_OTHERS), false),
        };
        Giving {
            longest,
            insists,
            refused: false,
        }
    }

    /// Runs `release`, whose frees have this patience. Returns also whether memory has stayed because of work.
    pub(super) fn while_giving<T>(self, release: impl FnOnce() -> T) -> (T, bool) {
        let before = GIVING.replace(self.giving());
        let result = release();
        (result, GIVING.replace(before).refused)
    }
}

/// Which work has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Nothing,
    /// That which was there when the wait began.
    Earlier,
    /// All: giving memory back waits for nothing now.
    All,
}

impl Growth {
    /// Waits for the work of events, but not longer than this. Returns whether it had to wait; an error has the events whose
    /// work has not ended.
    fn await_events(&self, events: Vec<EventId>, longest: Duration) -> Result<bool, Vec<EventId>> {
        let (start, mut waited) = (Instant::now(), false);
        while events.iter().any(|&event| self.is_pending(event)) {
            if start.elapsed() > longest {
                return Err(events);
            }
            waited = true;
            std::thread::sleep(CHECK_INTERVAL);
        }
        events.into_iter().for_each(|event| self.forget_event(event));
        Ok(waited)
    }

    /// Waits for the work of the context, so that `cuMemFree` finds nothing to wait for (see `Giving`). An error says that
    /// the memory has to stay.
    pub(super) fn wait_before_free(&self) -> CudaResult {
        let giving = GIVING.get();
        if giving.refused {
            return Err(DriverError::NOT_READY);
        }
        let Some(longest) = giving.longest else {
            // What this cannot wait for, the driver waits for.
            let _ = self.wait_for_users();
            return Ok(());
        };
        let stays = || {
            GIVING.set(Giving {
                refused: true,
                ..giving
            });
            Err(DriverError::NOT_READY)
        };
        for _ in 0..ROUNDS_BEFORE_FREE {
            // Without events, or while a thread captures, the driver waits.
            let Ok(Some(events)) = self.record_contexts() else {
                return Ok(());
            };
            match self.await_events(events, longest) {
                Ok(false) => return Ok(()),
                Ok(true) => {}
                Err(events) => {
                    events.into_iter().for_each(|event| self.forget_event(event));
                    return stays();
                }
            }
        }
        if giving.insists { Ok(()) } else { stays() }
    }
}

impl Pool {
    /// Waits at most `FOR_OTHERS` for the work that may use memory of the pool's context. No lock may be held.
    pub(super) fn wait_for_others(&'static self) -> Ended {
        let growth = Growth { pool: self.root() };
        let Ok(Some(events)) = growth.record_contexts() else {
            return Ended::Nothing;
        };
        match growth.await_events(events, FOR_OTHERS) {
            Ok(false) => Ended::All,
            Ok(true) => Ended::Earlier,
            Err(events) => {
                events.into_iter().for_each(|event| growth.forget_event(event));
                Ended::Nothing
            }
        }
    }

    /// Waits for all work that may use memory of the pool's context, if it ends soon. No lock may be held. A driver without
    /// events of contexts, which CUDA has from 12.5 on, is waited for without bound.
    pub(super) fn wait_briefly(&'static self) -> Ended {
        let root = self.root();
        let growth = Growth { pool: root };
        let (stuck, waits) = {
            let mut stuck = lock(&root.stuck);
            (std::mem::take(&mut stuck.events), stuck.waits)
        };
        let again = LONGEST_WAIT_AGAIN / (1 << waits.saturating_sub(1).min(MOST_HALVINGS));
        // Another thread may wait for the stuck work now.
        let is_elsewhere = waits > 0 && stuck.is_empty();
        if let Err(stuck) = growth.await_events(stuck, again) {
            root.waited_in_vain(stuck);
            return Ended::Nothing;
        }
        let longest = if is_elsewhere { again } else { LONGEST_WAIT };
        if !is_elsewhere {
            lock(&root.stuck).waits = 0;
        }
        let mut ended = Ended::Nothing;
        for _ in 0..MOST_ROUNDS {
            let events = match growth.record_contexts() {
                Ok(Some(events)) => events,
                Err(DriverError::NOT_FOUND | DriverError::NOT_SUPPORTED) if growth.wait_for_users() == Ok(true) => {
                    return Ended::All;
                }
                _ => return ended,
            };
            match growth.await_events(events, longest) {
                Ok(false) => return Ended::All,
                Ok(true) => ended = Ended::Earlier,
                Err(stuck) => {
                    root.waited_in_vain(stuck);
                    return ended;
                }
            }
        }
        Ended::All
    }
}
