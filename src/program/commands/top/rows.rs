//! The rows of the table of processes: a row for each device of a process. Processes that are not under the library follow.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;

use base::identity::folder_of;
use journal::reader::Device;

use super::devices::{self, Other};
use super::machine::Machine;
use crate::analysis::names::device_uuid;
use crate::analysis::pod::pod;
use crate::analysis::running::FileId;
use crate::analysis::watch::Watched;
use crate::render::format::{ended, printable, size};
use crate::render::table::{Cell, Column};

/// The columns, those at the left the more important. The table can be sorted by each.
pub const COLUMNS: [Column; 15] = [
    Column::number("gpu"),
    Column::number("pid"),
    Column::cut("pod/user", 8),
    Column::cut("job", 8),
    Column::number("live"),
    Column::number("cached"),
    Column::number("nvml"),
    Column::number("failed calls"),
    Column::text("state"),
    Column::cut("command", 15),
    Column::number("reserved"),
    Column::number("limit"),
    Column::number("host"),
    Column::number("dev"),
    Column::text("strategy"),
];
pub const GPU: usize = 0;
pub const PID: usize = 1;
const OWNER: usize = 2;
const JOB: usize = 3;
const NVML: usize = 6;
const STATE: usize = 8;
const COMMAND: usize = 9;
const RESERVED: usize = 10;
const DEVICE: usize = 13;

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

pub fn all(machine: &Machine) -> Vec<Row> {
    let ours = machine
        .processes()
        .flat_map(|(id, watched)| rows_of(machine, id, watched));
    ours.chain(devices::others(machine).into_iter().map(row_of_other))
        .collect()
}

/// Why the live bytes of a process are not known, by process id.
pub fn not_known(machine: &Machine) -> BTreeSet<(u32, String)> {
    let read = machine.processes().filter(|(_, watched)| watched.is_read);
    let why = |watched: &Watched| {
        let devices = watched.devices().into_iter();
        let why = devices.filter_map(|(device, _)| watched.held(device).not_known).next();
        why.map(|why| (watched.pid, why))
    };
    read.filter_map(|(_, watched)| why(watched)).collect()
}

fn row_of_other(other: Other) -> Row {
    let mut cells = vec![Cell::text("-"); COLUMNS.len()];
    cells[GPU] = gpu(other.number, Some(&other.uuid));
    let user = user_of(other.pid).filter(|_| other.is_visible);
    cells[OWNER] = Cell::text(user.unwrap_or("-".to_owned()));
    cells[COMMAND] = Cell::text(short(other.command.as_deref().unwrap_or("-")));
    cells[PID] = whole(Some(other.pid));
    cells[JOB] = Cell::text(printable(other.job.as_deref().unwrap_or("-"), 24));
    cells[NVML] = Cell::bytes(other.bytes);
    cells[STATE] = Cell::text(match (other.is_visible, other.has_library) {
        (false, _) => "host's pid",
        (true, true) => "no journal",
        (true, false) => "other",
    });
    Row {
        id: (0, u64::from(other.pid)),
        pid: other.pid,
        device: other.number.and_then(|number| number.try_into().ok()),
        has_failed: false,
        is_read: false,
        cells,
    }
}

