//! Compares the ledgers in journals with the devices that the processes use.
//!
//! The ledger of a running process is compared with what NVML reports now, together with all other processes under the
//! library on the same devices. The ledger of a process that has ended is compared with its own last measurement.
//! `reconciliation` does the arithmetic.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::units::size;
use journal::reader::{Header, Journal, State};

use crate::analysis::device_code;
use crate::analysis::device_ledger::DeviceLedger;
use crate::analysis::host::Host;
use crate::analysis::job::{Job, LoadError};
use crate::analysis::names::device_uuid;
use crate::analysis::nvml::{self, Everything, Seen};
use crate::analysis::reconciliation::AsOf;
use crate::analysis::running::{self, file_id};

mod compared;
mod live;

pub use compared::{Device, Process};
use compared::{LayerBook, incomplete};

/// How often NVML is asked at most, if a ledger changes each time meanwhile.
const TRIES: usize = 4;
/// NVML needs seconds for each device if no process keeps the driver loaded.
const FOR_NVML: Duration = Duration::from_secs(60);

/// A journal to compare, and the id of its process if that is known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    pub journal: PathBuf,
    pub pid: Option<u32>,
}

pub type Load<'a> = &'a dyn Fn(&Path) -> Result<Job, LoadError>;

/// A journal whose process runs.
struct Found {
    pid: u32,
    journal: PathBuf,
    uuids: Vec<String>,
}

/// Compares all targets. Returns the devices, and an error for each journal that cannot be read.
pub fn look(targets: &[Target], load: Load) -> (Vec<Device>, Vec<LoadError>) {
    let (mut devices, mut problems, mut now) = (Vec::new(), Vec::new(), Vec::new());
    for target in targets {
        match Journal::open(&target.journal).map_err(LoadError::Open) {
            Ok(journal) if journal.state() == State::Running => now.push((target, journal.header().clone())),
            Ok(_) => match load(&target.journal) {
                Ok(job) => devices.extend(as_of(&job, None, None)),
                Err(error) => problems.push(error),
            },
            // The journal was found through its process, which has ended since.
            Err(error) if target.pid.is_some() && error.is_missing() => {}
            Err(error) => problems.push(error),
        }
    }
    if !now.is_empty() {
        devices.extend(running_now(now, load, &mut problems));
    }
    (devices, problems)
}

fn running_now(targets: Vec<(&Target, Header)>, load: Load, problems: &mut Vec<LoadError>) -> Vec<Device> {
    let everyone = running::all();
    let mut devices = Vec::new();
    let mut alone = |pid, journal: &Path, why: &str| match load(journal) {
        Ok(job) => devices.extend(as_of(&job, pid, Some(why))),
        Err(error) => problems.push(error),
    };
    let mut hosts: Vec<(Host, Vec<Found>)> = Vec::new();
    for (Target { journal, pid }, header) in targets {
        let found = everyone
            .iter()
            .find(|running| file_id(&running.journal).is_some_and(|id| file_id(journal) == Some(id)));
        let Some(pid) = pid.or(found.map(|running| running.pid)) else {
            let why = "its process cannot be found (another pid namespace, or no permission)";
            alone(None, journal, why);
            continue;
        };
        let found = Found {
            pid,
            journal: journal.clone(),
            uuids: header
                .devices
                .iter()
                .filter_map(|device| device_uuid(&device.uuid))
                .collect(),
        };
        match Host::of(pid) {
            Host::Closed(closed) => alone(Some(pid), journal, &closed.why),
            host => match hosts.iter_mut().find(|(known, _)| known.is(&host)) {
                Some((_, ours)) => ours.push(found),
                None => hosts.push((host, vec![found])),
            },
        }
    }
    for (host, ours) in hosts {
        let is_ours = |pid| ours.iter().any(|found| found.pid == pid);
        let others = everyone
            .iter()
            .filter(|running| !is_ours(running.pid) && Host::of(running.pid).is(&host))
            .map(|running| (running.pid, running.journal.as_path()));
        let members: Vec<(u32, &Path)> = ours
            .iter()
            .map(|found| (found.pid, found.journal.as_path()))
            .chain(others)
            .collect();
        devices.extend(on_host(&host, &ours, &members, load));
    }
    devices
}

/// Compares the devices that the processes `ours` use on one host. `members` also has the other processes under the
/// library there.
fn on_host(host: &Host, ours: &[Found], members: &[(u32, &Path)], load: Load) -> Vec<Device> {
    let mut uuids: Vec<String> = ours.iter().flat_map(|found| found.uuids.clone()).collect();
    uuids.sort();
    uuids.dedup();
    let read = || -> Vec<(u32, Job)> {
        let jobs = members.iter().filter_map(|(pid, path)| Some((*pid, load(path).ok()?)));
        jobs.collect()
    };
    let (jobs, answer, settled) = read_while_unchanged(read, || nvml::ask(host, &uuids, FOR_NVML));
    let (jobs, ended): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|(_, job)| job.state == State::Running);
    let is_ours = |pid: u32| ours.iter().any(|found| found.pid == pid);
    let mut devices = Vec::new();
    for (_, job) in ended.iter().filter(|(pid, _)| is_ours(*pid)) {
        devices.extend(as_of(job, None, None));
    }
    // The devices of the processes `ours`, with the last measurement of each process. `why` says why NVML's present
    // figures are missing. If `uuid` is given, only this device is returned.
    let apart = |why: &str, uuid: Option<&str>| -> Vec<Device> {
        let asked = jobs.iter().filter(|(pid, _)| is_ours(*pid));
        let each = asked.flat_map(|(pid, job)| as_of(job, Some(*pid), Some(why)));
        each.filter(|device| uuid.is_none() || device.uuid.as_deref() == uuid)
            .collect()
    };
    let seen = match answer {
        // If all processes `ours` have ended meanwhile, `devices` already has their last measurements, and NVML's
        // figures are not needed.
        Ok(seen) if jobs.iter().any(|(pid, _)| is_ours(*pid)) => seen,
        Ok(_) => return devices,
        Err(why) => {
            devices.extend(apart(&why.to_string(), None));
            return devices;
        }
    };
    // Also those where a process has a context alone.
    let with_context = |seen: &&Seen| {
        let listed = seen.reading.iter().flat_map(|reading| &reading.processes).flatten();
        listed.clone().any(|one| is_ours(one.pid))
    };
    let more = seen.iter().filter(with_context).map(|seen| seen.uuid.clone());
    let uuids: BTreeSet<String> = uuids.into_iter().chain(more).collect();
    for uuid in uuids {
        match nvml::reading_of(&seen, &uuid) {
            Ok(reading) => {
                let name = seen.iter().find(|seen| seen.uuid == uuid).map(|seen| seen.name.clone());
                let mut device = live::device(uuid, name.unwrap_or_default(), reading, &jobs);
                if !settled {
                    let note =
                        "memory was allocated or freed during the comparison: the figures are of different moments";
                    device.notes.push(note.into());
                }
                devices.push(device);
            }
            Err(why) => devices.extend(apart(&why.to_string(), Some(&uuid))),
        }
    }
    devices
}

