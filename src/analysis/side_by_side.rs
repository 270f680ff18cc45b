//! Journals beside the devices that they tell of: every running process of a device under the library together with what
//! NVML says now, and every other journal as of its last measurement. The arithmetic is `reconciliation`'s.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use vramshim::journal::reader::State;

use super::account::DeviceAccount;
use super::device_code;
use super::host::Host;
use super::job::{Job, LoadError, uuid};
use super::measured::Ledger;
use super::nvml::{self, Reading};
use super::reconciliation::{AsOf, Context, Differences};
use super::running::{self, Running};

mod live;

/// How often a moment is looked for at which no ledger moves while NVML is asked.
const TRIES: usize = 4;

/// A journal that is to be reconciled, and its process where that is known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    pub journal: PathBuf,
    pub pid: Option<u32>,
}

/// One device at one moment.
pub struct Device {
    pub uuid: Option<String>,
    pub name: String,
    pub total: u64,
    /// Nanoseconds after 1970 of a measurement; `None` is now.
    pub at: Option<u64>,
    pub nvml: Option<Reading>,
    pub processes: Vec<Process>,
    /// `None` where it cannot be told from the unknown.
    pub other_processes: Option<u64>,
    /// What nothing explains, that of the processes among it.
    pub unknown: i64,
    /// Whether there was anything to compare the ledger with.
    pub compared: bool,
    pub notes: Vec<String>,
}

impl Device {
    /// The largest difference that has no name, of the device or of one of its processes.
    pub fn worst(&self) -> u64 {
        let processes = self.processes.iter().map(|process| process.differences.unknown);
        let all = processes.chain([self.unknown]);
        all.map(i64::unsigned_abs).max().unwrap_or(0)
    }
}

/// One process's part of a device.
pub struct Process {
    pub pid: u32,
    pub job: String,
    pub ledger: Ledger,
    pub nvml_used: Option<u64>,
    /// Total and free, as the layer below answered last.
    pub driver: Option<(u64, u64)>,
    pub context: Option<Context>,
    pub differences: Differences,
}

impl Process {
    fn new(pid: u32, job: &Job, ledger: Ledger) -> Self {
        Self {
            pid,
            job: job.title(),
            ledger,
            nvml_used: None,
            driver: None,
            context: None,
            differences: Differences::default(),
        }
    }
}

/// How a journal is read.
pub type Load<'a> = &'a dyn Fn(&Path) -> Result<Job, LoadError>;

/// One look at everything: the devices, whether any process runs, and what could not be read.
pub fn look(targets: &[Target], load: Load) -> (Vec<Device>, bool, Vec<LoadError>) {
    let (mut devices, mut problems, mut now) = (Vec::new(), Vec::new(), Vec::new());
    for target in targets {
        match load(&target.journal) {
            Ok(job) if job.state == State::Running => now.push((target.pid, job)),
            Ok(job) => devices.extend(as_of(&job, None, None)),
            Err(error) => problems.push(error),
        }
    }
    let running = !now.is_empty();
    if running {
        devices.extend(running_now(now, load));
    }
    (devices, running, problems)
}

fn running_now(mut targets: Vec<(Option<u32>, Job)>, load: Load) -> Vec<Device> {
    let everyone: Vec<(Running, Host)> = running::all()
        .into_iter()
        .map(|running| {
            let host = Host::of(running.pid);
            (running, host)
        })
        .collect();
    for (pid, job) in &mut targets {
        let found = everyone
            .iter()
            .find(|(running, _)| same_file(&running.journal, &job.path));
        *pid = pid.or(found.map(|(running, _)| running.pid));
    }
    let mut devices = Vec::new();
    while let Some((pid, job)) = targets.pop() {
        let Some(pid) = pid else {
            let why = "its process cannot be found here (another pid namespace, or no permission)";
            devices.extend(as_of(&job, None, Some(why)));
            continue;
        };
        let host = Host::of(pid);
        if let Host::Closed(reason) = &host {
            devices.extend(as_of(&job, Some(pid), Some(reason)));
            continue;
        }
        let others = targets.extract_if(.., |(pid, _)| pid.is_some_and(|pid| Host::of(pid).is(&host)));
        let mut ours = vec![(pid, job)];
        ours.extend(others.filter_map(|(pid, job)| Some((pid?, job))));
        let members = everyone.iter().filter(|(_, theirs)| theirs.is(&host));
        let mut members: Vec<(u32, PathBuf)> = members
            .map(|(running, _)| (running.pid, running.journal.clone()))
            .collect();
        for (pid, job) in &ours {
            if !members.iter().any(|(member, _)| member == pid) {
                members.push((*pid, job.path.clone()));
            }
        }
        devices.extend(on_host(&host, &ours, &members, load));
    }
    devices
}

