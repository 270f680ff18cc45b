//! A device with the processes that use it, as reconciliation shows them.

use base::text::events_were;
use base::units::size;
use journal::format::MemInfo;

use crate::analysis::device_ledger::DeviceLedger;
use crate::analysis::held::Held;
use crate::analysis::job::Job;
use crate::analysis::measurements::Balance;
use crate::analysis::nvml::{Listed, Reading};
use crate::analysis::reconciliation::{Context, Differences};

#[derive(Default)]
pub struct Device {
    pub uuid: Option<String>,
    pub name: String,
    pub total: u64,
    /// Time of the measurement in nanoseconds after 1970; `None` means now.
    pub at: Option<u64>,
    pub nvml: Option<Reading>,
    pub processes: Vec<Process>,
    /// Used bytes of processes without the library; `None` if these bytes are part of `unknown`.
    pub other_processes: Option<u64>,
    /// These processes, as NVML lists them.
    pub others: Vec<Listed>,
    /// Bytes that nothing explains, including the unknown bytes of `processes`.
    pub unknown: i64,
    /// Bytes that a process obtained after the measurement that it is compared with.
    pub newer: u64,
    /// The process that obtained them ended with exit status 0, and holds nothing any more.
    pub ended_well: bool,
    /// How many events are missing or damaged in a journal that only its own measurement is compared with.
    pub lost: u64,
    /// Whether NVML or the driver gave a figure to compare the ledger with.
    pub compared: bool,
    pub notes: Vec<String>,
}

impl Device {
    /// Those of the `newer` bytes that leave the comparison open.
    pub fn open(&self) -> u64 {
        if self.ended_well { 0 } else { self.newer }
    }

    /// The largest unexplained difference, of the device or of one of its processes.
    pub fn worst(&self) -> u64 {
        let processes = self.processes.iter().map(|process| process.differences.unknown);
        let all = processes.chain([self.unknown]);
        all.map(i64::unsigned_abs).max().unwrap_or(0)
    }
}

/// The part of a device that one process holds.
#[derive(Default)]
pub struct Process {
    pub pid: u32,
    pub job: String,
    pub balance: Balance,
    /// What the process held at the moment of `balance`.
    pub held: Held,
    pub nvml_used: Option<u64>,
    /// The last answer of the next layer.
    pub driver: Option<MemInfo>,
    pub context: Option<Context>,
    pub differences: Differences,
    /// What a layer between library and driver has on its book; `None` without a layer.
    pub layer: Option<LayerBook>,
}

/// The book of a layer as it was when the device was measured last, in bytes.
#[derive(Clone, Debug, serde::Serialize)]
pub struct LayerBook {
    pub path: String,
    /// The used bytes that the layer showed (`cuMemGetInfo`), and the reserved bytes of the ledger at the same moment.
    pub used: u64,
    pub ledger: u64,
    /// By how much `used` grew more than `ledger` since the first measurement; `None` if there was one alone. A layer that
    /// counts contexts, or other processes of a container, has more than the ledger from the beginning.
    pub drift: Option<i64>,
}

impl LayerBook {
    pub fn from_measurements(job: &Job, ledger: Option<&DeviceLedger>) -> Option<LayerBook> {
        let path = job.header.layer()?;
        let measurements = &ledger?.measurements;
        let (first, (last, _)) = (measurements.first?, measurements.last()?);
        Some(LayerBook {
            path: path.to_owned(),
            used: last.used()?,
            ledger: last.reserved,
            drift: (first.time_ns < last.time_ns).then_some(last.outside()?.saturating_sub(first.outside()?)),
        })
    }

    pub fn words(&self, pid: u32) -> String {
        let change = match self.drift {
            None => "it was measured once, so a drift is not known".to_owned(),
            Some(0) => "no drift since the first measurement".to_owned(),
            Some(drift) => {
                let (bytes, less) = (
                    size(drift.unsigned_abs()),
                    "less: it does not count all that the job takes",
                );
                let which = if drift > 0 { "more" } else { less };
                format!("since the first measurement the layer's book grew {bytes} {which}")
            }
        };
        let [used, ledger] = [self.used, self.ledger].map(size);
        format!(
            "process {pid}: {}, a layer, showed {used} in use when it was measured last, and the ledger had {ledger}: {change}",
            self.path
        )
    }
}

/// A note if events are missing in the journal of a process.
pub(super) fn incomplete(pid: u32, job: &Job) -> Option<String> {
    let what = match (job.lost, job.damaged) {
        (0, 0) => return None,
        (lost, 0) => format!("{} lost", events_were(lost)),
        (0, damaged) => format!("{} damaged", events_were(damaged)),
        (lost, damaged) => format!("{} lost and {damaged} damaged", events_were(lost)),
    };
    Some(format!("process {pid}: {what}, so its ledger here is incomplete"))
}