/// Reads the ledgers before and after asking NVML, and repeats until no ledger changed in between. After `TRIES`
/// attempts with changes, returns the figures of the last attempt and false.
fn read_while_unchanged(
    read: impl Fn() -> Vec<(u32, Job)>,
    ask: impl Fn() -> Everything,
) -> (Vec<(u32, Job)>, Everything, bool) {
    let (mut jobs, mut tries) = (read(), 0);
    loop {
        let (answer, after) = (ask(), read());
        let settled = answer.is_err() || reserved_bytes(&jobs) == reserved_bytes(&after);
        (jobs, tries) = (after, tries + 1);
        if settled || tries == TRIES {
            return (jobs, answer, settled);
        }
    }
}

/// For each ledger: process, whether the process runs, device, and reserved bytes. A change shows that memory was
/// obtained or given back. Blocks that a policy hands out of reserved memory change nothing here.
fn reserved_bytes(jobs: &[(u32, Job)]) -> Vec<(u32, bool, i16, u64)> {
    let each = |(pid, job): &(u32, Job)| {
        let runs = job.state == State::Running;
        let of = |(&ordinal, ledger): (&i16, &DeviceLedger)| (*pid, runs, ordinal, ledger.all.reserved.current);
        job.ledger.devices.iter().map(of).collect::<Vec<_>>()
    };
    jobs.iter().flat_map(each).collect()
}

/// The devices of one journal at the time of its last measurement. `why` says why a running process is not compared
/// with what NVML reports now.
fn as_of(job: &Job, pid: Option<u32>, why: Option<&str>) -> Vec<Device> {
    let empty = DeviceLedger::default();
    let mut devices = Vec::new();
    for (ordinal, entry, ledger) in job.devices() {
        let ledger = ledger.unwrap_or(&empty);
        let code = || pid.map_or(0, device_code::mapped_by);
        let mut process = Process {
            pid: pid.unwrap_or(job.header.pid),
            job: job.title(),
            balance: ledger.balance(),
            ..Process::default()
        };
        let mut device = Device {
            uuid: entry.and_then(|entry| device_uuid(&entry.uuid)),
            name: entry.map_or_else(|| format!("device {ordinal}"), |entry| entry.name.clone()),
            total: entry.map_or(0, |entry| entry.total_memory),
            at: Some(job.header.wall_start_ns.saturating_add(job.duration_ns)),
            ended_well: job.state == State::Exited(0),
            lost: job.lost.saturating_add(job.damaged),
            notes: why
                .map(str::to_owned)
                .into_iter()
                .chain(incomplete(process.pid, job))
                .collect(),
            ..Device::default()
        };
        match AsOf::last_measured(ledger, code) {
            Some(as_of) => {
                device.compared = true;
                device.at = Some(job.header.wall_start_ns.saturating_add(as_of.measured.time_ns));
                device.other_processes = as_of.other_processes;
                device.unknown = as_of.differences.unknown;
                device.notes.extend(ledger.measurements.given_back());
                device.newer = ledger.since_measured.saturating_sub(as_of.measured.reserved);
                if device.ended_well && device.newer > 0 {
                    let newer = size(device.newer);
                    let ended =
                        format!("{newer} were obtained after the last measurement; the process ended well after it");
                    device.notes.push(ended);
                }
                if as_of.measured.nvml.is_none() {
                    let why =
                        "NVML did not report this process's bytes: those of other processes are part of the unknown";
                    device.notes.push(why.into());
                }
                process.layer = LayerBook::from_measurements(job, Some(ledger));
                device
                    .notes
                    .extend(process.layer.as_ref().map(|book| book.words(process.pid)));
                process.balance = as_of.balance;
                process.nvml_used = as_of.measured.nvml;
                process.driver = as_of.measured.driver;
                process.context = as_of.context;
                process.differences = as_of.differences;
            }
            None if ledger.all.count == 0 => device.notes.push(
                "the job allocated nothing here, but it has or had a context, whose size is not known: it was not measured"
                    .into(),
            ),
            None => device
                .notes
                .push("nothing to compare with: no measurement in the journal".into()),
        }
        let balance = &process.balance;
        process.held = job.caches.held(ordinal, balance.allocated, balance.recorded, None);
        device.processes.push(process);
        devices.push(device);
    }
    devices
}
