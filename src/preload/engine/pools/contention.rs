//! Decides which threads wait for their pool so often that they need a subpool.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A thread is judged each time that it had to wait this often ...
const WAITS_PER_JUDGEMENT: u32 = 16;
/// ... and needs a subpool if the waits took at least this part of its time.
const TOO_LONG_PART: u32 = 8;

/// How often a thread waited for its pool since when, and for how long in total.
#[derive(Clone, Copy)]
struct Waits {
    count: u32,
    since: Option<Instant>,
    total: Duration,
}

const NO_WAITS: Waits = Waits {
    count: 0,
    since: None,
    total: Duration::ZERO,
};

thread_local! {
    static WAITS: Cell<Waits> = const { Cell::new(NO_WAITS) };
}

/// Notes that the calling thread has waited for its pool since `start`. Returns whether the thread needs a subpool.
pub fn note_wait(start: Instant) -> bool {
    let mut waits = WAITS.try_with(Cell::get).unwrap_or(NO_WAITS);
    let since = *waits.since.get_or_insert(start);
    waits.count += 1;
    waits.total += start.elapsed();
    let is_judged = waits.count == WAITS_PER_JUDGEMENT;
    let waited_too_long = is_judged && waits.total * TOO_LONG_PART >= since.elapsed();
    let _ = WAITS.try_with(|cell| cell.set(if is_judged { NO_WAITS } else { waits }));
    waited_too_long
}