/// The devices of one host that the processes asked about use, with every process on them.
fn on_host(host: &Host, ours: &[(u32, Job)], members: &[(u32, PathBuf)], load: Load) -> Vec<Device> {
    let all = ours.iter().flat_map(|(_, job)| &job.header.devices);
    let mut uuids: Vec<String> = all.filter_map(|device| uuid(&device.uuid)).collect();
    uuids.sort();
    uuids.dedup();
    let read = || -> Vec<(u32, Job)> {
        let jobs = members.iter().filter_map(|(pid, path)| Some((*pid, load(path).ok()?)));
        jobs.collect()
    };
    let mut jobs = read();
    let mut answer = nvml::ask(host, &uuids);
    let mut settled = false;
    for _ in 0..TRIES {
        let after = read();
        settled = answer.is_err() || held(&jobs) == held(&after);
        jobs = after;
        if settled {
            break;
        }
        answer = nvml::ask(host, &uuids);
    }
    let readings = match answer {
        Ok(readings) => readings,
        Err(reason) => return each_as_of(ours, &reason, |_| true),
    };
    let mut devices = Vec::new();
    for (uuid, reading) in uuids.into_iter().zip(readings) {
        match reading {
            Ok(reading) => {
                let mut device = live::device(uuid, reading, &jobs);
                if !settled {
                    device.notes.push(
                        "memory came and went while it was looked at: the differences may be of different moments"
                            .into(),
                    );
                }
                devices.push(device);
            }
            Err(reason) => {
                devices.extend(each_as_of(ours, &reason, |of| of == Some(uuid.as_str())));
            }
        }
    }
    devices
}

/// What every ledger has of every device, to see whether one moved.
fn held(jobs: &[(u32, Job)]) -> Vec<(u32, i16, u64, u64)> {
    let each = |(pid, job): &(u32, Job)| {
        let of = |(&ordinal, account): (&i16, &DeviceAccount)| {
            (
                *pid,
                ordinal,
                account.all.reserved.current,
                account.all.requested.current,
            )
        };
        job.account.devices.iter().map(of).collect::<Vec<_>>()
    };
    jobs.iter().flat_map(each).collect()
}

fn each_as_of(jobs: &[(u32, Job)], why: &str, wanted: impl Fn(Option<&str>) -> bool) -> Vec<Device> {
    let each = jobs.iter().flat_map(|(pid, job)| as_of(job, Some(*pid), Some(why)));
    each.filter(|device| wanted(device.uuid.as_deref())).collect()
}

/// The devices of one journal as of its last measurement; `why` that is not now, for a process that runs.
fn as_of(job: &Job, pid: Option<u32>, why: Option<&str>) -> Vec<Device> {
    let nothing = DeviceAccount::default();
    let mut devices = Vec::new();
    for (ordinal, told, account) in job.devices() {
        let account = account.unwrap_or(&nothing);
        let code = || pid.map_or(0, device_code::mapped_by);
        let mut process = Process::new(pid.unwrap_or(job.header.pid), job, Ledger::of(account));
        let mut device = Device {
            uuid: told.and_then(|told| uuid(&told.uuid)),
            name: told.map_or_else(|| format!("device {ordinal}"), |told| told.name.clone()),
            total: told.map_or(0, |told| told.total_memory),
            at: Some(job.header.wall_start_ns.saturating_add(job.duration_ns)),
            nvml: None,
            processes: Vec::new(),
            other_processes: None,
            unknown: 0,
            compared: false,
            notes: why.map(str::to_owned).into_iter().collect(),
        };
        match AsOf::of(account, code) {
            Some(as_of) => {
                device.compared = true;
                device.at = Some(job.header.wall_start_ns.saturating_add(as_of.measured.time_ns));
                device.other_processes = as_of.other_processes;
                device.unknown = as_of.differences.unknown;
                if as_of.other_processes.is_none() {
                    let why = "NVML did not tell this process's bytes: other processes cannot be told from the unknown";
                    device.notes.push(why.into());
                }
                process.ledger = as_of.ledger;
                process.nvml_used = as_of.measured.nvml;
                process.driver = Some((as_of.measured.total, as_of.measured.free));
                process.context = as_of.context;
                process.differences = as_of.differences;
            }
            None => device
                .notes
                .push("nothing to compare with: no measurement in the journal".into()),
        }
        device.processes.push(process);
        devices.push(device);
    }
    devices
}

fn same_file(one: &Path, other: &Path) -> bool {
    let identity = |path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    identity(one).is_some_and(|one| identity(other) == Some(one))
}
