//! How often requests for memory fail, and which of the failures are measured and told on stderr.
//!
//! Some jobs request memory until they fail, on purpose, and again and again. So the first, second, fourth ... failure
//! is told, and one after a while without a message. Frameworks repeat a request that failed: PyTorch does so after it
//! has given back what its cache holds free. Such a repetition is no failure of its own. The first repetition of a
//! failure that was told is told too, because what the process holds may have changed. Failures are measured more
//! often, because the last one may have ended the job.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::measurements::now_ms;
use super::per_device::PerDevice;
use base::api::Api;
use base::sync::lock;

/// After this time a failure is told in any case.
const SILENCE_MS: u64 = 5000;
/// In the long run one failure is measured in this time.
const BETWEEN_MEASUREMENTS_MS: u64 = 250;
/// So many failures are measured however fast they come.
const MEASURED_AT_ONCE: u64 = 16;

/// A request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub thread: u32,
    pub api: Api,
    pub bytes: u64,
}

/// A failure that is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The number of failures of the device so far, repetitions not counted.
    pub count: u64,
    /// How often the request was made.
    pub tries: u64,
}

/// The failures of a device.
#[derive(Default)]
struct OfDevice {
    count: u64,
    /// When a failure was told last.
    told_ms: u64,
    last: Option<Last>,
}

/// The last request that failed.
struct Last {
    asked: Asked,
    /// Bytes of live allocations when it failed.
    live: u64,
    at_ms: u64,
    tries: u64,
    told: bool,
}

impl Last {
    /// Whether a failed request repeats this one: the process got no memory in between that it still holds.
    fn is_repeated_by(&self, asked: Asked, live: u64, now_ms: u64) -> bool {
        self.asked == asked && live <= self.live && now_ms.saturating_sub(self.at_ms) < SILENCE_MS
    }
}

#[derive(Default)]
pub struct Failures {
    devices: PerDevice<Mutex<OfDevice>>,
    /// When all measurements that were made would have been due at the slow pace.
    measured_until_ms: AtomicU64,
}

impl Failures {
    /// Counts a failed request on a device of which `live` bytes are live. `None` if this failure is not to be told.
    pub fn count(&self, now_ms: u64, device: i16, asked: Asked, live: u64) -> Option<Due> {
        let mut device = lock(self.devices.of_device(device)?);
        let device = &mut *device;
        let silent = now_ms.saturating_sub(device.told_ms) >= SILENCE_MS;
        let repeated = device.last.as_mut();
        let (tries, is_due) = match repeated.filter(|last| last.is_repeated_by(asked, live, now_ms)) {
            Some(last) => (last.tries + 1, last.told && last.tries == 1 || silent),
            None => {
                device.count += 1;
                (1, device.count.is_power_of_two() || silent)
            }
        };
        let told = is_due || tries > 1 && device.last.as_ref().is_some_and(|last| last.told);
        device.last = Some(Last {
            asked,
            live,
            at_ms: now_ms,
            tries,
            told,
        });
        if is_due {
            device.told_ms = now_ms;
        }
        let count = device.count;
        is_due.then_some(Due { count, tries })
    }

    /// Whether this failure is to be measured.
    pub fn takes_measurement(&self) -> bool {
        self.takes_measurement_at(now_ms())
    }

    fn takes_measurement_at(&self, now: u64) -> bool {
        let next = |until: u64| {
            let until = until.max(now) + BETWEEN_MEASUREMENTS_MS;
            (until - now <= BETWEEN_MEASUREMENTS_MS * MEASURED_AT_ONCE).then_some(until)
        };
        self.measured_until_ms.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_failures_at_once_are_not_all_measured() {
        let failures = Failures::default();
        let measured = |now| (0..100).filter(|_| failures.takes_measurement_at(now)).count() as u64;
        assert_eq!(measured(1000), MEASURED_AT_ONCE);
        assert_eq!(measured(1000 + 3 * BETWEEN_MEASUREMENTS_MS), 3);
    }

    fn asked(bytes: u64) -> Asked {
        let (thread, api) = (7, Api::cuMemAlloc);
        Asked { thread, api, bytes }
    }

    #[test]
    fn few_of_many_failures_are_told() {
        let failures = Failures::default();
        let count = |device, bytes| failures.count(1, device, asked(bytes), 0);
        let told: Vec<u64> = (0..20).filter_map(|bytes| Some(count(0, bytes)?.count)).collect();
        assert_eq!(told, [1, 2, 4, 8, 16]);
        let first = Due { count: 1, tries: 1 };
        assert_eq!((count(1, 0), count(-1, 0)), (Some(first), None));
    }

    #[test]
    fn a_repetition_is_no_failure_of_its_own_and_is_told_once() {
        let failures = Failures::default();
        let count = |now_ms, bytes, live| {
            let due = failures.count(now_ms, 0, asked(bytes), live);
            due.map(|due| (due.count, due.tries))
        };
        assert_eq!(count(1, 10, 50), Some((1, 1)));
        assert_eq!(
            count(2, 10, 40),
            Some((1, 2)),
            "the framework gave memory back and asked again"
        );
        assert_eq!(count(3, 10, 40), None);
        assert_eq!(count(4, 10, 41), Some((2, 1)), "the process got memory in between");
        assert_eq!(count(5, 9, 41), None, "the third failure");
        assert_eq!(count(6, 9, 41), None, "a repetition of a failure that was not told");
        assert_eq!(count(SILENCE_MS + 5, 9, 41), Some((3, 3)), "a while without a message");
        assert_eq!(count(3 * SILENCE_MS, 9, 41), Some((4, 1)), "too late for a repetition");
    }
}
