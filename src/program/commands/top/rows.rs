//! The rows of the two tables of `top`. The table of processes has a row for each device of a process. The table of
//! devices has the sums of all processes.

use std::collections::BTreeMap;

use journal::reader::State;

use super::machine::Machine;
use crate::analysis::device_ledger::{DeviceLedger, Free, Totals};
use crate::analysis::names::device_uuid;
use crate::analysis::running::FileId;
use crate::analysis::watch::{Rates, Watched};
use crate::render::format::{self, count, ended, printable, size};

/// One device of a process, or a process that has no device yet.
pub struct Row {
    /// Identifies the process: the file of its journal.
    pub id: FileId,
    pid: u32,
    job: String,
    strategy: String,
    device: Option<i16>,
    limit: Option<u64>,
    state: String,
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
}

/// The rows of all processes.
pub fn of(machine: &Machine) -> Vec<Row> {
    machine
        .processes()
        .flat_map(|(id, watched)| rows_of(id, watched))
        .collect()
}

fn rows_of(id: FileId, watched: &Watched) -> Vec<Row> {
    let job = &watched.job;
    let row = |device: Option<i16>, limit: Option<u64>, ledger: Option<&DeviceLedger>| Row {
        id,
        pid: watched.pid,
        job: printable(&job.title(), 24),
        strategy: printable(&job.header.strategy, 16),
        device,
        limit,
        state: state(watched),
        figures: watched.is_read().then(|| Figures {
            all: ledger.map(|ledger| ledger.all).unwrap_or_default(),
            free: ledger.map(DeviceLedger::free).unwrap_or_default(),
            failures: ledger.map_or(0, |ledger| ledger.failures),
            reclaims: ledger.map_or(0, |ledger| ledger.reclaims.asked + ledger.reclaims.given),
            rates: device.and_then(|device| watched.rates.get(&device).copied()),
        }),
    };
    let devices = job.devices();
    if devices.is_empty() {
        return vec![row(None, None, None)];
    }
    devices
        .into_iter()
        .map(|(ordinal, entry, ledger)| row(Some(ordinal), entry.and_then(|entry| entry.limit), ledger))
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
    Utilisation,
    LargestFree,
    FreeInside,
    Allocations,
    Frees,
    Bytes,
    Failures,
    Reclaims,
    State,
}

impl Column {
    pub const ALL: [Column; 17] = [
        Column::Pid,
        Column::Job,
        Column::Strategy,
        Column::Device,
        Column::Requested,
        Column::Allocated,
        Column::Reserved,
        Column::Limit,
        Column::Utilisation,
        Column::LargestFree,
        Column::FreeInside,
        Column::Allocations,
        Column::Frees,
        Column::Bytes,
        Column::Failures,
        Column::Reclaims,
        Column::State,
    ];

    /// The columns that are left out, one after another in this order, while the screen is too narrow.
    pub const EXPENDABLE: [Column; 14] = [
        Column::Reclaims,
        Column::FreeInside,
        Column::Strategy,
        Column::Frees,
        Column::LargestFree,
        Column::Bytes,
        Column::Limit,
        Column::Requested,
        Column::Failures,
        Column::Allocations,
        Column::State,
        Column::Utilisation,
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
            Column::Utilisation => "utilis.",
            Column::LargestFree => "largest free",
            Column::FreeInside => "free inside",
            Column::Allocations => "allocs/s",
            Column::Frees => "frees/s",
            Column::Bytes => "bytes/s",
            Column::Failures => "failures",
            Column::Reclaims => "reclaims",
            Column::State => "state",
        }
    }

    pub fn is_a_rate(self) -> bool {
        matches!(self, Column::Allocations | Column::Frees | Column::Bytes)
    }

    pub fn is_number(self) -> bool {
        !matches!(self, Column::Job | Column::Strategy | Column::State)
    }

    pub fn text(self, row: &Row) -> String {
        match self {
            Column::Job => row.job.clone(),
            Column::Strategy => row.strategy.clone(),
            Column::State => row.state.clone(),
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
            _ => {}
        }
        let Figures {
            all,
            free,
            failures,
            reclaims,
            rates,
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
            _ => return None,
        })
    }

    /// Whether the largest value comes first in the normal order.
    fn descends(self) -> bool {
        self.is_number() && !matches!(self, Column::Pid | Column::Device)
    }

    /// Sorts rows by this column. Rows with equal values are sorted by process and device.
    pub fn sort(self, rows: &mut [Row], reversed: bool) {
        rows.sort_by(|one, other| {
            let order = match self.is_number() {
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
    fn place(&self) -> (u32, FileId, Option<i16>) {
        (self.pid, self.id, self.device)
    }
}

/// A device, with the sums of all running processes that use it. Processes may have different numbers for the device.
pub struct DeviceRow {
    pub uuid: Option<String>,
    pub name: Option<String>,
    pub total_memory: Option<u64>,
    pub requested: u64,
    pub allocated: u64,
    pub reserved: u64,
    pub processes: u64,
}

/// What identifies a device: its UUID, or its host and number if it has none.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum DeviceId {
    Uuid([u8; 16]),
    Number(String, i16),
}

pub fn devices(machine: &Machine) -> Vec<DeviceRow> {
    let mut devices: BTreeMap<DeviceId, DeviceRow> = BTreeMap::new();
    for (_, watched) in machine.processes() {
        // The memory of an ended process is free again. A ledger is left out until its journal has been read to the
        // end.
        if watched.state() != State::Running || !watched.is_read() {
            continue;
        }
        let job = &watched.job;
        for (ordinal, entry, ledger) in job.devices() {
            let uuid = entry.map(|entry| entry.uuid).filter(|uuid| *uuid != [0; 16]);
            let id = uuid.map_or_else(|| DeviceId::Number(job.header.host.clone(), ordinal), DeviceId::Uuid);
            let row = devices.entry(id).or_insert_with(|| DeviceRow {
                uuid: uuid.and_then(|uuid| device_uuid(&uuid)),
                name: entry.map(|entry| entry.name.clone()),
                total_memory: entry.map(|entry| entry.total_memory),
                requested: 0,
                allocated: 0,
                reserved: 0,
                processes: 0,
            });
            row.processes += 1;
            if let Some(all) = ledger.map(|ledger| &ledger.all) {
                row.requested = row.requested.saturating_add(all.requested.current);
                row.allocated = row.allocated.saturating_add(all.allocated.current);
                row.reserved = row.reserved.saturating_add(all.reserved.current);
            }
        }
    }
    devices.into_values().collect()
}

impl DeviceRow {
    pub const TITLES: [&str; 8] = [
        "device",
        "uuid",
        "processes",
        "requested",
        "allocated",
        "reserved",
        "total",
        "share",
    ];

    pub fn texts(&self) -> Vec<String> {
        let total = self.total_memory.filter(|total| *total > 0);
        let share = total.map(|total| self.reserved as f64 / total as f64);
        vec![
            printable(self.name.as_deref().unwrap_or("device"), 30),
            self.uuid.clone().unwrap_or_else(|| "-".to_owned()),
            self.processes.to_string(),
            size(self.requested),
            size(self.allocated),
            size(self.reserved),
            total.map_or_else(|| "-".to_owned(), size),
            format::percent(share),
        ]
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
