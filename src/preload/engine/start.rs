//! How an engine starts, is found, and ends.
//!
//! `STATE` points to the cell of the running process. A fork leaves the child with a fresh, empty cell: what the parent
//! had, locks included, is leaked there and never touched again.

use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use once_cell::sync::OnceCell;
use tracing::{debug, error, warn};

use super::call::ipc;
use super::{Engine, scope};
use crate::engine::state::ledger::Ledger;
use base::cuda::MAX_DEVICES;
use base::process;
use config::{Config, explaining_variables};
use journal::writer::{Journal, Options};
use quota::Quota;

use crate::log;

/// What one process has.
struct State {
    engine: OnceCell<Option<Box<Engine>>>,
    quota: OnceCell<Quota>,
}

impl State {
    const fn new() -> State {
        State {
            engine: OnceCell::new(),
            quota: OnceCell::new(),
        }
    }
}

static FIRST: State = State::new();
/// The cell of this process; null stands for `FIRST`.
static STATE: AtomicPtr<State> = AtomicPtr::new(ptr::null_mut());

fn state() -> &'static State {
    let state = STATE.load(Ordering::Acquire);
    if state.is_null() {
        return &FIRST;
    }
    // SAFETY: set only by `in_forked_child`, to a cell that is leaked.
    unsafe { &*state }
}

/// The engine, started if need be; `None` where the library stays out of this process.
#[inline]
pub(super) fn engine() -> Option<&'static Engine> {
    let engine = &state().engine;
    match engine.get() {
        Some(started) => started.as_deref(),
        None => engine.get_or_init(start).as_deref(),
    }
}

/// The engine where one runs already.
pub fn running() -> Option<&'static Engine> {
    state().engine.get()?.as_deref()
}

/// The limits and accounts of this process, for one who only asks: where no engine runs, none is started.
pub fn quota() -> Option<&'static Quota> {
    let cell = &state().quota;
    if let Some(known) = cell.get() {
        return Some(known);
    }
    if is_setuid() {
        return None;
    }
    let settings = Config::read(|name| std::env::var_os(name)).0.quota;
    // Until the engine starts, a program that has no limits may choose them yet.
    let asked = settings.ask_for_anything();
    asked.then(|| cell.get_or_init(|| Quota::new(settings)))
}

fn is_setuid() -> bool {
    // SAFETY: reads a value that the kernel set at program start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

fn start() -> Option<Box<Engine>> {
    if is_setuid() {
        return None;
    }
    let (config, errors) = Config::read(|name| std::env::var_os(name));
    log::start(config.log);
    for problem in &errors {
        error!(
            "{problem}; {}",
            if config.strict {
                "refusing, as VRAMSHIM_STRICT asks"
            } else {
                "its default is used"
            }
        );
    }
    for remark in &config.remarks {
        warn!("{remark}");
    }
    super::announce(&config);
    let journal = journal(&config);
    at_fork_and_exit();
    let engine = Engine {
        refuses: config.strict && !errors.is_empty(),
        pid: std::process::id(),
        ledger: Ledger::default(),
        freeing: Default::default(),
        journal,
        pools: crate::engine::pools::Pools::default(),
        stream_ordered: Default::default(),
        graphs: Default::default(),
        physical: Default::default(),
        sharing: Default::default(),
        peers: Default::default(),
        captures: Default::default(),
        tensors: Default::default(),
        idle_watch: Once::new(),
        sightings: Default::default(),
        quota: state().quota.get_or_init(|| Quota::new(config.quota.clone())),
        refusals: [const { AtomicU64::new(0) }; MAX_DEVICES],
        config,
    };
    engine.show_routes();
    Some(Box::new(engine))
}

fn journal(config: &Config) -> Option<Journal> {
    if config.journal_max == 0 {
        return None;
    }
    let job = process::job_name();
    let options = Options {
        directory: config
            .directory
            .clone()
            .unwrap_or_else(|| PathBuf::from(format!("vramshim-{job}"))),
        strategy: config.strategy.name().to_owned(),
        job,
        max_bytes: config.journal_max,
        command_line: process::command_line(),
        environment: process::environment(&explaining_variables()),
    };
    match Journal::create(&options) {
        Ok(journal) => {
            debug!("journal {}", journal.path().display());
            Some(journal)
        }
        Err(problem) => {
            error!("{problem}; the job goes on without a journal (VRAMSHIM_DIR chooses another directory)");
            None
        }
    }
}

fn at_fork_and_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        unsafe extern "C" {
            fn on_exit(function: extern "C" fn(i32, *mut libc::c_void), argument: *mut libc::c_void) -> i32;
        }
        // SAFETY: all three are functions of this library, which is never unloaded (it was preloaded).
        unsafe {
            libc::pthread_atfork(None, None, Some(in_forked_child));
            on_exit(at_exit, ptr::null_mut());
        }
    });
}

unsafe extern "C" fn in_forked_child() {
    STATE.store(Box::leak(Box::new(State::new())), Ordering::Release);
    scope::reset();
    crate::engine::pools::forget_last();
    ipc::in_forked_child();
}

extern "C" fn at_exit(status: i32, _: *mut libc::c_void) {
    process_ends(status);
}

/// The process ends by itself with this status. A `vfork` child shares our memory and ends by `_exit` as well: its
/// process id tells it apart.
pub fn process_ends(status: i32) {
    if let Some(engine) = running()
        && engine.pid == std::process::id()
    {
        engine.sharing.process_ends();
        engine.show_routes();
        if let Some(journal) = &engine.journal {
            journal.ended(status & 0xff);
        }
    }
}

impl Engine {
    pub fn journal_path(&self) -> Option<&Path> {
        self.journal.as_ref().map(Journal::path)
    }
}
