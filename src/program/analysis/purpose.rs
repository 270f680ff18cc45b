//! What the memory at the peak is for: what lasts from step to step, as parameters and the optimiser's state do, and
//! what comes and goes within one step, as activations do.

use std::collections::HashSet;

use super::device_ledger::Live;
use super::holdings::At;
use super::landmarks::Landmarks;
use super::live_set::{DeviceSet, Moment};

/// The step in which the peak lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub begin: At,
    pub end: At,
    /// Marks of the job bound the step. Otherwise the lowest moments around the peak do.
    pub is_marked: bool,
}

impl Step {
    /// `None` if the peak lies before the first bound or after the last.
    pub fn around_peak(landmarks: &Landmarks, device: i16) -> Option<Step> {
        let peak = landmarks.peak(Some(device))?.at;
        let mut marks: Vec<At> = landmarks.steps().iter().map(|mark| mark.at).collect();
        // The last step ends with the next mark of any name, or with its range.
        if let Some(&last) = marks.last() {
            let after = landmarks.marks.iter().map(|mark| mark.at);
            marks.extend(after.filter(|at| *at > last && *at > peak).min());
        }
        let around = |bounds: &[At]| {
            let after = bounds.iter().position(|bound| *bound > peak)?;
            Some((*bounds.get(after.checked_sub(1)?)?, bounds[after]))
        };
        let step = |is_marked: bool| move |(begin, end)| Step { begin, end, is_marked };
        around(&marks)
            .map(step(true))
            .or_else(|| around(&landmarks.valleys(device)).map(step(false)))
    }

    pub fn moments(&self) -> [Moment; 2] {
        [self.begin, self.end].map(|at| Moment::Time(at.time_ns))
    }
}

/// The allocations at the peak, by what became of them.
#[derive(Default)]
pub struct Purpose {
    /// Live at the begin of the step, at the peak and at the end: parameters, the optimiser's state, caches.
    pub lasts: Vec<Live>,
    /// Made and freed within the step: activations, gradients, temporary memory.
    pub comes_and_goes: Vec<Live>,
    /// Made within the step, and live at its end.
    pub stays: Vec<Live>,
    /// Live at the begin of the step, and freed in it.
    pub ends: Vec<Live>,
}

impl Purpose {
    pub fn of(begin: Option<&DeviceSet>, peak: &DeviceSet, end: Option<&DeviceSet>) -> Purpose {
        let slots = |set: Option<&DeviceSet>| -> HashSet<u64> {
            let live = set.into_iter().flat_map(|set| &set.live);
            live.map(|live| live.slot).collect()
        };
        let (before, after) = (slots(begin), slots(end));
        let mut purpose = Purpose::default();
        for live in &peak.live {
            let kind = match (before.contains(&live.slot), after.contains(&live.slot)) {
                (true, true) => &mut purpose.lasts,
                (false, false) => &mut purpose.comes_and_goes,
                (false, true) => &mut purpose.stays,
                (true, false) => &mut purpose.ends,
            };
            kind.push(*live);
        }
        purpose
    }
}
