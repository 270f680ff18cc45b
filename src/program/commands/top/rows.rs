//! The rows of the table of processes: a row for each device of a process. Processes that are not under the library follow.

use super::devices::{self, Other};
use super::machine::Machine;
use super::spark::spark;
use journal::reader::Device;

use crate::analysis::device_ledger::{DeviceLedger, Free, Totals};
use crate::analysis::names::device_uuid;
use crate::analysis::running::FileId;
use crate::analysis::watch::{Rates, Watched};
use crate::render::format::{self, count, ended, printable, size};

/// The width of a sparkline in characters; each stands for one interval.
const LEVELS_SHOWN: usize = 12;

/// One device of a process, or a process that has no device yet.
pub struct Row {
    /// Identifies the process: the file of its journal. No file has the device 0, which stands for a process whose journal
    /// is not read.
    pub id: FileId,
    pid: u32,
    job: String,
    strategy: String,
    device: Option<i16>,
    limit: Option<u64>,
    state: String,
    /// What NVML says that the process holds.
    nvml: Option<u64>,
    /// The most live bytes of each of the last intervals.
    levels: Vec<u64>,
    /// `None` until the journal has been read to its end.
    figures: Option<Figures>,
}

struct Figures {
    all: Totals,
    free: Free,
    failures: u64,
    /// How often memory was asked of others, or given back for them.
    reclaims: u64,
    rates: Option<Rates>,
    /// Resident memory of the process, as its journal last said.
    resident: Option<u64>,
}

/// The rows of all processes.
pub fn of(machine: &Machine) -> Vec<Row> {
    let ours = machine
        .processes()
        .flat_map(|(id, watched)| rows_of(machine, id, watched));
    ours.chain(devices::others(machine).into_iter().map(row_of_other))
        .collect()
}

fn row_of_other(other: Other) -> Row {
    Row {
        id: (0, u64::from(other.pid)),
        pid: other.pid,
        job: printable(other.job.as_deref().unwrap_or("-"), 24),
        strategy: "-".to_owned(),
        device: other.number.and_then(|number| number.try_into().ok()),
        limit: None,
        state: if other.has_library { "no journal" } else { "other" }.to_owned(),
        nvml: other.bytes,
        levels: Vec::new(),
        figures: None,
    }
}

fn rows_of(machine: &Machine, id: FileId, watched: &Watched) -> Vec<Row> {
    let job = &watched.job;
    let host = machine.host(id).id();
    let row = |device: Option<i16>, entry: Option<&Device>, ledger: Option<&DeviceLedger>| Row {
        id,
        pid: watched.pid,
        job: printable(&job.title(), 24),
        strategy: printable(&job.header.strategy, 16),
        device,
        limit: entry.and_then(|entry| entry.limit),
        state: state(watched),
        nvml: entry
            .and_then(|entry| device_uuid(&entry.uuid))
            .and_then(|uuid| devices::bytes_of(machine, &host, &uuid, watched.pid)),
        levels: device
            .and_then(|device| watched.levels.get(&device))
            .map(|levels| levels.iter().copied().collect())
            .unwrap_or_default(),
        figures: watched.is_read().then(|| Figures {
            all: ledger.map(|ledger| ledger.all).unwrap_or_default(),
            free: ledger.map(DeviceLedger::free).unwrap_or_default(),
            failures: ledger.map_or(0, |ledger| ledger.failures),
            reclaims: ledger.map_or(0, |ledger| ledger.reclaims.asked + ledger.reclaims.given),
            rates: device.and_then(|device| watched.rates.get(&device).copied()),
            resident: job.ledger.host.last.map(|last| last.memory.resident),
        }),
    };
    let devices = job.devices();
    if devices.is_empty() {
        return vec![row(None, None, None)];
    }
    devices
        .into_iter()
        .map(|(ordinal, entry, ledger)| row(Some(ordinal), entry, ledger))
        .collect()
}

fn state(watched: &Watched) -> String {
    let (done, all) = watched.progress();
    match watched.is_read() {
        true => ended(watched.state()),
        false => format!("reading {} %", done.saturating_mul(100) / all.max(1)),
    }
}

/// A column of the table of processes. The table can be sorted by each column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Pid,
    Job,
    Strategy,
    Device,
    Requested,
    Allocated,
    Reserved,
    Limit,
    Nvml,
    Utilisation,
    LargestFree,
    FreeInside,
    Allocations,
    Frees,
    Bytes,
    Failures,
    Levels,
    Reclaims,
    Host,
    State,
}

impl Column {
    pub const ALL: [Column; 20] = [
        Column::Pid,
        Column::Job,
        Column::Strategy,
        Column::Device,
        Column::Requested,
        Column::Allocated,
        Column::Reserved,
        Column::Limit,
        Column::Nvml,
        Column::Utilisation,
        Column::LargestFree,
        Column::FreeInside,
        Column::Allocations,
        Column::Frees,
        Column::Bytes,
        Column::Failures,
        Column::Levels,
        Column::Reclaims,
        Column::Host,
        Column::State,
    ];

