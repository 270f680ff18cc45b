//! How often requests for memory fail, and which of the failures are measured and told on stderr.
//!
//! Some jobs request memory until they fail, on purpose, and again and again. So the first, second, fourth ... failure
//! is told, and one after a while without a message. Failures are measured more often, because the last one may have
//! ended the job.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::measurements::now_ms;
use base::cuda::MAX_DEVICES;

/// After this time a failure is told in any case.
const SILENCE_MS: u64 = 5000;
/// In the long run one failure is measured in this time.
const BETWEEN_MEASUREMENTS_MS: u64 = 250;
/// So many failures are measured however fast they come.
const MEASURED_AT_ONCE: u64 = 16;

pub struct Failures {
    /// Failures by device.
    counts: [AtomicU64; MAX_DEVICES],
    told_ms: [AtomicU64; MAX_DEVICES],
    /// When all measurements that were made would have been due at the slow pace.
    measured_until_ms: AtomicU64,
}

impl Default for Failures {
    fn default() -> Self {
        Failures {
            counts: [const { AtomicU64::new(0) }; MAX_DEVICES],
            told_ms: [const { AtomicU64::new(0) }; MAX_DEVICES],
            measured_until_ms: AtomicU64::new(0),
        }
    }
}

impl Failures {
    /// Counts a failure of a device. Returns the number of failures so far if this one is to be told.
    pub fn count(&self, device: i16) -> Option<u64> {
        let index = usize::try_from(device).ok()?;
        let (counts, told) = (self.counts.get(index)?, self.told_ms.get(index)?);
        let count = counts.fetch_add(1, Relaxed) + 1;
        let now = now_ms();
        let due = count.is_power_of_two() || now.saturating_sub(told.load(Relaxed)) >= SILENCE_MS;
        if due {
            told.store(now, Relaxed);
        }
        due.then_some(count)
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

    #[test]
    fn few_of_many_failures_are_told() {
        let failures = Failures::default();
        let told: Vec<u64> = (0..20).filter_map(|_| failures.count(0)).collect();
        assert_eq!(told[..5], [1, 2, 4, 8, 16]);
        assert_eq!((failures.count(1), failures.count(-1)), (Some(1), None));
    }
}
