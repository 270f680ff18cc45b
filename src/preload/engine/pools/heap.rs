//! Asks the allocator of the job's `malloc` what it holds (`VRAMSHIM_HOST_HEAP`), on a thread of its own.
//!
//! The question waits for threads that are in the allocator (`next::allocator`). A job may stop one of them there, so the
//! keeper does not ask, and no call of the job does. No other thread waits for this one. While it waits, the journal has the
//! host's memory without figures of the allocator, or with the last ones. The thread asks at most every `PERIOD`, and sleeps at least `SHARE` times as long as
//! the last answer took.

use std::thread::sleep;
use std::time::{Duration, Instant};

use base::say::{debug, warn};

use crate::engine::state::State;
use crate::engine::thread;
use crate::next::allocator::Allocator as Source;
use journal::format::{Allocator, Heap};

const PERIOD: Duration = Duration::from_secs(1);
const SHARE: u32 = 100;

/// Starts the thread. It ends at once if the allocator cannot be asked.
pub(super) fn start(state: &'static State) {
    let builder = std::thread::Builder::new().name("vramshim-heap".to_owned());
    if let Err(problem) = thread::start(builder, move || ask_again_and_again(state)) {
        warn!("no thread can be started for VRAMSHIM_HOST_HEAP: {problem}");
    }
}

fn ask_again_and_again(state: &'static State) {
    let Some(source) = Source::find() else {
        debug!("VRAMSHIM_HOST_HEAP: the allocator of this process is neither glibc's (2.33 or later) nor jemalloc");
        return;
    };
    loop {
        let began = Instant::now();
        if let Some(figures) = source.ask() {
            state.host.set_heap(Heap {
                allocator: if figures.is_jemalloc {
                    Allocator::Jemalloc
                } else {
                    Allocator::Glibc
                },
                allocated: figures.allocated,
                mapped: figures.mapped,
            });
        }
        sleep((began.elapsed() * SHARE).max(PERIOD));
    }
}
