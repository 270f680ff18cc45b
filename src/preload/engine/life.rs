//! Notes in the journal, again and again, that the process is alive. So the journal of a killed job tells when the job
//! ended, even if its last call was long before.
//!
//! An idle job makes no calls, so this takes a thread. It starts when the job first uses a device, and only if the
//! process has several threads by then, as every process has in which NVIDIA's driver made a context. A process of one
//! thread stays one: some calls, such as unshare(CLONE_NEWUSER), are refused to any other. If the thread for idle
//! memory runs, it makes the notes, so that there is one periodic thread at most.

use std::time::Duration;

use super::{Engine, thread};
use policy::Strategy;

/// The time between two notes.
const PERIOD: Duration = Duration::from_millis(500);

impl Engine {
    /// Starts to note that the process is alive, once for each engine.
    pub(super) fn show_life(&self) {
        self.life.call_once(|| {
            let state = self.state;
            let has_other_thread = self.pools.watches_idle() && self.strategy != Strategy::Passthrough;
            if state.records.path().is_none() || has_other_thread || !has_several_threads() {
                return;
            }
            state.records.alive();
            let builder = std::thread::Builder::new().name("vramshim-life".to_owned());
            // If no thread can be started, the job's last event is the last sign of life.
            let _ = thread::start(builder, move || {
                loop {
                    std::thread::sleep(PERIOD);
                    state.records.alive();
                }
            });
        });
    }
}

fn has_several_threads() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.take(2).count() == 2)
}
