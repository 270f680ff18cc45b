//! How hooks enter the engine, how an engine starts and ends, and what a fork does to it.
//!
//! The keeper starts when the job first uses a device, and only if the process has several threads by then, as every process
//! has in which NVIDIA's driver made a context. A process of one thread stays one: some calls, such as
//! unshare(CLONE_NEWUSER), are refused to any other. With `VRAMSHIM_SURGE` the thread always starts.

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};
use std::time::Duration;

use base::say::{debug, error, warn};

use super::call::{holders, ipc};
use super::control::socket::{self, Socket};
use super::pools::abilities::Abilities;
use super::pools::{Pools, registry};
use super::scope::DriverScope;
use super::state::State;
use super::state::operations;
use super::state::records::Recorder;
use super::state::surges::Askers;
use super::{Call, Engine, marks, process, scope, thread};
use crate::next;
use base::api::Api;
use base::cancellation::Uncancelled;
use base::filesystem;
use base::process as this_process;
use base::text::shown;
use config::{Config, DefaultFolder, default_folder, explaining_variables, is_allocator_setting, unknown_variables};
use journal::writer::{About, Journal};
use quota::Quota;

use crate::log;
use crate::stacks::{self, Stacks};

/// How long the end of a process waits for an answer of NVML about a failure.
const FOR_NVML: Duration = Duration::from_millis(200);

/// The engine of this process. `None` if the library stays out of it.
///
/// The thread may have a small stack. So the steps are functions of their own, which give their large frames back.
pub fn start() -> Option<Box<Engine>> {
    if process::is_setuid() {
        return None;
    }
    let (config, refuses) = settings();
    let records = recorder(&config);
    at_exit_of_process();
    let quota = process::quota_with(config.quota.clone());
    let state = state(&config, quota, records);
    Some(engine(config, refuses, state))
}

/// The settings, after what is wrong with them was said; and whether requests for memory are refused for that.
#[inline(never)]
fn settings() -> (Config, bool) {
    let (config, errors) = Config::read(|name| std::env::var_os(name));
    log::start(config.log);
    for problem in &errors {
        error!(
            "{problem}; {}",
            if problem.refuses_memory {
                "refusing every request for memory, as VRAMSHIM_STRICT asks"
            } else {
                "its default is used"
            }
        );
    }
    for remark in &config.remarks {
        warn!("{remark}");
    }
    for unknown in unknown_variables(std::env::vars_os().map(|(name, _)| name)) {
        warn!("{unknown}");
    }
    super::announce(&config);
    let refuses = errors.iter().any(|problem| problem.refuses_memory);
    (config, refuses)
}

#[inline(never)]
fn recorder(config: &Config) -> Recorder {
    let journal = journal(config);
    let beside = |journal: &Journal| Stacks::new(config.stacks, config.stack_depth, journal.path());
    Recorder {
        stacks: journal.as_ref().map(beside),
        journal,
        askers: config.surge.map(|_| Askers::new()),
    }
}

#[inline(never)]
fn state(config: &Config, quota: &'static Quota, records: Recorder) -> &'static State {
    Box::leak(Box::new(State::new(config, quota, records)))
}

#[inline(never)]
fn engine(config: Config, refuses: bool, state: &'static State) -> Box<Engine> {
    let engine = Engine {
        strategy: config.strategy,
        refuses,
        is_controlled: config.control,
        pid: std::process::id(),
        state,
        pools: Pools::new(
            state,
            Abilities::new(
                config.strategy,
                config.settings,
                config.verdicts.filter(|_| config.use_verdicts),
            ),
            config.idle_release,
        ),
        stream_ordered: Default::default(),
        graphs: Default::default(),
        physical: Default::default(),
        descriptors: Default::default(),
        sharing: Default::default(),
        torch: Default::default(),
    };
    Box::new(engine)
}

fn journal(config: &Config) -> Option<Journal> {
    if config.journal_max == 0 {
        return None;
    }
    let job = this_process::job_name();
    let directory = folder(config, &job);
    let about = About {
        strategy: config.strategy.name().to_owned(),
        job,
        command_line: this_process::command_line(),
        environment: this_process::environment(&explaining_variables(), is_allocator_setting),
        ..About::default()
    };
    match Journal::create(&directory, config.journal_max, about) {
        Ok(journal) => {
            debug!("journal {}", shown(journal.path()));
            if config.journal_group
                && let Err(problem) = journal.let_group_read()
            {
                warn!("{problem}; only its owner can read it (VRAMSHIM_JOURNAL_GROUP)");
            }
            Some(journal)
        }
        Err(problem) => {
            error!("{problem}; the job goes on without a journal (VRAMSHIM_DIR chooses another directory)");
            None
        }
    }
}

/// The folder of the journal. Says where it is if the user would not look there, or if it can harm the job.
fn folder(config: &Config, job: &str) -> PathBuf {
    if let Some(chosen) = &config.directory {
        if let Some(remote) = filesystem::remote(&std::path::absolute(chosen).unwrap_or_else(|_| chosen.clone())) {
            let chosen = shown(chosen);
            warn!("the journal is on {remote} ({chosen}): the job waits for the server whenever the journal grows");
        }
        return chosen.clone();
    }
    let DefaultFolder { path, avoids } = default_folder(job);
    if let Some(remote) = avoids {
        let path = shown(&path);
        warn!("the working folder is on {remote}, so the journal is in {path} (VRAMSHIM_DIR chooses another folder)");
    }
    path
}

/// Lets a forked child begin anew.
pub fn at_fork() {
    process::at_fork(in_forked_child);
}

fn at_exit_of_process() {
    static DONE: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" {
        fn on_exit(function: extern "C" fn(i32, *mut libc::c_void), argument: *mut libc::c_void) -> i32;
    }
    if !DONE.swap(true, AcqRel) {
        // SAFETY: the function belongs to this library, which is never unloaded because it was preloaded.
        unsafe { on_exit(at_exit, ptr::null_mut()) };
    }
}

