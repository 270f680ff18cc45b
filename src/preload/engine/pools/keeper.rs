//! The keeper: the one thread of the library that does everything periodic.
//!
//! - Signs of life in the journal, every half second. So the journal of a killed job tells when the job ended, even if its
//!   last call was long before.
//! - Idle release (`VRAMSHIM_IDLE_RELEASE`): memory that a pool has held free for a while goes back to the next layer.
//! - Answers to other processes of the account that found no memory (`quota::reclaim`): what lies wholly free in this
//!   process's pools, and in the driver's own pools, goes back at once.
//! - Answers to `vramshim ctl`, if the process has a control socket: the keeper runs what `serve_too` was given.
//! - What the process holds of the host's memory, whenever that has changed much.
//! - Surges (`VRAMSHIM_SURGE`): levels of memory that are looked at several times within the time of a surge.
//! - Page faults of the journal's file, which it takes before the job's threads would (`journal::writer`, `ahead`). The
//!   keeper does so if it runs. It does not start for this.
//!
//! An idle job makes no calls, so this takes a thread. It starts when one of these is first needed, and blocks all
//! signals. While it gives memory back it may wait in the driver, and then a sign of life comes late.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use base::say::{debug, warn};

use super::Pools;
use super::patience::Patience;
use crate::engine::state::captures::relax_this_thread;
use crate::engine::state::host::HostWatch;
use crate::engine::state::surges::Watches;
use crate::engine::{scope, thread};
use base::api::Api;
use base::sync::lock;
use journal::format::Event;
use quota::reclaim::{self, Listener};

/// The time between two signs of life.
const LIFE_PERIOD: Duration = thread::LOOK_PERIOD;
/// Bounds of the time between two looks at the pools.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(5);
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);

/// Lets the driver's pools of a device give back what they hold free. Returns bytes.
pub type TrimPools = fn(i16) -> u64;

#[derive(Default)]
pub(super) struct Keeper {
    started: OnceLock<()>,
    /// Whether there is a pool. Without one the thread makes no call of the next layer.
    has_pools: AtomicBool,
    /// The devices on which the job uses pools of the driver, and how those are trimmed.
    driver_pools: Mutex<BTreeMap<i16, TrimPools>>,
    /// Changes with every device that gets a pool. The thread sleeps on it as long as it has no seat to listen on.
    pools_began: AtomicU32,
    /// What else the thread does each time. It must not wait for anybody.
    guest: OnceLock<Mutex<Guest>>,
}

/// Work that the keeper does besides. The result is how long it may sleep then.
pub type Guest = Box<dyn FnMut() -> Duration + Send>;

/// What idle release knows of a device.
#[derive(Clone, Copy)]
struct Idle {
    /// The activity number that was read last, and the time when it last changed.
    activity: u64,
    since: Instant,
    /// Whether free memory was released after that.
    released: bool,
}

impl Pools {
    /// Starts the keeper, if there is none yet. `why` is told if that fails.
    pub fn start_keeper(&'static self, why: &str) {
        self.keeper.started.get_or_init(|| {
            if let Some(journal) = &self.state.records.journal {
                journal.alive();
            }
            let builder = std::thread::Builder::new().name("vramshim-keeper".to_owned());
            if let Err(problem) = thread::start(builder, || self.keep()) {
                warn!("no thread can be started for {why}: {problem}");
            }
        });
    }

    /// A pool begins on this device. Starts the keeper if pools need it.
    pub(super) fn keep_pool(&'static self, device: i16) {
        self.attend(self.idle_release().is_some() || self.listener(device).is_some());
    }

    /// On this device the job uses pools of the driver, or has memory that descriptors hold. Others that share the account may
    /// ask for what is free of it.
    pub fn keep_driver_pools(&'static self, device: i16, trim: TrimPools) {
        let before = lock(&self.keeper.driver_pools).insert(device, trim);
        if before.is_none() && self.listener(device).is_some() {
            self.attend(true);
        }
    }

    /// There are pools. If they need the keeper, it runs from now on, and knows of them.
    fn attend(&'static self, needs_keeper: bool) {
        self.keeper.has_pools.store(true, Ordering::Release);
        self.keeper.pools_began.fetch_add(1, Ordering::Release);
        if needs_keeper {
            self.start_keeper("idle memory, which is kept");
            self.wake_keeper();
        }
    }

    /// The time of idle release has changed.
    pub(super) fn keep_all_pools(&'static self) {
        if self.idle_release().is_some() && self.keeper.has_pools.load(Ordering::Acquire) {
            self.start_keeper("idle memory, which is kept");
        }
        self.keeper.pools_began.fetch_add(1, Ordering::Release);
        self.wake_keeper();
    }

    /// A keeper that sleeps looks at everything now.
    fn wake_keeper(&self) {
        reclaim::wake(&self.keeper.pools_began);
        for device in self.kept_devices() {
            self.listener(device).iter().for_each(Listener::poke);
        }
    }

    /// Lets the keeper do this work too, and starts it. Only the first call has an effect.
    pub fn serve_too(&'static self, guest: Guest) {
        if self.keeper.guest.set(Mutex::new(guest)).is_ok() {
            self.start_keeper("vramshim ctl, which gets no answer");
        }
    }

