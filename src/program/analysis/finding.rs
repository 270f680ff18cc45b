//! Why a job's last request failed, or how far the job stayed from its limit. `inspect`, `why` and `report` print this
//! verdict.

use std::cmp::Ordering;

use base::api::Api;
use base::layers;
pub use base::shortage::{Parts, Shortage, Verdict};
use journal::format::LimitSource;
use journal::reader::State;

use super::floors::Growth;
use super::job::Job;
use super::scene::{self, Scene};
use super::tensor_records::Tensors;

/// What happens so soon after a failure belongs to it.
const SAME_NS: u64 = 1_000_000_000;

/// The verdict of a job, with the figures that it follows from.
pub struct Finding<'a> {
    pub verdict: Verdict,
    /// The failure; `None` if no request failed, as far as the journal tells.
    pub failure: Option<Failure<'a>>,
    /// A failure that no call of CUDA knows: PyTorch itself refused a request, because its own limit
    /// (`torch.cuda.set_per_process_memory_fraction`) is lower than the device. `None` if a call failed later.
    pub refused_by_torch: Option<&'a Scene>,
    /// How far the fullest device stayed from its limit or its size; `None` if the job used no device.
    pub distance: Option<Distance>,
    /// Events or what lay beside the journal were lost or damaged, so the figures may be wrong.
    pub uncertain: bool,
    /// Whether the failure is what ended the job, as far as the journal tells: the job ended with an error, or was killed
    /// and had allocated nothing after it.
    pub fatal: bool,
    /// Whether the job is known to have gone on after its last failure: it ended well, or runs and has allocated since.
    pub lived: bool,
}

pub struct Failure<'a> {
    pub scene: &'a Scene,
    pub shortage: Shortage,
    /// The framework of whose own cache it is not known what was used inside. All of it counts as live.
    pub cache: Option<&'static str>,
}

impl Failure<'_> {
    /// Whether what a framework's own cache holds is part of `cached`, and not of `live`.
    pub fn knows_cache(&self) -> bool {
        self.cache.is_none()
    }
}

/// The device that was fullest at its peak, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Distance {
    pub device: i16,
    #[serde(rename = "peak_reserved")]
    pub peak: u64,
    /// The limit if there is one below the device's memory, or else that memory; `None` if it is not known, as of an import.
    pub room: Option<u64>,
    pub is_limit: bool,
    /// That limit is one of a group, so other members took of it too.
    pub of_group: bool,
}

