//! The rows of the table of devices, and the processes on the devices that are not under the library.
//!
//! A device is known by its host and its UUID. So processes of one host that number the device differently are added up.
//! Simulated GPUs of separate runs have the same UUIDs, and they stay apart.

use std::collections::BTreeMap;
use std::fs;

use base::identity::{folder_of, may_use_a_device};
use base::process::job_name_of_process;
use journal::reader::State;
use serde::Serialize;

use super::machine::Machine;
use crate::analysis::figures::positive;
use crate::analysis::host::HostId;
use crate::analysis::names::device_uuid;
use crate::analysis::nvml::{Listed, Seen};
use crate::analysis::running;
use crate::render::format::printable;
use crate::render::table::{Cell, Column};

pub const COLUMNS: [Column; 10] = [
    Column::cut("gpu", 20),
    Column::number("live"),
    Column::number("cached"),
    Column::number("others"),
    Column::number("free"),
    Column::number("busy"),
    Column::number("total"),
    Column::number("processes"),
    Column::number("reserved"),
    Column::text("uuid"),
];

/// A device, with the sums of all running processes that use it, and with what NVML says of it.
#[derive(Default, Serialize)]
pub struct DeviceRow {
    pub uuid: Option<String>,
    pub name: Option<String>,
    /// The name of a simulated GPU (`Host::name`).
    pub simulator: Option<String>,
    /// NVML's number of the device.
    #[serde(rename = "nvml_number")]
    pub number: Option<u32>,
    pub total_memory: Option<u64>,
    pub requested: u64,
    pub allocated: u64,
    pub reserved: u64,
    /// `None` if it is not known of a process (`Held`).
    pub live: Option<u64>,
    pub cached: Option<u64>,
    /// Processes under the library.
    pub processes: u64,
    /// Bytes in use by all processes, and free bytes, as NVML says.
    pub used: Option<u64>,
    pub free: Option<u64>,
    /// Bytes in use by processes that are not shown with what they hold. `None` if NVML does not say it of one that is.
    pub others: Option<u64>,
    /// Percent of the time in which a kernel ran.
    pub busy_percent: Option<u32>,
}

/// What identifies a device of a host: its UUID, or the name of its machine and its number if it has none.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum DeviceId {
    Uuid(String),
    Number(String, i16),
}

pub fn devices(machine: &Machine) -> Vec<DeviceRow> {
    let mut devices: BTreeMap<(HostId, DeviceId), DeviceRow> = BTreeMap::new();
    for (id, watched) in machine.processes() {
        // The memory of an ended process is free again. Figures are left out until the journal has been read to
        // the end.
        if watched.state() != State::Running || !watched.is_read {
            continue;
        }
        let host = machine.host(id);
        for (ordinal, entry) in watched.devices() {
            let uuid = entry.and_then(|entry| device_uuid(&entry.uuid));
            let device = match &uuid {
                Some(uuid) => DeviceId::Uuid(uuid.clone()),
                None => DeviceId::Number(watched.header().host.clone(), ordinal),
            };
            let row = devices.entry((host.id(), device)).or_insert_with(|| DeviceRow {
                uuid,
                name: entry.map(|entry| entry.name.clone()),
                simulator: host.name(),
                total_memory: entry.map(|entry| entry.total_memory),
                ..DeviceRow::without_processes()
            });
            row.processes += 1;
            let (held, requested) = (watched.held(ordinal), watched.figures.levels(ordinal).requested);
            row.requested = row.requested.saturating_add(positive(requested));
            row.allocated = row.allocated.saturating_add(held.allocated);
            row.reserved = row.reserved.saturating_add(held.reserved);
            let sum = |all: Option<u64>, more: Option<u64>| Some(all?.saturating_add(more?));
            (row.live, row.cached) = (sum(row.live, held.live), sum(row.cached, held.cached));
        }
    }
    for (host, asked) in machine.asked() {
        for seen in asked.devices.iter().flatten() {
            let id = (host.clone(), DeviceId::Uuid(seen.uuid.clone()));
            // If the arguments name processes, only the devices of these are shown.
            if machine.is_restricted() && !devices.contains_key(&id) {
                continue;
            }
            let row = devices.entry(id).or_insert_with(|| DeviceRow {
                uuid: Some(seen.uuid.clone()),
                name: Some(seen.name.clone()),
                simulator: asked.simulator.clone(),
                ..DeviceRow::without_processes()
            });
            (row.number, row.busy_percent) = (seen.number, seen.busy_percent);
            if let Ok(reading) = &seen.reading {
                (row.used, row.free) = (Some(reading.used), Some(reading.free));
                // One that holds nothing may have no context there, and NVML does not list it.
                let bytes = |(pid, holds): (u32, bool)| match bytes_of(machine, host, &seen.uuid, pid) {
                    None if !holds => Some(0),
                    bytes => bytes,
                };
                let ours: Option<u64> = members(machine, host, &seen.uuid).into_iter().map(bytes).sum();
                row.others = ours.map(|ours| reading.used.saturating_sub(ours));
                row.total_memory.get_or_insert(reading.total);
            }
        }
    }
    let mut rows: Vec<((HostId, DeviceId), DeviceRow)> = devices.into_iter().collect();
    rows.sort_by(|(one, first), (other, second)| {
        (&one.0, first.number, &one.1).cmp(&(&other.0, second.number, &other.1))
    });
    rows.into_iter().map(|(_, row)| row).collect()
}

