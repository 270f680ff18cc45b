//! What a process holds of a device, for all views of running processes: one definition of reserved, live and cached.
//!
//! *Reserved* is what was obtained from the driver or a layer before it. *Live* is what the job has in use of it, and
//! *cached* the rest: free memory of a policy's segments, of the driver's pools, and of the cache of a framework. A journal
//! has what a framework's cache obtained, and not what is used inside. PyTorch's recorder says that once a second
//! (`CacheSums`). Nobody says it of other caches, so live and cached are not known of a process that has one.

use std::path::Path;
use std::time::UNIX_EPOCH;

use base::cuda::HOST_DEVICE;
use base::text::events_were;
use base::units::size;
use journal::reader::{CacheSums, Header, State, TensorFile};
use serde::Serialize;

use super::figures::{Figures, positive};

/// Sums of a running process that are older do not hold: its recorder has ended, or waits for Python.
const OLDEST_US: u64 = 10_000_000;

/// Bytes of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Held {
    /// What the job asked CUDA for and holds, after rounding: a framework's cache as a whole. Other views count tensors here.
    #[serde(skip)]
    pub allocated: u64,
    pub reserved: u64,
    /// `None` if it is not known what is used inside a framework's cache. It is at most `live_at_most`, if that is known.
    pub live: Option<u64>,
    pub live_at_most: Option<u64>,
    pub cached: Option<u64>,
    pub pytorch: Option<PyTorch>,
    /// Why `live` and `cached` are not known.
    pub not_known: Option<String>,
}

/// PyTorch's own figures of its cache, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PyTorch {
    /// Bytes of its segments, and of the tensors in them.
    pub reserved: u64,
    pub used: u64,
    /// When it said so, in microseconds since 1970.
    pub time_us: u64,
}

/// What is known of the caches of a process's frameworks.
#[derive(Clone, Debug, Default)]
pub struct Caches {
    sums: Option<CacheSums>,
    /// When the journal began, in nanoseconds since 1970.
    began_ns: u64,
    /// The ledger has PyTorch's tensors, and not its segments.
    has_tensors: bool,
    not_known: Option<String>,
}

/// Nanoseconds since 1970.
pub fn now_ns() -> u64 {
    UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64
}

impl Held {
    /// The same for a process of which so many events are lost: the sums lack what they told.
    pub fn without(self, lost: u64) -> Held {
        if lost == 0 {
            return self;
        }
        Held {
            live: None,
            live_at_most: None,
            cached: None,
            not_known: Some(format!("{} lost", events_were(lost))),
            ..self
        }
    }
}

impl Caches {
    /// Reads what PyTorch said last of its cache beside `journal`. `serves_tensors`: whether the process's own requests are
    /// for tensors. `has_tensors`: whether the ledger has those of the file beside the journal.
    pub fn read(journal: &Path, header: &Header, state: State, serves_tensors: bool, has_tensors: bool) -> Caches {
        let mut caches = Caches {
            has_tensors,
            began_ns: header.wall_start_ns,
            ..Caches::default()
        };
        let mut inside = Vec::new();
        for framework in header.frameworks() {
            match framework {
                "PyTorch" if serves_tensors => {}
                "PyTorch" => {
                    let sums = CacheSums::last(&TensorFile::beside(journal)).ok().flatten();
                    let age_us = |sums: &CacheSums| (now_ns() / 1000).saturating_sub(sums.at_us);
                    let holds = |sums: &CacheSums| state != State::Running || age_us(sums) <= OLDEST_US;
                    let told = sums.as_ref().filter(|sums| !holds(sums)).map(age_us);
                    caches.sums = sums.filter(holds);
                    if caches.sums.is_none() && (told.is_some() || !has_tensors) {
                        let told = told.map(|us| format!(" (it last told {} s ago)", us / 1_000_000));
                        inside.push(format!("PyTorch's cache{}", told.unwrap_or_default()));
                    }
                }
                other => inside.push(format!("the cache of {other}")),
            }
        }
        if !inside.is_empty() {
            caches.not_known = Some(format!("what is used inside {} is not known", inside.join(" and ")));
        }
        caches
    }

    pub fn held_of(&self, device: i16, figures: &Figures) -> Held {
        let levels = figures.levels(device);
        let changed_ns = figures.devices.get(&device).map(|figures| figures.changed_ns);
        self.held(
            device,
            positive(levels.allocated),
            positive(levels.reserved),
            changed_ns,
        )
    }

    /// What the process holds of a device. `allocated`: the bytes that it asked for and holds, after rounding. `changed_ns`:
    /// when that changed last, since the journal began; `None` if it is not known.
    pub fn held(&self, device: i16, allocated: u64, reserved: u64, changed_ns: Option<u64>) -> Held {
        let told = self.sums.as_ref().filter(|_| device != HOST_DEVICE);
        let pytorch = told.map(|sums| {
            let (used, reserved) = sums.devices.get(&device).copied().unwrap_or_default();
            PyTorch {
                reserved,
                used,
                time_us: sums.at_us,
            }
        });
        // What PyTorch obtained or gave back since then is in `allocated` alone.
        let unused = pytorch.map_or(0, |inside| inside.reserved.saturating_sub(inside.used));
        let live = allocated - if self.has_tensors { 0 } else { unused.min(allocated) };
        let changed_us = changed_ns.map_or(0, |changed_ns| self.began_ns.saturating_add(changed_ns) / 1000);
        let is_newer = pytorch.is_some_and(|inside| changed_us > inside.time_us);
        let newer = pytorch.filter(|_| is_newer).map(|PyTorch { used, reserved, .. }| {
            let (used, reserved) = (size(used), size(reserved));
            format!("PyTorch told last that {used} of its {reserved} were in use, and memory came or went since")
        });
        let not_known = self.not_known.clone().or(newer);
        let not_known = not_known.filter(|_| allocated > 0 && device != HOST_DEVICE);
        let known = |bytes: u64| not_known.is_none().then_some(bytes);
        Held {
            allocated,
            reserved,
            live_at_most: Some(match self.has_tensors {
                true if not_known.is_some() => reserved,
                false if is_newer => allocated,
                _ => live,
            }),
            live: known(live),
            cached: known(reserved.saturating_sub(live)),
            pytorch: pytorch.filter(|inside| inside.reserved > 0),
            not_known,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_that_lack_events_are_not_told() {
        let held = Held {
            allocated: 60,
            live: Some(10),
            live_at_most: Some(10),
            cached: Some(50),
            ..Held::default()
        };
        assert_eq!(held.clone().without(0), held);
        let lost = held.without(1);
        assert_eq!((lost.live, lost.live_at_most, lost.cached), (None, None, None));
        assert_eq!(lost.not_known.as_deref(), Some("1 event was lost"));
    }
}
