//! One process that is served: how far its journal was read, and what it says so far.

use std::collections::BTreeSet;
use std::io;
use std::time::Instant;

use base::text::printable;
use journal::format::Record;
use journal::reader::{Device, Header, Journal, Reading, State, Tail};

use super::folders::Who;
use crate::analysis::figures::{Counts, Figures};
use crate::analysis::finding::Verdict;
use crate::analysis::held::{Caches, Held};
use crate::analysis::names::device_uuid;
use crate::analysis::pod::pod;
use crate::analysis::rank::rank;
use crate::analysis::scene::Scene;

/// The most characters of a label's value.
const LONGEST_LABEL: usize = 100;

/// Tells processes apart: the owner of the journal, process id, start time, the creation of the journal, and the host. Without the
/// owner, a user could write the journal of another one's process first.
pub type Identity = (u32, u32, u64, u64, String);

pub type Labels = Vec<(&'static str, String)>;

pub struct Process {
    pub who: Who,
    pub identity: Identity,
    /// The labels of all series of this process, but those of a device. Prometheus sets `job` and `pod` itself.
    pub labels: Labels,
    pub started_ns: u64,
    /// As the process sees them.
    pub devices: Vec<Device>,
    pub state: State,
    pub lost: u64,
    pub figures: Figures,
    caches: Caches,
    /// The totals of the node count what happened since, in nanoseconds after 1970; and the time of the last record that
    /// they have.
    pub counts_since_ns: u64,
    pub counted_until_ns: u64,
    tail: Tail,
    /// The journal was once read to its end. The series are not shown before.
    pub is_read: bool,
    /// The process has ended, and its journal was read to the end.
    pub is_done: bool,
    /// When the series leave.
    pub leaves: Option<Instant>,
    /// Whether the process has series of its own.
    pub is_shown: bool,
    /// A message about the journal was given.
    pub told: bool,
    /// The process ran when its journal was first opened.
    pub is_seen_running: bool,
}

pub fn identity(owner: u32, header: &Header) -> Identity {
    let host = printable(&header.host, LONGEST_LABEL);
    (owner, header.pid, header.start_ticks, header.wall_start_ns, host)
}

/// The verdict on a failure, as `Job::finding` has it. What is in PyTorch's cache counts as live here: the files that
/// tell it are not read for metrics.
fn verdict(header: &Header, has_lost: bool, scene: &Scene) -> Verdict {
    let mut shortage = scene.shortage(header.pid);
    shortage.total = header.device(scene.device).map_or(0, |device| device.total_memory);
    if has_lost && header.lost_first_ns <= scene.time_ns {
        // The sums do not have what was lost.
        shortage.parts = None;
    }
    shortage.verdict()
}

impl Process {
    /// `name` is the name of the journal, without its ending.
    pub fn new(journal: &Journal, name: &str, who: Who) -> Process {
        let header = journal.header();
        let text = |text: &str| printable(text, LONGEST_LABEL);
        let mut labels = vec![
            ("journal", text(name)),
            ("pid", header.pid.to_string()),
            ("host", text(&header.host)),
            ("strategy", text(&header.strategy)),
            ("job_name", text(&header.job)),
        ];
        labels.extend(rank(header).map(|rank| ("rank", text(&rank))));
        labels.extend(pod(header).map(|pod| ("job_pod", text(&pod))));
        Process {
            identity: identity(who.1, header),
            who,
            labels,
            started_ns: header.wall_start_ns,
            devices: Vec::new(),
            state: State::Running,
            lost: 0,
            figures: Figures::default(),
            caches: Caches::default(),
            counts_since_ns: 0,
            counted_until_ns: 0,
            tail: Tail::default(),
            is_read: false,
            is_done: false,
            leaves: None,
            is_shown: false,
            told: false,
            is_seen_running: journal.state() == State::Running,
        }
    }

    /// Whether the journal is still that of this process.
    pub fn is_of(&self, journal: &Journal) -> bool {
        self.identity == identity(self.who.1, journal.header())
    }

    /// Reads a portion of the journal. Each record that happened `counts_since_ns` or later also goes to `counts`.
    pub fn read(&mut self, journal: &Journal, buffer: &mut Vec<u8>, counts: &mut Counts) -> io::Result<Reading> {
        let started_ns = self.started_ns;
        let figures = &mut self.figures;
        let has_lost = journal.lost() > 0;
        // The slots of several threads are not in the order of time, and the growth depends on it.
        let mut records: Vec<Record> = Vec::new();
        let reading = self.tail.read(journal, buffer, &mut |record| records.push(record))?;
        records.sort_by_key(|record| (record.time_ns, record.slot));
        for record in &records {
            let cause = figures.apply(record, |scene| verdict(journal.header(), has_lost, scene));
            let time_ns = started_ns.saturating_add(record.time_ns);
            if time_ns >= self.counts_since_ns {
                counts.count(record, cause);
            }
            self.counted_until_ns = self.counted_until_ns.max(time_ns);
        }
        let header = journal.header();
        self.devices.clone_from(&header.devices);
        // A damaged header can name a device twice, and a series must be there once.
        let mut seen = BTreeSet::new();
        self.devices.retain(|device| seen.insert(device.ordinal));
        self.lost = self.lost.max(journal.lost().saturating_add(self.tail.given_up));
        self.is_read |= !reading.behind;
        if !reading.behind {
            let serves_tensors = self.figures.serves_tensors;
            self.caches = Caches::read(journal.path(), header, journal.state(), serves_tensors, false);
        }
        Ok(reading)
    }

    /// How many devices it has figures of, but at least 1.
    pub fn places(&self) -> usize {
        self.figures.devices.len().max(1)
    }

    pub fn held(&self, device: i16) -> Held {
        self.caches.held_of(device, &self.figures).without(self.lost)
    }

    /// Adds a label with a number if another process has the same labels: files with the same name in two folders. Two series
    /// with the same labels would make the whole text invalid.
    pub fn distinguish(&mut self, taken: &BTreeSet<Labels>) {
        self.labels.retain(|(name, _)| *name != "number");
        let count = self.labels.len();
        let mut number = 2;
        while taken.contains(&self.labels) {
            self.labels.truncate(count);
            self.labels.push(("number", number.to_string()));
            number += 1;
        }
    }

    /// Whether the journal has records that no job can have made.
    pub fn is_made_up(&self) -> bool {
        self.tail.impossible > 0
    }

    /// Damaged records, which were left out; known once the process has ended.
    pub fn damaged(&self) -> u64 {
        self.tail.damaged
    }

    /// The UUID of a device, if the process names one.
    pub fn uuid(&self, number: i16) -> Option<String> {
        let device = self.devices.iter().find(|device| device.ordinal == i32::from(number));
        device_uuid(&device?.uuid)
    }
}
