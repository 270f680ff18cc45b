//! A trace: a sequence of requests, read from a journal, from RMM's CSV log (plain or gzipped), or from PyTorch's
//! memory snapshot. This file reads journals; `rmm_log` and `snapshot` read the other two.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::api::{Api, Class};
use base::text::{events_were, many, shown};
use base::units::size;
use journal::format::{EXTENSION, Event, Record};
use journal::reader::{Journal, TensorFile};

use super::gathering::{Gathering, Source, Unplayed, choose_device};
use super::requests::{Action, LastUse, Requests, Way};
use super::{rmm_log, snapshot};
use crate::analysis::out_of_memory::is_out_of_memory;
use crate::analysis::tensor_records::{Merged, Tensors};
use crate::import::kind::{Kind, kind_of};

#[derive(Debug)]
pub struct Trace {
    pub source: Source,
    pub requests: Requests,
    /// The largest number of live bytes.
    pub peak_live: u64,
    /// How often a free had no allocation, or an address was allocated twice without a free in between. The former
    /// frees are not played.
    pub unmatched: u64,
    /// How long the job took for the requests; `None` if the trace has no times.
    pub duration_ns: Option<u64>,
    /// The bytes of the job's last request, if it failed for lack of memory and the job got none afterwards. It is the last
    /// allocation in `requests`.
    pub fatal: Option<u64>,
    /// The memory of the job's device; `None` if the trace does not say it.
    pub device_memory: Option<u64>,
    /// Notes for the user about requests that the figures leave out.
    pub notes: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", shown(path))]
pub struct TraceError {
    path: PathBuf,
    problem: String,
    /// The trace is in order, but `--device` does not fit it.
    pub is_of_device: bool,
}

impl Trace {
    /// Reads a trace. The file's name and its first bytes decide the format: a journal, a snapshot, or RMM's log. Of a
    /// journal or snapshot, takes the requests of `device`; without it, of the device that was used most.
    pub fn load(path: &Path, device: Option<i16>) -> Result<Trace, TraceError> {
        Trace::load_with(path, device, &mut |_, _| {})
    }

