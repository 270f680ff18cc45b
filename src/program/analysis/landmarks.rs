//! The moments of a job that its records name: marks, the last request that was served, and the begin of its clean-up.

use std::collections::HashMap;

use journal::format::{Event, MarkKind, Record};

use super::holdings::At;
use super::job::Observer;
use super::ledger::{Ledger, device_of};
use super::scene::is_out_of_memory;

/// Of so many marks at most the moments are kept.
const MOST_MARKS: usize = 1 << 18;

#[derive(Clone, Copy, Debug)]
pub struct Mark {
    pub at: At,
    /// The number of the text in the file of stacks.
    pub text: u64,
    pub kind: MarkKind,
}

#[derive(Default)]
pub struct Landmarks {
    /// Marks in the order of time.
    pub marks: Vec<Mark>,
    /// When a device last served a request, in nanoseconds since the journal began.
    pub served_ns: u64,
    /// When the job began to free what it frees after its last request and its last mark, as the shutdown of an
    /// interpreter does; `None` if it frees nothing then.
    pub cleared_ns: Option<u64>,
}

impl Landmarks {
    /// The moments between which a job repeats itself, as its marks tell them: those of the text that occurs most often,
    /// or of all texts if each is different. Marks with the text `but` leave out some steps. Empty if there are fewer than two.
    pub fn steps(&self, but: Option<u64>) -> Vec<Mark> {
        let is_step = |mark: &&Mark| mark.kind != MarkKind::End && Some(mark.text) != but;
        let begins = self.marks.iter().filter(is_step);
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
        let (time_ns, event) = (record.time_ns, ledger.records - 1);
        match record.event {
            Event::Mark { text, kind } => {
                self.cleared_ns = None;
                if self.marks.len() < MOST_MARKS {
                    let at = At { time_ns, event };
                    self.marks.push(Mark { at, text, kind });
                }
            }
            Event::Alloc(_) | Event::PoolReserved { .. } => (self.served_ns, self.cleared_ns) = (time_ns, None),
            Event::AllocFailed { result, .. } if is_out_of_memory(result) => self.cleared_ns = None,
            Event::Free { .. } if device_of(record) >= 0 => drop(self.cleared_ns.get_or_insert(time_ns)),
            _ => {}
        }
    }
}
