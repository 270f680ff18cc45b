//! What the keeper does for the whole process: notes in the journal, again and again, that the process is alive and
//! what it holds of the host's memory, and answers to `vramshim ctl`.
//!
//! The thread starts for this when the job first uses a device, and only if the process has several threads by then, as
//! every process has in which NVIDIA's driver made a context. A process of one thread stays one: some calls, such as
//! unshare(CLONE_NEWUSER), are refused to any other. With `VRAMSHIM_SURGE` or
//! `VRAMSHIM_HOST_HEAP` the thread always starts.

use std::os::unix::fs::MetadataExt;

use super::Engine;
use super::control::socket::Socket;

impl Engine {
    /// Starts to note that the process is alive, once for each engine.
    pub(super) fn show_life(&'static self) {
        if self.state.surges.is_watched() || self.state.host.asks_heap() {
            self.pools
                .start_keeper("surges and the host's heap, which are not seen");
        } else if self.state.records.path().is_some() && has_several_threads() {
            // Without the thread, the job's last event is the last sign of life.
            self.pools.start_keeper("signs of life");
        }
    }

    /// Begins to answer `vramshim ctl`, if the user wants that, also in a process of one thread.
    pub(super) fn take_orders(&'static self) {
        if self.is_controlled {
            let mut socket = Socket::new(self);
            self.pools.serve_too(Box::new(move || socket.serve()));
        }
    }
}

/// Takes no descriptor, which the job may close at any moment. As a folder has two links and one for each folder in it, the
/// kernel gives this one two links and one for each thread (`proc_task_getattr` in fs/proc/base.c of Linux).
fn has_several_threads() -> bool {
    const LINKS_OF_A_FOLDER: u64 = 2;
    std::fs::metadata("/proc/self/task").is_ok_and(|task| task.nlink() > LINKS_OF_A_FOLDER + 1)
}

#[cfg(test)]
mod tests {
    use super::has_several_threads;

    #[test]
    fn a_second_thread_is_seen() {
        // The test itself is a thread beside the main one.
        assert!(has_several_threads());
    }
}
