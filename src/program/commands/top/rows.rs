//! The rows of the table of processes: a row for each device of a process. Processes that are not under the library follow.

use std::collections::BTreeSet;

use journal::reader::Device;

use super::columns::{Cell, Column};
use super::devices::{self, Other};
use super::machine::Machine;
use crate::analysis::names::device_uuid;
use crate::analysis::running::FileId;
use crate::analysis::watch::Watched;
use crate::render::format::{ended, printable, size};

/// The columns. The table can be sorted by each.
pub const COLUMNS: [Column; 12] = [
    Column::number("pid", 0),
    Column::text("job", 10),
    Column::text("strategy", 2),
    Column::number("dev", 11),
    Column::number("live", 0),
    Column::number("cached", 3),
    Column::number("reserved", 0),
    Column::number("limit", 5),
    Column::number("nvml", 7),
    Column::number("failures", 8),
    Column::number("host", 1),
    Column::text("state", 9),
];
pub const PID: usize = 0;
const JOB: usize = 1;
const DEVICE: usize = 3;
pub const RESERVED: usize = 6;
const NVML: usize = 8;
#[cfg(test)]
const FAILURES: usize = 9;
const STATE: usize = 11;

/// One device of a process, or a process that has no device yet.
pub struct Row {
    /// Identifies the process: the file of its journal. No file has the device 0, which stands for a process whose journal
    /// is not read.
    pub id: FileId,
    pub pid: u32,
    pub device: Option<i16>,
    pub has_failed: bool,
    /// Whether the process's journal has been read.
    pub is_read: bool,
    /// In the order of `COLUMNS`.
    cells: Vec<Cell>,
}

/// The rows of all processes.
pub fn all(machine: &Machine) -> Vec<Row> {
    let ours = machine
        .processes()
        .flat_map(|(id, watched)| rows_of(machine, id, watched));
    ours.chain(devices::others(machine).into_iter().map(row_of_other))
        .collect()
}

/// Why the live bytes of a process are not known, by process id.
pub fn not_known(machine: &Machine) -> BTreeSet<(u32, String)> {
    let read = machine.processes().filter(|(_, watched)| watched.is_read());
    let why = |watched: &Watched| {
        let devices = watched.devices().into_iter();
        let why = devices.filter_map(|(device, _)| watched.held(device).not_known).next();
        why.map(|why| (watched.pid, why))
    };
    read.filter_map(|(_, watched)| why(watched)).collect()
}

fn row_of_other(other: Other) -> Row {
    let device = other.number.and_then(|number| number.try_into().ok());
    let mut cells = vec![Cell::text("-"); COLUMNS.len()];
    cells[PID] = whole(Some(other.pid));
    cells[JOB] = Cell::text(printable(other.job.as_deref().unwrap_or("-"), 24));
    cells[DEVICE] = whole(device);
    cells[NVML] = Cell::bytes(other.bytes);
    cells[STATE] = Cell::text(match (other.is_visible, other.has_library) {
        (false, _) => "host pid, not visible here",
        (true, true) => "no journal",
        (true, false) => "other",
    });
    Row {
        id: (0, u64::from(other.pid)),
        pid: other.pid,
        device,
        has_failed: false,
        is_read: false,
        cells,
    }
}

