//! The scene of the last failure: what ledger, driver, NVML and limit said of the device when a request failed.
//!
//! The library writes what it finds before the record of the failure, on the same thread, and begins with a
//! measurement. If NVML was slow, its answer follows the failure, on another thread.

use std::collections::BTreeMap;

use base::api::{Api, Class, is_of_host_guard};
use base::cuda::DriverError;
use base::shortage::{Allowance, Guard, Parts, Reading, Refusal, Shortage};
use journal::format::{Event, FrameworkRequest, MemInfo, ProcessBytes, Record, Teller, shares};

use super::device_ledger::DeviceLedger;
use super::floors::Growth;
use super::measurements::{Measurement, Measurements};
use super::reconciliation::Context;

/// What was measured so long before a failure still holds for it.
const FRESH_NS: u64 = 1_000_000_000;

pub fn is_out_of_memory(result: i32) -> bool {
    result == DriverError::OUT_OF_MEMORY.0
}

/// A job that obtains memory so long after a failure has survived it.
pub(super) const LONG_AFTER_NS: u64 = 10_000_000_000;

/// More threads than this do not measure at once.
const MOST_THREADS: usize = 1024;
/// The most processes of one scene. A hostile journal can name any number, and `serve` keeps what it has read.
const MOST_PROCESSES: usize = 1024;

/// What the ledger has of a device when a request fails, in bytes.
#[derive(Clone, Debug)]
pub struct Around {
    /// Allocated and reserved bytes.
    pub live: u64,
    pub reserved: u64,
    pub largest_cached: u64,
    /// Free bytes in the policies' segments and in those of a framework's cache, and how much of them is in private pools.
    pub in_segments: u64,
    pub private: u64,
    /// Of the free bytes those in segments without a block; `None` if that is not known.
    pub unused: Option<u64>,
    /// Bytes that no allocation strategy serves.
    pub unserved: u64,
    /// What grew steadily up to now: tensors if PyTorch recorded them, or else what is live.
    pub growth: Option<Growth>,
}

impl Around {
    pub(super) fn from_ledger(ledger: &mut DeviceLedger) -> (Around, &Measurements) {
        ledger.floors.settle();
        let around = Around {
            live: ledger.all.allocated.current,
            reserved: ledger.all.reserved.current,
            largest_cached: ledger.free().largest,
            in_segments: ledger.free_bytes(),
            private: ledger.private_bytes(),
            unused: Some(ledger.space.unused() + ledger.framework.unused()),
            unserved: ledger.unserved(),
            growth: ledger.floors.growth(),
        };
        (around, &ledger.measurements)
    }
}

#[derive(Clone, Debug, Default)]
struct Evidence {
    measured: Measurement,
    allowance: Option<Allowance>,
    refusal: Option<Refusal>,
    processes: Vec<ProcessBytes>,
    /// Another thread that told `processes`.
    told_by: Option<u32>,
    framework: Option<FrameworkRequest>,
}

impl Evidence {
    /// What a thread tells begins with this record.
    fn begin(record: &Record) -> Evidence {
        let time_ns = record.time_ns;
        let unmeasured = Measurement {
            time_ns,
            ..Measurement::default()
        };
        Evidence {
            measured: Measurement::of(record).unwrap_or(unmeasured),
            ..Evidence::default()
        }
    }
}

/// A request that failed, and the figures of the moment.
#[derive(Clone, Debug)]
pub struct Scene {
    pub time_ns: u64,
    pub device: i16,
    pub api: u16,
    pub requested: u64,
    pub result: i32,
    pub by_limit: bool,
    pub guard: Option<Guard>,
    pub of_host: bool,
    /// Who NVML and the shared account said were on the device, this process among them.
    pub processes: Vec<ProcessBytes>,
    pub around: Around,
    pub tid: u32,
    pub stack: u32,
    /// How often the thread asked for it, if memory was missing. PyTorch gives its cached memory back after a failure and
    /// repeats the request: that is the same failure, if the job got no memory in between.
    pub tries: u64,
    /// The framework asked again, as PyTorch does after it gave its cache back, and that was served.
    pub served_again: bool,
    /// How many allocations succeeded after it.
    pub went_on: u64,
    /// When the last of these allocations succeeded; 0 if there is none.
    pub last_allocation_ns: u64,
    /// How many allocations the job freed after it.
    pub freed: u64,
    evidence: Evidence,
    /// The context of this process, by what was measured before.
    context: u64,
}

/// Reads the scenes of a job, and keeps the last.
#[derive(Default)]
pub struct Scenes {
    /// What each thread measured last, by device.
    measured: BTreeMap<(i16, u32), Evidence>,
    last: Option<Scene>,
    /// The last for lack of memory, if `last` is another failure.
    last_out_of_memory: Option<Scene>,
    /// The requests that failed for lack of memory, each counted once.
    pub out_of_memory: u64,
}