    /// The devices that have pools of ours or of the driver.
    fn kept_devices(&self) -> BTreeSet<i16> {
        let of_driver = lock(&self.keeper.driver_pools);
        self.activity().into_keys().chain(of_driver.keys().copied()).collect()
    }

    /// Lets the driver's own pools of a device give back what they hold free. Returns bytes.
    pub(super) fn trim_driver_pools(&self, device: i16) -> u64 {
        let trim = lock(&self.keeper.driver_pools).get(&device).copied();
        match trim {
            Some(trim) if !self.state.captures.any_open() => trim(device),
            _ => 0,
        }
    }

    fn listener(&self, device: i16) -> Option<Listener> {
        self.state.limits.of(device)?.listener()
    }

    fn keep(&'static self) {
        let mut idle: HashMap<i16, Idle> = HashMap::new();
        let mut listeners: HashMap<i16, Listener> = HashMap::new();
        let (mut watches, mut host) = (Watches::default(), HostWatch::default());
        let mut is_relaxed = false;
        let mut job = thread::Job::new();
        while !job.has_ended() {
            if let Some(journal) = &self.state.records.journal {
                journal.touch_pages();
                journal.alive();
            }
            self.state.look_at_host_memory(&mut host);
            let began = self.keeper.pools_began.load(Ordering::Acquire);
            let mut longest = LIFE_PERIOD;
            if self.keeper.has_pools.load(Ordering::Acquire) {
                if !is_relaxed {
                    relax_this_thread();
                    is_relaxed = true;
                }
                for device in self.kept_devices() {
                    if let Some(listener) = self.listener(device)
                        && listeners.insert(device, listener).is_none()
                    {
                        listener.begin();
                    }
                }
                self.answer(&listeners);
                if let Some(idle_time) = self.idle_release() {
                    self.release_what_is_idle(idle_time, &mut idle);
                    longest = longest.min((idle_time / 4).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL));
                }
            }
            if let Some(pause) = self.state.look_for_surges(&mut watches) {
                longest = longest.min(pause);
            }
            if let Some(guest) = self.keeper.guest.get() {
                longest = longest.min(lock(guest)());
            }
            let seats: Vec<Listener> = listeners.values().copied().collect();
            let pools_began = &self.keeper.pools_began;
            if let Some(journal) = &self.state.records.journal {
                journal.serve_writers(reclaim::word(&seats, pools_began));
            }
            reclaim::wait(&seats, (pools_began, began), longest);
        }
    }

    /// Answers the requests of other processes.
    fn answer(&self, listeners: &HashMap<i16, Listener>) {
        for (&device, listener) in listeners {
            let Some(number) = listener.asked() else { continue };
            // Calls that the next layer makes meanwhile are not calls of the job.
            let _scope = scope::driver(Api::IdleRelease);
            let of_driver = self.trim_driver_pools(device);
            let reclaimed = self.reclaim(device, Patience::ForOthers, u64::MAX);
            let bytes = reclaimed.given_back.saturating_add(of_driver);
            // Written first: a job that ends right after the answer has it in its journal.
            if bytes > 0 {
                let event = Event::Reclaimed {
                    bytes,
                    processes: 1,
                    for_others: true,
                };
                self.state.records.write(event.encode(Api::IdleRelease, device));
            }
            listener.answer(number, bytes);
        }
    }

    fn release_what_is_idle(&self, idle_time: Duration, idle: &mut HashMap<i16, Idle>) {
        for (device, activity) in self.activity() {
            let now = Instant::now();
            let begun = Idle {
                activity,
                since: now,
                released: false,
            };
            let known = idle.entry(device).or_insert(begun);
            if known.activity != activity {
                *known = begun;
            } else if !known.released && now.duration_since(known.since) >= idle_time && !self.state.captures.any_open()
            {
                // Calls that the next layer makes meanwhile are not calls of the job.
                let _scope = scope::driver(Api::IdleRelease);
                let reclaimed = self.reclaim(device, Patience::Background, u64::MAX);
                // If a capture began meanwhile, or there was work, memory stayed. The next look tries again.
                known.released = !self.state.captures.any_open() && !reclaimed.refused;
                let bytes = reclaimed.given_back;
                debug!("idle release: {bytes} bytes of device {device} given back");
            }
        }
    }

    /// Asks the other processes that share the device's account for their idle memory, for a request of `size` bytes that
    /// found none. Returns whether there may be some now.
    pub fn ask_others(&self, device: i16, size: u64) -> bool {
        let limits = &self.state.limits;
        let Some(quota) = limits.of(device) else { return false };
        // What others hold does not count towards a limit of this process alone.
        let is_of_this_process = quota.scope == quota::Scope::Process && limits.would_refuse(device, size);
        let is_too_large = quota.limit.is_some_and(|limit| size > limit);
        if is_of_this_process || is_too_large {
            return false;
        }
        let asked = quota.ask_others();
        if asked.processes > 0 {
            let event = Event::Reclaimed {
                bytes: asked.bytes,
                processes: asked.processes,
                for_others: false,
            };
            self.state.records.note(device, event);
        }
        asked.processes > 0
    }
}
