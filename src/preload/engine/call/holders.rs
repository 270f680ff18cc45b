//! Asks NVML who holds a device's memory, within a bounded time.
//!
//! NVML's first call can take long, and a driver in trouble may never answer. A thread asks, and the caller waits for
//! the answer as long as it has patience. The thread exists only while a failure is examined.

use std::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use std::sync::mpsc::{self, SendError};
use std::time::{Duration, Instant};

use crate::engine::state::limits::describe;
use crate::engine::state::listed::on_device;
use crate::engine::{Engine, thread};
use base::identity;
use base::process::job_name_of_process;
use base::sync::lock;
use journal::format::{ProcessBytes, ShortName};

/// The process whose thread asks NVML now; 0 if none does. A forked child has no such thread.
static ASKING: AtomicU32 = AtomicU32::new(0);

/// At most so many processes are told of: those with the most bytes.
const MOST: usize = 16;

/// The processes on a device, most bytes first. `None` if NVML has not answered within `patience`; `late` then gets the
/// answer, if one comes.
pub fn ask(
    engine: &'static Engine,
    device: i16,
    patience: Duration,
    late: impl FnOnce(&[ProcessBytes]) + Send + 'static,
) -> Option<Vec<ProcessBytes>> {
    let uuid = describe(device)?.uuid;
    let own = std::process::id();
    let before = ASKING.swap(own, AcqRel);
    if before == own {
        return None;
    }
    // Without room the answer is either taken, or comes back because the caller waits no more.
    let (send, answer) = mpsc::sync_channel(0);
    let work = move || {
        if let Err(SendError(list)) = send.send(listed(engine, device, uuid)) {
            late(&list);
            ASKING.store(0, Release);
        }
    };
    if thread::start(std::thread::Builder::new().name("vramshim-nvml".to_owned()), work).is_err() {
        ASKING.store(0, Release);
        return None;
    }
    // The thread is of no use from the answer on: the next failure asks anew.
    answer.recv_timeout(patience).ok().inspect(|_| ASKING.store(0, Release))
}

/// The process ends: waits for an answer that is under way, so that the journal gets it.
pub fn process_ends(patience: Duration) {
    let begun = Instant::now();
    while ASKING.load(Acquire) == std::process::id() && begun.elapsed() < patience {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn listed(engine: &Engine, device: i16, uuid: [u8; 16]) -> Vec<ProcessBytes> {
    let (state, here) = (engine.state, std::process::id());
    let before = state.reserved(device);
    let mut list = on_device(uuid).unwrap_or_default();
    // Other threads allocate meanwhile, so what this tells is not kept.
    let mut known = lock(&state.listed).clone();
    let is_quiet = state.reserved(device) == before;
    let own = is_quiet.then(|| known.own(&list, before)).flatten();
    let (own, is_here) = (own.map_or(0, |own| own.host_pid), known.is_here());
    for process in &mut list {
        process.pid = if is_here { process.host_pid } else { 0 };
        if process.host_pid == own {
            process.pid = here;
        }
    }
    // This process is never left out.
    list.sort_by_key(|process| (process.pid != here, std::cmp::Reverse(process.bytes)));
    list.truncate(MOST);
    for process in list.iter_mut().filter(|process| process.pid > 0) {
        process.name = name_of(process.pid);
        // It has no folder in /proc: its pid is none of this namespace.
        if process.name == ShortName::default() {
            process.pid = 0;
        } else {
            process.namespace = identity::pid_namespace() as u32;
        }
    }
    list
}

/// The name of the job of another process on this machine; empty if it cannot be read.
pub fn name_of(pid: u32) -> ShortName {
    ShortName::cut_from(&job_name_of_process(pid).unwrap_or_default())
}
