//! The keeper: the one thread of the library that does everything periodic.
//!
//! - Signs of life in the journal, every half second. So the journal of a killed job tells when the job ended, even if its
//!   last call was long before.
//! - Idle release (`VRAMSHIM_IDLE_RELEASE`): memory that a pool has held free for a while goes back to the next layer.
//! - Answers to other processes of the account that found no memory (`quota::reclaim`): what lies wholly free in this
//!   process's pools goes back to the next layer at once.
//! - Page faults of the journal's file, which it takes before the job's threads would (`journal::writer`, `ahead`). The
//!   keeper does so if it runs. It does not start for this.
//!
//! An idle job makes no calls, so this takes a thread. It starts when one of these is first needed, and blocks all
//! signals. While it gives memory back it may wait in the driver, and then a sign of life comes late.

use std::collections::HashMap;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::Pools;
use super::patience::Patience;
use crate::engine::state::captures::relax_this_thread;
use crate::engine::{scope, thread};
use base::api::Api;
use journal::format::Event;
use quota::reclaim::{self, Listener};

/// The time between two signs of life.
const LIFE_PERIOD: Duration = Duration::from_millis(500);
/// Bounds of the time between two looks at the pools.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(5);
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Keeper {
    started: Once,
    /// Whether there is a pool. Without one the thread makes no call of the next layer.
    has_pools: AtomicBool,
    /// Changes with every device that gets a pool. The thread sleeps on it as long as it has no seat to listen on.
    pools_began: AtomicU32,
}

impl Keeper {
    pub(super) fn new() -> Keeper {
        Keeper {
            started: Once::new(),
            has_pools: AtomicBool::new(false),
            pools_began: AtomicU32::new(0),
        }
    }
}

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
        self.keeper.started.call_once(|| {
            self.state.records.alive();
            let builder = std::thread::Builder::new().name("vramshim-keeper".to_owned());
            if let Err(problem) = thread::start(builder, || self.keep()) {
                warn!("no thread can be started for {why}: {problem}");
            }
        });
    }

    /// A pool begins on this device. Starts the keeper if pools need it.
    pub(super) fn keep_pool(&'static self, device: i16) {
        let is_shared = self.listener(device).is_some();
        self.keeper.has_pools.store(true, Ordering::Release);
        self.keeper.pools_began.fetch_add(1, Ordering::Release);
        if self.idle_release.is_some() || is_shared {
            self.start_keeper("idle memory, which is kept");
            // A keeper that sleeps learns of the pool now.
            reclaim::wake(&self.keeper.pools_began);
            for device in self.activity().into_keys() {
                self.listener(device).iter().for_each(Listener::poke);
            }
        }
    }

    fn listener(&self, device: i16) -> Option<Listener> {
        self.state.limits.of(device)?.listener()
    }

    fn keep(&'static self) {
        let mut idle: HashMap<i16, Idle> = HashMap::new();
        let mut listeners: HashMap<i16, Listener> = HashMap::new();
        let mut is_relaxed = false;
        let watch = self
            .idle_release
            .map(|time| (time, (time / 4).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL)));
        loop {
            self.state.records.touch_pages();
            self.state.records.alive();
            let began = self.keeper.pools_began.load(Ordering::Acquire);
            let mut longest = LIFE_PERIOD;
            if self.keeper.has_pools.load(Ordering::Acquire) {
                if !is_relaxed {
                    relax_this_thread();
                    is_relaxed = true;
                }
                for device in self.activity().into_keys() {
                    if let Some(listener) = self.listener(device)
                        && listeners.insert(device, listener).is_none()
                    {
                        listener.begin();
                    }
                }
                self.answer(&listeners);
                if let Some((idle_time, interval)) = watch {
                    self.release_what_is_idle(idle_time, &mut idle);
                    longest = longest.min(interval);
                }
            }
            let seats: Vec<Listener> = listeners.values().copied().collect();
            let pools_began = &self.keeper.pools_began;
            self.state.records.serve_writers(reclaim::word(&seats, pools_began));
            reclaim::wait(&seats, (pools_began, began), longest);
        }
    }

    /// Answers the requests of other processes.
    fn answer(&self, listeners: &HashMap<i16, Listener>) {
        for (&device, listener) in listeners {
            let Some(number) = listener.asked() else { continue };
            // Calls that the next layer makes meanwhile are not calls of the job.
            let _scope = scope::driver(Api::IdleRelease);
            let bytes = self.reclaim_for_others(device);
            listener.answer(number, bytes);
            if bytes > 0 {
                let event = Event::Reclaimed {
                    bytes,
                    processes: 1,
                    for_others: true,
                };
                self.state.records.write(event.encode(Api::IdleRelease, device));
            }
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
                let bytes = self.release_idle(device);
                // If a capture began meanwhile, nothing was released. The next look tries again.
                known.released = !self.state.captures.any_open();
                debug!("idle release: {bytes} bytes of device {device} given back");
            }
        }
    }

    /// Gives back what lies wholly free, for another process. Waits briefly for the work that may use free memory.
    fn reclaim_for_others(&self, device: i16) -> u64 {
        self.reclaim(device, Patience::ForOthers).given_back
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
            self.state.records.write(event.encode(Api::Policy, device));
        }
        asked.processes > 0
    }
}