impl Scenes {
    /// `around` tells what is known of the record's device before the record; it is asked only at a failure. Returns
    /// whether the record is a failure that the last scene is now about.
    pub fn apply<'a>(&mut self, record: &Record, around: impl FnOnce() -> (Around, &'a Measurements)) -> bool {
        let place = (record.device, record.tid);
        match record.event {
            Event::Measured { .. } => self.keep(place, Evidence::begin(record)),
            Event::Limit(allowance) => {
                // Of many refusals only some are measured, and all have the figures of the limit.
                let known = self.measured.remove(&place);
                let mut evidence = known.unwrap_or_else(|| Evidence::begin(record));
                evidence.allowance = Some(allowance);
                self.keep(place, evidence);
            }
            Event::Refused(refusal) => {
                if let Some(evidence) = self.measured.get_mut(&place) {
                    evidence.refusal = Some(refusal);
                }
            }
            Event::FrameworkRequest(request) => {
                // An imported trace has no measurement before it.
                let mut evidence = self.measured.remove(&place).unwrap_or_else(|| Evidence::begin(record));
                evidence.framework = Some(request);
                self.keep(place, evidence);
            }
            Event::Process(process) => match waiting_evidence(&mut self.measured, self.last.as_ref(), record) {
                Some(evidence) => add(&mut evidence.processes, process),
                None => {
                    if let Some(last) = self.last.as_mut().filter(|last| last.device == record.device) {
                        add(&mut last.processes, process);
                    }
                }
            },
            Event::AllocFailed {
                class,
                requested,
                result,
                over_limit,
                guard,
            } if is_out_of_memory(result) || DriverError(result).is_of_driver() => {
                let of_host = matches!(class.known(), Some(Class::Host | Class::HostRegistered));
                self.failed(record, around(), requested, result, [over_limit, of_host], guard);
                return true;
            }
            // A free that fails with the error of a call before it tells nothing new.
            Event::FreeFailed { segment, result, .. }
                if DriverError(result).is_of_driver()
                    && self.last.as_ref().is_none_or(|last| last.result != result) =>
            {
                self.failed(record, around(), segment.unwrap_or(0), result, [false; 2], None);
                return true;
            }
            _ => {}
        }
        false
    }

    fn failed(
        &mut self,
        record: &Record,
        (around, measurements): (Around, &Measurements),
        requested: u64,
        result: i32,
        [by_limit, of_host]: [bool; 2],
        guard: Option<Guard>,
    ) {
        let fresh = |evidence: &Evidence| record.time_ns.saturating_sub(evidence.measured.time_ns) <= FRESH_NS;
        let mut evidence = self
            .measured
            .remove(&(record.device, record.tid))
            .filter(fresh)
            .unwrap_or_default();
        if evidence.measured.driver.is_none()
            && let Some((measured, _)) = measurements.last().filter(|(last, _)| last.driver.is_some())
        {
            evidence.measured = *measured;
        }
        let context = Context::from_measurements(measurements, None, None).map_or(0, |context| context.bytes);
        let mut scene = Scene {
            time_ns: record.time_ns,
            device: record.device,
            api: record.api.number(),
            requested,
            result,
            by_limit,
            guard,
            of_host,
            processes: std::mem::take(&mut evidence.processes),
            around,
            tid: record.tid,
            stack: record.stack,
            tries: 1,
            served_again: false,
            went_on: 0,
            last_allocation_ns: 0,
            freed: 0,
            context,
            evidence,
        };
        match &self.last {
            Some(last) if last.is_repeated_by(&scene) => scene.tries += last.tries,
            _ => self.out_of_memory += u64::from(scene.lacked_memory()),
        }
        let before = self.last.replace(scene).filter(Scene::lacked_memory);
        self.last_out_of_memory = before.or(self.last_out_of_memory.take());
    }

    fn keep(&mut self, place: (i16, u32), evidence: Evidence) {
        if self.measured.len() >= MOST_THREADS {
            self.measured.clear();
        }
        self.measured.insert(place, evidence);
    }

    /// A request for `bytes` of the driver was served.
    pub(super) fn served(&mut self, record: &Record, bytes: u64) {
        if let Some(last) = &mut self.last {
            // Pieces of expandable segments have one size, so one that is served is no answer to another.
            let asks_again = last
                .evidence
                .framework
                .is_some_and(|request| request.asks_again == Some(true));
            let same = (last.device, last.tid, last.requested) == (record.device, record.tid, bytes);
            let is_piece = last.api == Api::cuMemCreate.number();
            last.served_again |= asks_again && same && !is_piece && last.went_on == 0;
        }
    }

    pub(super) fn allocated(&mut self, time_ns: u64) {
        if let Some(last) = &mut self.last {
            last.went_on += 1;
            last.last_allocation_ns = last.last_allocation_ns.max(time_ns);
        }
    }

    pub(super) fn freed(&mut self, record: &Record) {
        if let (Some(last), Event::Free { context_gone, .. }) = (&mut self.last, record.event) {
            // What a context takes with it is no act of the job.
            last.freed += u64::from(!context_gone);
        }
    }

    pub fn last(&self) -> Option<&Scene> {
        self.last.as_ref()
    }

    /// The last, if memory was missing.
    pub fn last_out_of_memory(&self) -> Option<&Scene> {
        self.last()
            .filter(|last| last.lacked_memory())
            .or(self.last_out_of_memory.as_ref())
    }
}

