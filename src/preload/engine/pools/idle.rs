//! Memory that a pool has held free for a while goes back to the layer below (`VRAMSHIM_IDLE_RELEASE`), so that others on
//! a shared GPU get it. A thread of ours watches, because a job that rests makes no calls; there is none where the
//! variable is not set.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use crate::engine::state::captures::RELAXED;
use crate::engine::{Engine, scope, thread};
use crate::next;
use base::api::Api;

/// Bounds of how often the pools are looked at.
const OFTEN: Duration = Duration::from_millis(5);
const SELDOM: Duration = Duration::from_secs(1);

impl Engine {
    /// Starts the watch, once there is a pool to watch.
    pub(crate) fn watch_idle_pools(&'static self) {
        let Some(bound) = self.config.idle_release else { return };
        self.idle_watch.call_once(|| {
            let builder = std::thread::Builder::new().name("vramshim-idle".to_owned());
            let started = thread::start(builder, move || self.release_what_rests(bound));
            if let Err(problem) = started {
                warn!("VRAMSHIM_IDLE_RELEASE: no thread can be started: {problem}; free memory is kept");
            }
        });
    }

    fn release_what_rests(&self, bound: Duration) {
        let mut relaxed = RELAXED;
        // SAFETY: this frame's own value. What this thread does is no reason to spoil another one's capture.
        unsafe { next::cuThreadExchangeStreamCaptureMode(&mut relaxed) };
        // For each device what was seen last, since when, and whether it was released since.
        let mut seen: HashMap<i16, (u64, Instant, bool)> = HashMap::new();
        loop {
            std::thread::sleep((bound / 4).clamp(OFTEN, SELDOM));
            for (device, activity) in self.activity() {
                let now = Instant::now();
                let (last, since, released) = seen.entry(device).or_insert((activity, now, false));
                if *last != activity {
                    (*last, *since, *released) = (activity, now, false);
                } else if !*released && now.duration_since(*since) >= bound && !self.capturing() {
                    // Calls of the layer below are its own, as in a hooked function.
                    let _scope = scope::driver(Api::IdleRelease);
                    let bytes = self.release_idle(device);
                    // Where a capture came between, once more.
                    *released = !self.capturing();
                    debug!("idle release: {bytes} bytes of device {device} given back");
                }
            }
        }
    }
}