fn rows_of(machine: &Machine, id: FileId, watched: &Watched) -> Vec<Row> {
    let host = machine.host(id).id();
    let row = |device: Option<i16>, entry: Option<&Device>| {
        let is_read = watched.is_read();
        let held = device.filter(|_| is_read).map(|device| watched.held(device));
        let figures = device.and_then(|device| watched.figures.devices.get(&device));
        let failures = figures.map_or(0, |figures| figures.counts.failed());
        let nvml = entry
            .and_then(|entry| device_uuid(&entry.uuid))
            .and_then(|uuid| devices::bytes_of(machine, &host, &uuid, watched.pid));
        let cells = vec![
            whole(Some(watched.pid)),
            Cell::text(printable(&watched.title(), 24)),
            Cell::text(printable(&watched.header().strategy, 16)),
            whole(device),
            match held.as_ref().map(|held| (held.live, held.live_at_most)) {
                None => Cell::bytes(None),
                Some((None, Some(most))) => {
                    Cell::number(Some(most as f64), |most| format!("at most {}", size(most as u64)))
                }
                Some((live, _)) => Cell::known(live),
            },
            held.as_ref().map_or(Cell::bytes(None), |held| Cell::known(held.cached)),
            Cell::bytes(held.map(|held| held.reserved)),
            Cell::bytes(entry.and_then(|entry| entry.limit)),
            Cell::bytes(nvml),
            Cell::count(is_read.then_some(failures)),
            Cell::bytes(
                (watched.figures.host)
                    .last
                    .filter(|_| is_read)
                    .map(|last| last.memory.resident),
            ),
            Cell::text(state(watched)),
        ];
        Row {
            id,
            pid: watched.pid,
            device,
            has_failed: is_read && failures > 0,
            is_read,
            cells,
        }
    };
    let devices = watched.devices();
    if devices.is_empty() {
        return vec![row(None, None)];
    }
    let of_devices = devices.into_iter();
    of_devices.map(|(ordinal, entry)| row(Some(ordinal), entry)).collect()
}

/// A number that is shown as it is.
fn whole(number: Option<impl Into<f64>>) -> Cell {
    Cell::number(number.map(Into::into), |number| number.to_string())
}

fn state(watched: &Watched) -> String {
    let (done, all) = watched.progress();
    if watched.is_read() {
        ended(watched.state())
    } else {
        format!("reading {} %", done.saturating_mul(100) / all.max(1))
    }
}

impl Row {
    pub fn texts(&self) -> Vec<String> {
        self.cells.iter().map(|cell| cell.text.clone()).collect()
    }
}

/// Sorts rows by a column: of most numbers the largest comes first, and rows without a number come last. Rows with equal
/// values are sorted by process and device.
pub fn sort(rows: &mut [Row], column: usize, reversed: bool) {
    let is_number = COLUMNS[column].is_number;
    let descends = is_number && column != PID && column != DEVICE;
    rows.sort_by(|one, other| {
        let (left, right) = (&one.cells[column], &other.cells[column]);
        let number = |cell: &Cell| cell.number.unwrap_or(f64::NEG_INFINITY);
        let order = if is_number {
            number(left).total_cmp(&number(right))
        } else {
            left.text.cmp(&right.text)
        };
        let order = if descends != reversed { order.reverse() } else { order };
        let place = |row: &Row| (row.pid, row.id, row.device);
        order.then_with(|| place(one).cmp(&place(other)))
    });
}

#[cfg(test)]
pub fn sample(number: u32, reserved: Option<u64>) -> Row {
    let mut cells = vec![Cell::text("-"); COLUMNS.len()];
    cells[PID] = whole(Some(4711 + number));
    cells[JOB] = Cell::text(format!("job {number} \u{4e16}\u{754c}"));
    cells[DEVICE] = whole(Some(0));
    cells[RESERVED] = Cell::bytes(reserved);
    cells[FAILURES] = Cell::count(Some(7));
    cells[STATE] = Cell::text("running");
    Row {
        id: (1, u64::from(number)),
        pid: 4711 + number,
        device: Some(0),
        has_failed: false,
        is_read: true,
        cells,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_comes_first_and_what_has_no_number_last() {
        for (column, reversed, expected) in [
            (RESERVED, false, [2, 3, 0, 1]),
            (RESERVED, true, [1, 0, 3, 2]),
            (PID, false, [0, 1, 2, 3]),
            (JOB, true, [3, 2, 1, 0]),
            // All values are equal, so the order is by process.
            (FAILURES, false, [0, 1, 2, 3]),
        ] {
            let reserved = [Some(5), None, Some(70), Some(6)];
            let mut rows: Vec<Row> = (0..)
                .zip(reserved)
                .map(|(number, bytes)| sample(number, bytes))
                .collect();
            sort(&mut rows, column, reversed);
            let order: Vec<u32> = rows.iter().map(|row| row.pid - 4711).collect();
            assert_eq!(order, expected, "{}", COLUMNS[column].title);
        }
    }
}