impl Job {
    pub fn finding(&self) -> Finding<'_> {
        let last = self.ledger.scenes.last();
        let is_of_torch = |scene: &&Scene| scene.api == Api::torch_alloc.number() && !self.is_imported();
        let refused_by_torch = last.filter(is_of_torch);
        let failure = last.filter(|_| refused_by_torch.is_none()).map(|scene| {
            let mut shortage = scene.shortage(self.header.pid);
            shortage.of_group = self.limit_is_of_group();
            // The ledger does not have what was lost, so its figures would be wrong. When damaged records were is not known.
            let lost = self.lost_from_before(scene.time_ns).saturating_add(self.damaged);
            if lost > 0 {
                (shortage.parts, shortage.told, shortage.lost_before) = (None, None, lost);
            }
            if let Some(device) = self.header.device(scene.device) {
                shortage.total = device.total_memory;
                shortage.inherited = device.limit_source == LimitSource::Layer;
            }
            let cache = self.cache_at(scene);
            if cache.is_some() && self.tensors.is_some() {
                shortage.count_cache_as_live();
            }
            shortage.live_has_cache = cache.is_some();
            shortage.of_cache = cache.is_some() && scene.framework_asked().is_none();
            let streams = self.ledger.streams;
            shortage.one_stream = self.tensors.is_some() && (streams & !1).count_ones() == 1;
            shortage.layer = self.header.layer().and_then(layers::known);
            Failure { scene, shortage, cache }
        });
        let ended_with_error = matches!(self.state, State::Exited(status) if status != 0);
        // A journal that could not grow keeps its failures. What was cut off or damaged may have been one.
        let died = (ended_with_error || self.state == State::Killed) && !self.is_imported();
        let may_be_missing = self.cut_off > 0 || self.damaged > 0;
        let may_have_failed = failure.is_none() && refused_by_torch.is_none() && died && may_be_missing;
        let is_fatal = |failure: &Failure| match self.state {
            _ if self.is_imported() => failure.scene.went_on == 0 && failure.scene.freed == 0,
            State::Running | State::Dumped => false,
            _ if failure.scene.served_again => false,
            State::Exited(_) if self.header.knows_end() => ended_with_error && !failure.scene.was_survived(),
            // Other threads may obtain memory while an exception ends the job.
            State::Killed if self.header.knows_end() => {
                failure.scene.went_on == 0 || !self.lived_long_after(failure.scene)
            }
            // An exception frees memory on its way out.
            _ => failure.scene.went_on == 0,
        };
        let fatal = match &failure {
            Some(failure) => is_fatal(failure),
            None => may_have_failed || refused_by_torch.is_some() && ended_with_error,
        };
        let went_on = match (self.state, &failure) {
            (State::Exited(0), _) => self.header.knows_end(),
            (State::Running | State::Dumped, Some(failure)) => failure.scene.went_on > 0,
            _ => false,
        };
        let has_failed = failure.is_some() || refused_by_torch.is_some();
        Finding {
            lived: has_failed && went_on && !fatal && !self.is_imported(),
            verdict: failure
                .as_ref()
                .map(|failure| failure.shortage.verdict())
                .or(refused_by_torch.map(|_| Verdict::Limit))
                .unwrap_or(if may_have_failed {
                    Verdict::NotEnoughEvidence
                } else {
                    Verdict::NoneFailed
                }),
            fatal,
            refused_by_torch,
            failure,
            distance: self.distance(),
            uncertain: self.lost > 0 || self.damaged > 0 || !self.header.damaged.is_empty() || self.lacks_tensors,
        }
    }

    /// The framework of whose cache it is not known what was used inside at a failure. Snapshots show it at PyTorch's own
    /// failures, if one was taken.
    fn cache_at(&self, scene: &Scene) -> Option<&'static str> {
        let is_shown = |tensors: &Tensors| tensors.show_use_at(scene.device, scene.time_ns);
        let is_known = self.tensors.as_ref().is_some_and(is_shown);
        self.cache_owner().filter(|_| !is_known)
    }

    /// Whether the process showed signs of life so long after the failure that its end has another cause.
    fn lived_long_after(&self, scene: &Scene) -> bool {
        // Without signs of life the last record is the last that is known, and the process may have lived on.
        let long_ns = match self.header.alive_ns {
            0 => SAME_NS,
            _ => scene::LONG_AFTER_NS,
        };
        let last_ns = self.duration_ns.max(self.ledger.last_ns);
        last_ns.saturating_sub(scene.time_ns) > long_ns
    }

    /// The device whose live bytes grew the most until now, if any did steadily and by more than a hundredth of their peak. Of a
    /// journal that lacks events it is not known.
    pub fn growth(&self) -> Option<(i16, Growth)> {
        let devices = self.devices().into_iter().filter_map(|(device, _, ledger)| {
            let growth = ledger?.floors.growth()?;
            (growth.bytes > ledger?.all.allocated.peak / 100).then_some((device, growth))
        });
        let is_whole = self.lost == 0 && self.damaged == 0;
        devices.max_by_key(|(_, growth)| growth.bytes).filter(|_| is_whole)
    }

    fn distance(&self) -> Option<Distance> {
        let devices = self.devices().into_iter().filter_map(|(device, entry, ledger)| {
            // An imported log has requests alone.
            let peak = ledger?.all.reserved.peak.max(ledger?.all.allocated.peak);
            let total = entry.map(|entry| entry.total_memory).filter(|&total| total > 0);
            let limit = entry.and_then(|entry| entry.limit).filter(|&limit| Some(limit) < total);
            let room = limit.or(total);
            (room.is_some() || peak > 0).then_some(Distance {
                device,
                peak,
                room,
                is_limit: limit.is_some(),
                of_group: limit.is_some() && self.limit_is_of_group(),
            })
        });
        devices.max_by(Distance::compare)
    }
}

impl Distance {
    /// The fuller device is the greater. If a size is not known, no share is.
    pub fn compare(&self, other: &Distance) -> Ordering {
        let share = |one: &Distance| one.room.map_or(0.0, |room| one.peak as f64 / room as f64);
        (share(self).total_cmp(&share(other))).then(self.peak.cmp(&other.peak))
    }
}