/// What a thread measured for a failure that is not recorded yet, and that a record of a process belongs to. NVML's answer
/// comes on another thread if it was slow.
fn waiting_evidence<'a>(
    measured: &'a mut BTreeMap<(i16, u32), Evidence>,
    last: Option<&Scene>,
    record: &Record,
) -> Option<&'a mut Evidence> {
    let place = (record.device, record.tid);
    if measured.contains_key(&place) {
        return measured.get_mut(&place);
    }
    let last = last.filter(|last| last.device == record.device);
    let waits = |evidence: &Evidence| {
        last.is_none_or(|last| evidence.measured.time_ns > last.time_ns)
            && record.time_ns.saturating_sub(evidence.measured.time_ns) <= FRESH_NS
            && match evidence.told_by {
                Some(thread) => thread == record.tid,
                None => evidence.processes.is_empty(),
            }
    };
    let of_device = measured.range_mut((record.device, 0)..=(record.device, u32::MAX));
    let waiting = of_device
        .map(|(_, evidence)| evidence)
        .filter(|evidence| waits(evidence));
    let evidence = waiting.max_by_key(|evidence| evidence.measured.time_ns)?;
    evidence.told_by = Some(record.tid);
    Some(evidence)
}

fn add(processes: &mut Vec<ProcessBytes>, process: ProcessBytes) {
    if processes.len() < MOST_PROCESSES {
        processes.push(process);
    }
}

impl Scene {
    /// Whether memory was missing, and not a call of the driver that failed for another reason.
    pub fn lacked_memory(&self) -> bool {
        is_out_of_memory(self.result)
    }

    fn is_repeated_by(&self, next: &Scene) -> bool {
        let what = |scene: &Scene| (scene.result, scene.api, scene.device, scene.tid, scene.requested);
        self.went_on == 0 && self.lacked_memory() && what(self) == what(next)
    }

    /// Whether the job still obtained memory so long after it that its end has another cause. A job that dies of the
    /// failure may obtain some while it cleans up, for example for a last checkpoint.
    pub fn was_survived(&self) -> bool {
        self.last_allocation_ns.saturating_sub(self.time_ns) > LONG_AFTER_NS
    }

    pub fn is_of_host_guard(&self) -> bool {
        is_of_host_guard(self.api)
    }

    /// Who refused the request besides the library.
    pub fn refusal(&self) -> Option<Refusal> {
        self.evidence
            .refusal
            .filter(|_| !self.by_limit && self.guard.is_none() && !self.of_host)
    }

    /// What the framework asked for, such as a tensor; `None` if that is not known, or if no framework asked.
    pub fn framework_asked(&self) -> Option<u64> {
        self.evidence.framework?.requested
    }

    /// What the next layer showed of the device.
    pub fn shown(&self) -> Option<MemInfo> {
        self.evidence.measured.driver
    }

    /// The shortage that the process `pid` met.
    pub fn shortage(&self, pid: u32) -> Shortage {
        let shares = shares(&self.processes, pid);
        let (evidence, measured, around) = (&self.evidence, &self.evidence.measured, &self.around);
        // What the process obtained or gave back since the measurement.
        let obtained = around.reserved.saturating_sub(measured.reserved);
        let returned = measured.reserved.saturating_sub(around.reserved);
        let process = measured.nvml.or(shares.map(|(own, _)| own));
        let of_layer = measured.teller == Teller::Layer;
        let parts = measured.driver.map(|MemInfo { total, free }| {
            let mut reading = Reading {
                total,
                free,
                of_layer,
                live: around.live,
                reserved: around.reserved,
                in_segments: around.in_segments,
                process: process.map(|bytes| bytes.saturating_add(obtained).saturating_sub(returned)),
                others: shares.map(|(_, others)| others),
                context: self.context,
            }
            .that_explains(evidence.refusal);
            let free = reading.free.saturating_add(returned).saturating_sub(obtained);
            reading.free = free.min(reading.total);
            Parts::of(reading)
        });
        let told = evidence.framework.and_then(|framework| framework.free);
        let told = told.map(|free| Parts {
            live: around.live,
            cached: around.in_segments,
            free,
            ..Parts::default()
        });
        Shortage {
            requested: self.requested.max(self.framework_asked().unwrap_or(0)),
            result: self.result,
            by_limit: self.by_limit,
            guard: self.guard,
            by_host_guard: self.is_of_host_guard(),
            refusal: evidence.refusal,
            shown: measured.driver.filter(|_| of_layer),
            of_host: self.of_host,
            parts,
            largest_cached: around.largest_cached,
            private: around.private,
            // The driver's pools have no segments.
            unused: around
                .unused
                .filter(|_| parts.or(told).is_some_and(|parts| parts.cached <= around.in_segments)),
            told,
            allowance: evidence.allowance,
            grown: around.growth.map_or(0, |growth| growth.bytes),
            ..Shortage::default()
        }
    }
}