impl DeviceRow {
    fn without_processes() -> DeviceRow {
        let (live, cached) = (Some(0), Some(0));
        DeviceRow {
            live,
            cached,
            ..DeviceRow::default()
        }
    }

    /// `several`: devices of several hosts are shown, so that of a simulated GPU its host is told.
    pub fn texts(&self, several: bool) -> Vec<String> {
        let busy = self.busy_percent.map(f64::from);
        let name = printable(self.name.as_deref().unwrap_or("device"), 30);
        let name = name.strip_prefix("NVIDIA ").unwrap_or(&name);
        let simulator = self.simulator.as_ref().filter(|_| several);
        let simulator = simulator.map_or_else(String::new, |of| format!(" ({})", printable(of, 30)));
        let label = label(self.number, self.uuid.as_deref());
        let cells = [
            Cell::text(format!("{label} {name}{simulator}")),
            Cell::known(self.live),
            Cell::known(self.cached),
            Cell::bytes(self.others),
            Cell::bytes(self.free),
            Cell::number(busy, |percent| format!("{percent} %")),
            Cell::bytes(self.total_memory.filter(|total| *total > 0)),
            Cell::count(Some(self.processes)),
            Cell::bytes(Some(self.reserved)),
            Cell::text(self.uuid.as_deref().unwrap_or("-")),
        ];
        cells.map(|cell| cell.text).into()
    }
}

pub fn texts(devices: &[DeviceRow]) -> Vec<Vec<String>> {
    let several = devices.windows(2).any(|two| two[0].simulator != two[1].simulator);
    devices.iter().map(|device| device.texts(several)).collect()
}

/// What names a device in a row: NVML's number, or else the begin of the UUID.
pub fn label(number: Option<u32>, uuid: Option<&str>) -> String {
    let uuid = uuid.map_or("-", |uuid| uuid.get(..8).unwrap_or(uuid));
    number.map_or_else(|| uuid.to_owned(), |number| number.to_string())
}

pub fn seen<'m>(machine: &'m Machine, host: &HostId, uuid: &str) -> Option<&'m Seen> {
    let (_, asked) = machine.asked().find(|(known, _)| *known == host)?;
    asked.devices.iter().flatten().find(|seen| seen.uuid == uuid)
}

/// Why NVML says nothing of a host whose devices are shown; the first reason, if there are several.
pub fn problem(machine: &Machine) -> Option<String> {
    let used = |host: &HostId| machine.processes().any(|(id, _)| machine.host(id).id() == *host);
    // A machine without NVML and without processes on its GPUs lacks nothing.
    let mut failed = machine.asked().filter(|(host, _)| used(host));
    failed.find_map(|(_, asked)| Some(asked.devices.as_ref().err()?.to_string()))
}