    /// The same. For a journal `progress` is called from time to time with the bytes read and the bytes to read.
    pub fn load_with(
        path: &Path,
        device: Option<i16>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Trace, TraceError> {
        let unplayed = |problem: Unplayed| {
            let (problem, is_of_device) = match problem {
                Unplayed::Device(problem) => (problem, true),
                Unplayed::Trace(problem) => (problem, false),
            };
            TraceError {
                path: path.to_owned(),
                problem,
                is_of_device,
            }
        };
        let fail = |problem: String| unplayed(problem.into());
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let mut gathering = Gathering::default();
        let mut device_memory = None;
        let kind = kind_of(path).map_err(|problem| fail(problem.to_string()))?;
        // The name of a journal or snapshot decides, too: a damaged one is told of by its reader.
        let kind = if name.ends_with(&format!(".{EXTENSION}")) {
            Kind::Journal
        } else if name.ends_with(".pickle") || name.ends_with(".pkl") {
            Kind::Snapshot
        } else {
            kind
        };
        let source = match kind {
            Kind::Journal => {
                let (source, memory) = journal(path, device, &mut gathering, progress).map_err(unplayed)?;
                device_memory = memory;
                source
            }
            Kind::Snapshot => snapshot::gather(path, device, &mut gathering).map_err(unplayed)?,
            Kind::Other(what) => {
                return Err(fail(format!(
                    "looks like {what}: give a journal (.vraj), a memory snapshot of PyTorch (.pickle) or RMM's log \
                     (.csv, .csv.gz)"
                )));
            }
            Kind::Log | Kind::GzippedLog | Kind::Empty => {
                if device.is_some() {
                    let problem = "is a log, which names no devices: leave --device out".to_owned();
                    return Err(unplayed(Unplayed::Device(problem)));
                }
                rmm_log::gather(path, kind == Kind::GzippedLog, &mut gathering).map_err(fail)?;
                Source::Log
            }
        };
        let duration_ns = gathering.end();
        if gathering.requests.is_empty() {
            let why = "holds no request for linear device memory".to_owned();
            return Err(fail(match gathering.notes.is_empty() {
                true => format!("{why}: give the trace of a job that allocated some"),
                false => format!("{why}; {}", gathering.notes.join("; ")),
            }));
        }
        let Gathering {
            requests,
            peak,
            unmatched,
            fatal,
            notes,
            ..
        } = gathering;
        Ok(Trace {
            source,
            requests,
            peak_live: u64::try_from(peak).unwrap_or(u64::MAX),
            unmatched,
            duration_ns,
            fatal,
            device_memory,
            notes,
        })
    }
}

/// Collects the requests of a journal. If PyTorch's tensors were recorded beside it, they are the requests, and not the
/// segments that PyTorch obtained for them. Also returns the memory of the device, if the journal says it.
fn journal(
    path: &Path,
    device: Option<i16>,
    gathering: &mut Gathering,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Source, Option<u64>), Unplayed> {
    let journal = Journal::open(path).map_err(|problem| {
        // `TraceError` shows the name of the file, so the name is removed here.
        let problem = problem.to_string();
        let of_file = format!("{}: ", shown(path));
        problem.strip_prefix(&of_file).unwrap_or(&problem).to_owned()
    })?;
    let tensors = Tensors::beside(&journal, &|_| ()).unwrap_or_else(|problem| {
        let told = format!("{}: cannot be read: {problem}", shown(&TensorFile::beside(path)));
        gathering.notes.push(told);
        None
    });
    let tensors = tensors.filter(Tensors::has_segments);
    if let Some(tensors) = &tensors {
        gathering
            .notes
            .push("the requests are those for PyTorch's recorded tensors".to_owned());
        gathering.notes.extend(tensors.note());
    }
    let tensors = tensors.as_ref();
    // By device, the requested bytes of linear memory, and the number of records.
    let mut devices: BTreeMap<i16, (u128, usize)> = BTreeMap::new();
    let mut memory = BTreeMap::new();
    // By class, how often the job asked for memory that no strategy serves.
    let mut others: BTreeMap<u8, u64> = BTreeMap::new();
    // The journal is read twice, so that not all of its records are in memory at once.
    let both = journal.size().saturating_mul(2);
    let damaged = each(&journal, tensors, &mut |done| progress(done, both), &mut |record| {
        if is_linear(&record) {
            let (asked, records) = devices.entry(record.device).or_default();
            *records += 1;
            if let Event::Alloc(allocation) = record.event {
                *asked += u128::from(allocation.requested);
            }
            return;
        }
        match record.event {
            Event::Alloc(allocation) => *others.entry(allocation.class.number()).or_default() += 1,
            Event::Measured {
                mem_info: Some(told), ..
            } => {
                memory.insert(record.device, told.total);
            }
            _ => {}
        }
    })?;
    for (class, whose) in [
        (Class::Vmm, "such as PyTorch's expandable_segments"),
        (Class::Async, "such as PyTorch's backend:cudaMallocAsync"),
    ] {
        if let Some(&requests) = others.get(&class.number()) {
            gathering.notes.push(format!(
                "memory of class {} ({whose}) is not played, because no strategy serves it (requests: {requests}); for \
                 PyTorch, give a journal of vramshim run --torch allocator or a memory snapshot",
                class.name(),
            ));
        }
    }
    let mut device_memory = None;
    let mut played = None;
    if !devices.is_empty() {
        let chosen = choose_device("journal", &devices, device, |&(asked, _)| asked, gathering)?;
        let known = journal
            .header()
            .devices
            .iter()
            .find(|device| device.ordinal == i32::from(chosen));
        let total = known.map(|device| device.total_memory).filter(|&total| total > 0);
        let limit = known.and_then(|device| device.limit);
        device_memory = total.or(memory.remove(&chosen)).into_iter().chain(limit).min();
        if limit.is_some() && device_memory == limit {
            gathering.notes.push(format!(
                "the device is as large as the job's limit, {}",
                size(limit.unwrap_or(0))
            ));
        }
        played = Some(chosen);
        gathering.requests.reserve_exact(devices[&chosen].1);
    }
    if journal.lost() > 0 {
        let lost = journal.lost();
        gathering.notes.push(format!(
            "{} lost: figures are of those that are left",
            events_were(lost)
        ));
    }
    if damaged > 0 {
        let told = format!("left out {}", many(damaged, "damaged record"));
        gathering.notes.push(told);
    }
    let mut second = |done| progress(journal.size() + done, both);
    each(&journal, tensors, &mut second, &mut |record| {
        if Some(record.device) != played || !is_linear(&record) {
            return;
        }
        gathering.at(record.time_ns);
        match record.event {
            Event::Alloc(block) => gathering.allocate(block.address, block.requested, way(&record, block.stream)),
            Event::Free { allocation, .. } => {
                let freed_on = stream(allocation.stream);
                gathering.free(allocation.address, |way| match (way, freed_on) {
                    (Way::Driver, _) => LastUse::Awaited,
                    // The library names the stream of a free only if no other stream has used the memory.
                    (Way::Tensor(own), Some(stream)) if own == Some(stream) => LastUse::Stream(stream),
                    (Way::Tensor(_), _) => LastUse::Unknown,
                });
            }
            Event::AllocFailed { requested, .. } => gathering.fail(requested, way(&record, 0)),
            _ => {}
        }
    })?;
    let of_drivers = gathering
        .requests
        .iter()
        .any(|request| matches!(request.action, Action::Allocate { way: Way::Driver, .. }));
    if of_drivers && tensors.is_none() && journal.header().uses("PyTorch") {
        gathering.notes.push(
            "these requests are PyTorch's segments, not its tensors: what its cache wastes is inside them, so no \
             strategy can save it here; run the job with --torch record or --torch allocator, or replay a memory \
             snapshot of PyTorch"
                .to_owned(),
        );
    }
    let source = match tensors {
        Some(tensors) => Source::Snapshot {
            expandable: tensors.are_expandable(),
        },
        None => Source::Journal {
            strategy: journal.header().strategy.clone(),
            environment: journal.header().environment.clone(),
        },
    };
    Ok((source, device_memory))
}

/// Calls `apply` with each record of a journal and each tensor, and from time to time `progress` with the bytes read.
/// Returns the number of damaged records, which are left out.
fn each(
    journal: &Journal,
    tensors: Option<&Tensors>,
    progress: &mut dyn FnMut(u64),
    apply: &mut dyn FnMut(Record),
) -> Result<u64, String> {
    let mut records = Merged::of(journal, tensors).map_err(|problem| problem.to_string())?;
    let mut seen = 0u64;
    while let Some(record) = records.next() {
        apply(record.map_err(|problem| problem.to_string())?);
        seen += 1;
        if seen.is_multiple_of(1 << 16) {
            progress(records.position());
        }
    }
    Ok(records.damaged())
}

/// Whether a record is of a request for linear memory, which strategies serve, or of its free.
fn is_linear(record: &Record) -> bool {
    match record.event {
        Event::Alloc(allocation) | Event::Free { allocation, .. } => allocation.class == Class::Linear.into(),
        // One that failed for another reason would have failed under any strategy.
        Event::AllocFailed {
            class, result, guard, ..
        } => class == Class::Linear.into() && is_out_of_memory(result) && guard.is_none(),
        _ => false,
    }
}

/// The number of a stream in a journal; 0 stands for none, and 255 for several streams.
fn stream(number: u8) -> Option<u64> {
    Some(u64::from(number)).filter(|number| (1..255).contains(number))
}

/// How the job asked for the memory of a record.
fn way(record: &Record, number: u8) -> Way {
    match record.api.known() {
        Some(Api::vramshim_torch_alloc | Api::torch_alloc | Api::rmm_allocate) => Way::Tensor(stream(number)),
        _ => Way::Driver,
    }
}
