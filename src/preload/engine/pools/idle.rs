//! Idle release: memory that a pool has held free for a while goes back to the next layer (`VRAMSHIM_IDLE_RELEASE`).
//! Other processes on a shared GPU can then use it.
//!
//! A thread of the library watches the pools, because an idle job makes no calls. Without the variable there is no such
//! thread.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::Pools;
use crate::engine::state::captures::relax_this_thread;
use crate::engine::{scope, thread};
use base::api::Api;

/// Bounds of the time between two looks at the pools.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(5);
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);

impl Pools {
    /// Whether a thread watches the pools once there is one.
    pub fn watches_idle(&self) -> bool {
        self.idle_release.is_some()
    }

    /// Starts the thread, once there is a pool to watch.
    pub fn watch_idle_pools(&'static self) {
        let Some(idle_time) = self.idle_release else { return };
        self.idle_watch.call_once(|| {
            let builder = std::thread::Builder::new().name("vramshim-idle".to_owned());
            let started = thread::start(builder, move || self.release_idle_pools(idle_time));
            if let Err(problem) = started {
                warn!("VRAMSHIM_IDLE_RELEASE: no thread can be started: {problem}; free memory is kept");
            }
        });
    }

    fn release_idle_pools(&self, idle_time: Duration) {
        relax_this_thread();
        // For each device: the activity number that was read last, the time when it last changed, and whether free
        // memory was released after that.
        let mut seen: HashMap<i16, (u64, Instant, bool)> = HashMap::new();
        loop {
            self.state.records.alive();
            std::thread::sleep((idle_time / 4).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL));
            for (device, activity) in self.activity() {
                let now = Instant::now();
                let (last, since, released) = seen.entry(device).or_insert((activity, now, false));
                let is_idle = now.duration_since(*since) >= idle_time;
                if *last != activity {
                    (*last, *since, *released) = (activity, now, false);
                } else if !*released && is_idle && !self.state.captures.any_open() {
                    // Calls that the next layer makes meanwhile are not calls of the job.
                    let _scope = scope::driver(Api::IdleRelease);
                    let bytes = self.release_idle(device);
                    // If a capture began meanwhile, nothing was released. The next look tries again.
                    *released = !self.state.captures.any_open();
                    debug!("idle release: {bytes} bytes of device {device} given back");
                }
            }
        }
    }
}