    /// The columns that are left out, one after another in this order, while the screen is too narrow.
    pub const EXPENDABLE: [Column; 17] = [
        Column::Reclaims,
        Column::Host,
        Column::FreeInside,
        Column::Strategy,
        Column::Frees,
        Column::LargestFree,
        Column::Bytes,
        Column::Requested,
        Column::Allocations,
        Column::Limit,
        Column::Utilisation,
        Column::Nvml,
        Column::Failures,
        Column::State,
        Column::Levels,
        Column::Job,
        Column::Device,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Column::Pid => "pid",
            Column::Job => "job",
            Column::Strategy => "strategy",
            Column::Device => "dev",
            Column::Requested => "requested",
            Column::Allocated => "allocated",
            Column::Reserved => "reserved",
            Column::Limit => "limit",
            Column::Nvml => "nvml",
            Column::Utilisation => "utilis.",
            Column::LargestFree => "largest free",
            Column::FreeInside => "free inside",
            Column::Allocations => "allocs/s",
            Column::Frees => "frees/s",
            Column::Bytes => "bytes/s",
            Column::Failures => "failures",
            Column::Levels => "live lately",
            Column::Reclaims => "reclaims",
            Column::Host => "host",
            Column::State => "state",
        }
    }

    /// Whether the column shows what happened between updates.
    pub fn needs_updates(self) -> bool {
        matches!(
            self,
            Column::Allocations | Column::Frees | Column::Bytes | Column::Levels
        )
    }

    pub fn is_number(self) -> bool {
        !matches!(self, Column::Job | Column::Strategy | Column::Levels | Column::State)
    }

    pub fn text(self, row: &Row) -> String {
        match self {
            Column::Job => row.job.clone(),
            Column::Strategy => row.strategy.clone(),
            Column::State => row.state.clone(),
            Column::Levels => spark(&row.levels, LEVELS_SHOWN),
            _ => self
                .number(row)
                .map_or_else(|| "-".to_owned(), |number| self.show(number)),
        }
    }

    fn show(self, number: f64) -> String {
        match self {
            Column::Pid | Column::Device => number.to_string(),
            Column::Utilisation => format::percent(Some(number)),
            Column::Failures | Column::Reclaims | Column::Allocations | Column::Frees => count(number.round() as u64),
            _ => size(number.round() as u64),
        }
    }

    fn number(self, row: &Row) -> Option<f64> {
        match self {
            Column::Pid => return Some(f64::from(row.pid)),
            Column::Device => return row.device.map(f64::from),
            Column::Limit => return row.limit.map(|bytes| bytes as f64),
            Column::Nvml => return row.nvml.map(|bytes| bytes as f64),
            Column::Levels => return row.levels.last().map(|bytes| *bytes as f64),
            _ => {}
        }
        let Figures {
            all,
            free,
            failures,
            reclaims,
            rates,
            resident,
        } = row.figures.as_ref()?;
        Some(match self {
            Column::Requested => all.requested.current as f64,
            Column::Allocated => all.allocated.current as f64,
            Column::Reserved => all.reserved.current as f64,
            Column::Utilisation => all.utilisation()?,
            Column::LargestFree => free.largest as f64,
            Column::FreeInside => free.bytes as f64,
            Column::Failures => *failures as f64,
            Column::Reclaims => *reclaims as f64,
            Column::Allocations => rates.as_ref()?.allocations,
            Column::Frees => rates.as_ref()?.frees,
            Column::Bytes => rates.as_ref()?.bytes,
            Column::Host => (*resident)? as f64,
            _ => return None,
        })
    }

    /// Whether the rows are sorted by a number; otherwise by their texts.
    fn sorts_by_number(self) -> bool {
        self.is_number() || self == Column::Levels
    }

    /// Whether the largest value comes first in the normal order.
    fn descends(self) -> bool {
        self.sorts_by_number() && !matches!(self, Column::Pid | Column::Device)
    }

    /// Sorts rows by this column. Rows with equal values are sorted by process and device.
    pub fn sort(self, rows: &mut [Row], reversed: bool) {
        rows.sort_by(|one, other| {
            let order = match self.sorts_by_number() {
                // Rows without a number come last.
                true => {
                    let number = |row| self.number(row).unwrap_or(f64::NEG_INFINITY);
                    number(one).total_cmp(&number(other))
                }
                false => self.text(one).cmp(&self.text(other)),
            };
            let order = if self.descends() { order.reverse() } else { order };
            let order = if reversed { order.reverse() } else { order };
            order.then_with(|| one.place().cmp(&other.place()))
        });
    }
}

impl Row {
    pub fn has_failed(&self) -> bool {
        self.figures.as_ref().is_some_and(|figures| figures.failures > 0)
    }

    /// Whether the process's journal has been read.
    pub fn is_read(&self) -> bool {
        self.figures.is_some()
    }

    fn place(&self) -> (u32, FileId, Option<i16>) {
        (self.pid, self.id, self.device)
    }
}

#[cfg(test)]
pub mod samples;

#[cfg(test)]
mod tests {
    use super::*;

    fn order(column: Column, reversed: bool) -> Vec<u32> {
        let reserved = [Some(5), None, Some(70), Some(6)];
        let mut rows: Vec<Row> = (0..)
            .zip(reserved)
            .map(|(number, bytes)| samples::row(number, bytes))
            .collect();
        column.sort(&mut rows, reversed);
        rows.iter().map(|row| row.pid - 4711).collect()
    }

    #[test]
    fn the_largest_comes_first_and_what_has_no_number_last() {
        assert_eq!(order(Column::Reserved, false), [2, 3, 0, 1]);
        assert_eq!(order(Column::Reserved, true), [1, 0, 3, 2]);
        assert_eq!(order(Column::Pid, false), [0, 1, 2, 3]);
        assert_eq!(order(Column::Job, true), [3, 2, 1, 0]);
        // All values are equal, so the order is by process.
        assert_eq!(order(Column::Failures, false), [0, 2, 3, 1]);
    }

    #[test]
    fn every_column_but_the_ones_that_matter_most_can_go() {
        for column in Column::ALL {
            let kept = matches!(column, Column::Pid | Column::Allocated | Column::Reserved);
            assert_ne!(Column::EXPENDABLE.contains(&column), kept, "{column:?}");
        }
    }
}
