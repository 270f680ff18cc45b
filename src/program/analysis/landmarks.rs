//! The moments of a job that a person asks for: marks, the peak, the last failure, the valleys between the steps.

use std::collections::HashMap;

use journal::format::{Event, MarkKind, Record};

use super::holdings::At;
use super::job::Observer;
use super::ledger::{Ledger, device_of};
use super::scene::is_out_of_memory;

/// Of so many marks at most the moments are kept.
const MOST_MARKS: usize = 1 << 18;
/// The number of equal parts of a job's time.
const SLICES: usize = 32;

#[derive(Clone, Copy, Debug)]
pub struct Mark {
    pub at: At,
    /// The number of the text in the file of stacks.
    pub text: u64,
    pub kind: MarkKind,
}

/// One device at its fewest bytes, or at its most, in a part of the job's time.
#[derive(Clone, Copy, Debug)]
pub struct Extreme {
    pub at: At,
    pub device: i16,
    pub allocated: u64,
}

/// One device in one slice of the job's time.
struct Slice {
    number: usize,
    lowest: Extreme,
}

#[derive(Default)]
pub struct Landmarks {
    /// Marks in the order of time.
    pub marks: Vec<Mark>,
    /// The first moment at which a device had its most allocated bytes, for each device.
    pub peaks: Vec<Extreme>,
    /// The last failure for lack of memory.
    pub failure: Option<Extreme>,
    /// When a device last served a request, in nanoseconds since the journal began.
    pub served_ns: u64,
    /// When the job began to free what it frees after its last request and its last mark, as the shutdown of an
    /// interpreter does; `None` if it frees nothing then.
    pub cleared_ns: Option<u64>,
    /// Each device in each slice of the job's time.
    slices: Vec<Slice>,
    slice_ns: u64,
    events: u64,
}

impl Landmarks {
    /// `duration_ns` is the time that the job took, as its journal's header tells it.
    pub fn new(duration_ns: u64) -> Landmarks {
        Landmarks {
            slice_ns: (duration_ns / SLICES as u64).max(1),
            ..Landmarks::default()
        }
    }

    /// The highest peak of all devices.
    pub fn peak(&self) -> Option<&Extreme> {
        let peaks = self.peaks.iter().filter(|peak| peak.device >= 0);
        peaks.max_by_key(|peak| peak.allocated)
    }

    /// The lowest moments of a device in equal parts of the job's time, in the order of time. A job that repeats itself has its
    /// steps between them.
    pub fn valleys(&self, device: i16) -> Vec<At> {
        let of_device = self.slices.iter().filter(|slice| slice.lowest.device == device);
        of_device.map(|slice| slice.lowest.at).collect()
    }

    /// The moments between which a job repeats itself, as its marks tell them: those of the text that occurs most often,
    /// or of all texts if each is different. Empty if there are fewer than two.
    pub fn steps(&self) -> Vec<Mark> {
        let begins = self.marks.iter().filter(|mark| mark.kind != MarkKind::End);
        // A range and a mark of one name are not two steps.
        let name = |mark: &Mark| (mark.text, mark.kind == MarkKind::Begin);
        let mut counts: HashMap<(u64, bool), usize> = HashMap::new();
        begins
            .clone()
            .for_each(|mark| *counts.entry(name(mark)).or_default() += 1);
        let most = counts.iter().max_by_key(|(name, count)| (**count, **name));
        let often = most.filter(|(_, count)| **count >= 3).map(|(name, _)| *name);
        let steps: Vec<Mark> = begins
            .filter(|mark| often.is_none_or(|often| often == name(mark)))
            .copied()
            .collect();
        if steps.len() < 2 { Vec::new() } else { steps }
    }
}

impl Observer for Landmarks {
    fn after(&mut self, ledger: &Ledger, record: &Record) {
        let at = At {
            time_ns: record.time_ns,
            event: self.events,
        };
        self.events += 1;
        if let Event::Mark { text, kind } = record.event {
            self.cleared_ns = None;
            if self.marks.len() < MOST_MARKS {
                self.marks.push(Mark { at, text, kind });
            }
            return;
        }
        let device = device_of(record);
        let Some(of_device) = ledger.devices.get(&device) else {
            return;
        };
        let allocated = of_device.all.allocated.current;
        let now = Extreme { at, device, allocated };
        match record.event {
            Event::Alloc(_) | Event::PoolReserved { .. } => {
                (self.served_ns, self.cleared_ns) = (record.time_ns, None);
                match self.peaks.iter_mut().find(|peak| peak.device == device) {
                    Some(peak) if peak.allocated < allocated => *peak = now,
                    None => self.peaks.push(now),
                    _ => {}
                }
            }
            Event::Free { .. } if device >= 0 => drop(self.cleared_ns.get_or_insert(record.time_ns)),
            Event::AllocFailed { result, .. } if is_out_of_memory(result) => {
                (self.failure, self.cleared_ns) = (Some(now), None);
            }
            _ => {}
        }
        let number = ((record.time_ns / self.slice_ns) as usize).min(SLICES - 1);
        let mut last = self.slices.iter_mut().rev().take_while(|slice| slice.number == number);
        match last.find(|slice| slice.lowest.device == device) {
            Some(slice) if allocated < slice.lowest.allocated => slice.lowest = now,
            Some(_) => {}
            None => self.slices.push(Slice { number, lowest: now }),
        }
    }
}
