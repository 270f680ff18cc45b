//! A device with the processes that use it, as reconciliation shows them.

use crate::analysis::job::Job;
use crate::analysis::measurements::Balance;
use crate::analysis::nvml::Reading;
use crate::analysis::reconciliation::{Context, Differences};

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
    pub balance: Balance,
    pub nvml_used: Option<u64>,
    /// Total and free, as the layer below answered last.
    pub driver: Option<(u64, u64)>,
    pub context: Option<Context>,
    pub differences: Differences,
}

impl Process {
    pub(super) fn new(pid: u32, job: &Job, balance: Balance) -> Self {
        Self {
            pid,
            job: job.title(),
            balance,
            nvml_used: None,
            driver: None,
            context: None,
            differences: Differences::default(),
        }
    }
}

/// What has to be known of a journal that is not whole.
pub(super) fn incomplete(pid: u32, job: &Job) -> Option<String> {
    let lost = job.lost;
    (lost > 0).then(|| format!("{lost} events of process {pid} were lost: its ledger here is incomplete"))
}
