//! Notes in the journal, again and again, that the process is alive: the keeper makes them.
//!
//! The thread starts for this when the job first uses a device, and only if the process has several threads by then, as
//! every process has in which NVIDIA's driver made a context. A process of one thread stays one: some calls, such as
//! unshare(CLONE_NEWUSER), are refused to any other.

use super::Engine;

impl Engine {
    /// Starts to note that the process is alive, once for each engine.
    pub(super) fn show_life(&'static self) {
        if self.state.records.path().is_some() && has_several_threads() {
            // Without the thread, the job's last event is the last sign of life.
            self.pools.start_keeper("signs of life");
        }
    }
}

fn has_several_threads() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.take(2).count() == 2)
}