/// A forked child has nothing of its parent's. Only the first call in a child has an effect.
unsafe extern "C" fn in_forked_child() {
    if process::in_forked_child() {
        return;
    }
    thread::in_forked_child();
    scope::reset();
    marks::in_forked_child();
    quota::seats::in_forked_child();
    registry::next_generation();
    next::primary::in_forked_child();
    ipc::in_forked_child();
    socket::in_forked_child();
}

extern "C" fn at_exit(status: i32, _: *mut libc::c_void) {
    process_ends(status);
}

/// The process ends by itself with this status. A child of `vfork` shares our memory and ends by `_exit` as well; its
/// process id tells it from its parent. A signal handler may end the process inside a call of ours, so nothing here waits for a
/// lock or allocates.
pub fn process_ends(status: i32) {
    if let Some(engine) = process::running()
        && engine.pid == std::process::id()
    {
        engine.sharing.exports.process_ends();
        socket::process_ends(engine.pid);
        holders::process_ends(FOR_NVML);
        engine.state.note_host_memory_last();
        if let Some(journal) = &engine.state.records.journal {
            journal.ended(status & 0xff);
        }
    }
}

impl Engine {
    /// Starts to note that the process is alive, once for each engine.
    pub(super) fn show_life(&'static self) {
        if self.state.surges.setting.is_some() {
            self.pools.start_keeper("surges, which are not seen");
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

    pub fn journal_path(&self) -> Option<&Path> {
        self.state.records.path()
    }
}

fn call(engine: &'static Engine, scope: DriverScope) -> Call {
    Call {
        engine,
        scope,
        stream: Cell::new(None),
    }
}

/// A runtime begins in this process. If Python's interpreter is there, it may start to record PyTorch's tensors.
pub fn cuda_begins() {
    if !process::is_setuid() {
        stacks::record_tensors();
    }
}

/// Enters a driver function. `None` if the library stays out: it is inert in this process, or the next layer makes the
/// call while it serves a call of ours, which is counted already.
pub fn enter(api: Api) -> Option<Call> {
    let scope = scope::driver(api)?;
    Some(call(process::engine(at_fork, start)?, scope))
}

/// As `enter`, for functions that concern only memory that is booked already: they start no engine.
pub fn enter_running(api: Api) -> Option<Call> {
    let engine = process::running()?;
    Some(call(engine, scope::driver(api)?))
}

/// As `enter_running`, for copies and fills. Nearly always the library has no part in them, and this costs the read of one
/// variable.
#[inline]
pub fn enter_if_watched(api: Api) -> Option<Call> {
    if operations::are_watched() {
        enter_running(api)
    } else {
        None
    }
}

/// As `enter`, for a request for a tensor (`scope::tensor`).
#[inline]
pub fn enter_for_tensor(api: Api) -> Option<Call> {
    let scope = scope::tensor(api)?;
    Some(call(process::running().or_else(start_uncancelled)?, scope))
}

#[cold]
fn start_uncancelled() -> Option<&'static Engine> {
    let _uncancelled = Uncancelled::begin();
    process::engine(at_fork, start)
}

/// As `enter_running`, for the free of a tensor (`scope::tensor`).
#[inline]
pub fn enter_for_free_of_tensor(api: Api) -> Option<Call> {
    let engine = process::running()?;
    Some(call(engine, scope::tensor(api)?))
}

/// As `enter`, for questions whose answers a limit changes: without a limit they start no engine.
pub fn enter_if_limited(api: Api) -> Option<Call> {
    at_fork();
    match process::quota() {
        Some(quota) if quota.is_in_force => enter(api),
        _ => enter_running(api),
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