/// The layer that answers in place of NVML for a device that is shown, as a sentence.
pub fn layer(machine: &Machine) -> Option<String> {
    let mut seen = machine.asked().flat_map(|(_, asked)| asked.devices.iter().flatten());
    let layer = seen.find_map(|seen| seen.reading.as_ref().ok()?.layer.as_deref())?;
    Some(format!(
        "NVML's figures of the devices are those of a layer, {}",
        printable(layer, 400)
    ))
}

/// A process that uses a device, and whose journal is not read.
#[derive(Serialize)]
pub struct Other {
    pub pid: u32,
    /// Whether `pid` is one of this pid namespace. Otherwise NVML tells only the pid on the host.
    pub is_visible: bool,
    /// `None` if the process is in another pid namespace, or another user's.
    pub command: Option<String>,
    /// The name of its job, as `why` has it.
    pub job: Option<String>,
    /// Whether the library is loaded there. Its journal is then turned off, or cannot be read by this user.
    pub has_library: bool,
    #[serde(skip)]
    pub number: Option<u32>,
    pub uuid: String,
    pub simulator: Option<String>,
    /// `None` if NVML does not report them.
    #[serde(rename = "nvml_bytes")]
    pub bytes: Option<u64>,
}

/// The processes that NVML lists and that are not under the library, or that write no journal.
pub fn others(machine: &Machine) -> Vec<Other> {
    let mut others = Vec::new();
    for (host, asked) in machine.asked() {
        for seen in asked.devices.iter().flatten() {
            let Some(listed) = listed(seen) else { continue };
            let members = members(machine, host, &seen.uuid);
            if machine.is_restricted() && members.is_empty() {
                continue;
            }
            // If NVML does not list a process that holds memory, its ids are those of another pid namespace: they name
            // nobody here, and one may be that of a process under the library.
            let is_foreign = members
                .iter()
                .any(|(pid, holds)| *holds && !listed.iter().any(|one| one.pid == *pid));
            let is_other = |one: &&Listed| {
                let is_member = members.iter().any(|(pid, _)| *pid == one.pid);
                !is_member && !machine.is_under_the_library(one.pid)
            };
            let here = |pid| Some(pid).filter(|&pid| !is_foreign && may_use_a_device(pid));
            let shown = listed.iter().filter(|one| is_foreign || is_other(one));
            others.extend(shown.map(|one| Other {
                pid: one.pid,
                is_visible: here(one.pid).is_some(),
                command: here(one.pid).and_then(command),
                job: here(one.pid).and_then(job_name_of_process),
                has_library: here(one.pid).is_some_and(running::is_under_the_library),
                number: seen.number,
                uuid: seen.uuid.clone(),
                simulator: asked.simulator.clone(),
                bytes: one.used,
            }));
        }
    }
    others
}

/// The shown processes on a device, and whether they hold memory of it.
fn members(machine: &Machine, host: &HostId, uuid: &str) -> Vec<(u32, bool)> {
    let mut members = Vec::new();
    for (_, watched) in machine.processes().filter(|(id, _)| machine.host(*id).id() == *host) {
        for (ordinal, entry) in watched.devices() {
            if entry.and_then(|entry| device_uuid(&entry.uuid)).as_deref() == Some(uuid) {
                let runs = watched.state() == State::Running;
                members.push((watched.pid, runs && watched.figures.levels(ordinal).reserved > 0));
            }
        }
    }
    members
}

/// What NVML says that a process holds of a device.
pub fn bytes_of(machine: &Machine, host: &HostId, uuid: &str, pid: u32) -> Option<u64> {
    listed(seen(machine, host, uuid)?)?
        .iter()
        .find(|one| one.pid == pid)?
        .used
}

fn listed(seen: &Seen) -> Option<&[Listed]> {
    seen.reading.as_ref().ok()?.processes.as_deref().ok()
}

/// The arguments of a process; if it has none, as a process of the kernel or one that ends, its job's name.
fn command(pid: u32) -> Option<String> {
    let line = fs::read(folder_of(pid).join("cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    let line = Some(line.trim().to_owned()).filter(|line| !line.is_empty());
    line.or_else(|| job_name_of_process(pid))
}