fn rows_of(machine: &Machine, id: FileId, watched: &Watched) -> Vec<Row> {
    let host = machine.host(id).id();
    let row = |device: Option<i16>, entry: Option<&Device>| {
        let is_read = watched.is_read;
        let held = device.filter(|_| is_read).map(|device| watched.held(device));
        let figures = device.and_then(|device| watched.figures.devices.get(&device));
        let failures = figures.map_or(0, |figures| figures.counts.failed());
        let uuid = entry.and_then(|entry| device_uuid(&entry.uuid));
        let uuid = uuid.as_deref();
        let nvml = uuid.and_then(|uuid| devices::bytes_of(machine, &host, uuid, watched.pid));
        let number = uuid.and_then(|uuid| devices::seen(machine, &host, uuid)?.number);
        let resident = watched.figures.host.last.filter(|_| is_read);
        let resident = resident.map(|last| last.memory.resident);
        let owner = pod(watched.header()).map(|pod| printable(&pod, 200));
        let cells = vec![
            gpu(number, uuid),
            whole(Some(watched.pid)),
            Cell::text(owner.or_else(|| user_of(watched.pid)).unwrap_or("-".to_owned())),
            Cell::text(printable(&watched.title(), 24)),
            match held.as_ref().map(|held| (held.live, held.live_at_most)) {
                None => Cell::bytes(None),
                Some((None, Some(most))) => {
                    Cell::number(Some(most as f64), |most| format!("at most {}", size(most as u64)))
                }
                Some((live, _)) => Cell::known(live),
            },
            held.as_ref().map_or(Cell::bytes(None), |held| Cell::known(held.cached)),
            Cell::bytes(nvml),
            Cell::count(is_read.then_some(failures)),
            Cell::text(state(watched)),
            Cell::text(short(&watched.header().command_line.join(" "))),
            Cell::bytes(held.map(|held| held.reserved)),
            Cell::bytes(entry.and_then(|entry| entry.limit)),
            Cell::bytes(resident),
            whole(device),
            Cell::text(printable(&watched.header().strategy, 16)),
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
    match watched.devices() {
        devices if devices.is_empty() => vec![row(None, None)],
        devices => devices
            .into_iter()
            .map(|(ordinal, entry)| row(Some(ordinal), entry))
            .collect(),
    }
}

fn gpu(number: Option<u32>, uuid: Option<&str>) -> Cell {
    Cell {
        text: devices::label(number, uuid),
        number: number.map(f64::from),
    }
}

/// The user of a process, by number if /etc/passwd has no name.
fn user_of(pid: u32) -> Option<String> {
    static NAMES: LazyLock<BTreeMap<u32, String>> = LazyLock::new(|| {
        let text = std::fs::read("/etc/passwd").unwrap_or_default();
        let of_line = |line: &str| {
            let mut parts = line.split(':');
            let name = printable(parts.next()?, 16);
            Some((parts.nth(1)?.parse().ok()?, name))
        };
        String::from_utf8_lossy(&text).lines().filter_map(of_line).collect()
    });
    let user = std::fs::metadata(folder_of(pid)).ok()?.uid();
    Some(NAMES.get(&user).cloned().unwrap_or_else(|| user.to_string()))
}

/// A command without the folders of the program and of its first argument.
fn short(command: &str) -> String {
    let words = printable(command, 400);
    let name = |(place, word): (usize, &str)| match word.rsplit_once('/') {
        Some((_, name)) if place < 2 && !name.is_empty() => name.to_owned(),
        _ => word.to_owned(),
    };
    words.split(' ').enumerate().map(name).collect::<Vec<_>>().join(" ")
}

/// A number that is shown as it is.
fn whole(number: Option<impl Into<f64>>) -> Cell {
    Cell::number(number.map(Into::into), |number| number.to_string())
}

fn state(watched: &Watched) -> String {
    let (done, all) = watched.progress();
    if watched.is_read {
        ended(watched.state())
    } else {
        format!("reading {} %", done.saturating_mul(100) / all.max(1))
    }
}

impl Row {
    pub fn texts(&self) -> Vec<String> {
        self.cells.iter().map(|cell| cell.text.clone()).collect()
    }

    /// Whether a cell has this text, in large or small letters.
    pub fn has(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        self.cells.iter().any(|cell| cell.text.to_lowercase().contains(&text))
    }

    fn bytes(&self) -> f64 {
        let of = |place: usize| self.cells[place].number.unwrap_or(0.0);
        of(NVML).max(of(RESERVED))
    }
}

/// Sorts rows by a column: of most numbers the largest comes first, and rows without a number come last. Rows with equal
/// values are sorted by what they hold.
pub fn sort(rows: &mut [Row], column: usize, reversed: bool) {
    let is_number = COLUMNS[column].is_number;
    let descends = is_number && ![GPU, PID, DEVICE].contains(&column);
    rows.sort_by(|one, other| {
        let (left, right) = (&one.cells[column], &other.cells[column]);
        let least = if descends { f64::NEG_INFINITY } else { f64::INFINITY };
        let number = |cell: &Cell| cell.number.unwrap_or(least);
        let order = if is_number {
            number(left).total_cmp(&number(right))
        } else {
            left.text.cmp(&right.text)
        };
        let order = if descends != reversed { order.reverse() } else { order };
        let place = |row: &Row| (row.pid, row.id, row.device);
        let order = order.then_with(|| other.bytes().total_cmp(&one.bytes()));
        order.then_with(|| place(one).cmp(&place(other)))
    });
}
