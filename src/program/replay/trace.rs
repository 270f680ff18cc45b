//! A trace: a sequence of requests, read from a journal, from RMM's CSV log (plain or gzipped), or from PyTorch's
//! memory snapshot. This file reads journals; `rmm_log` and `snapshot` read the other two.

use std::collections::BTreeMap;
use std::path::Path;

use base::api::{Api, Class};
use base::text::{events_were, many, shown};
use base::units::size;
use journal::format::{EXTENSION, Event, Record};
use journal::reader::{Journal, TensorFile};

use super::gathering::{Gathering, Unplayed, choose_device};
use super::requests::{Action, LastUse, Request, Trace, Way};
use super::{rmm_log, snapshot};
use crate::analysis::job::knows_times;
use crate::analysis::ledger::is_of_framework;
use crate::analysis::scene::is_out_of_memory;
use crate::analysis::tensor_records::{Merged, Tensors};
use crate::import::kind::{Kind, kind_of};

impl Trace {
    /// Reads a trace. The file's name and its first bytes decide the format: a journal, a snapshot, or RMM's log. Of a
    /// journal or snapshot, takes the requests of `device`; without it, of the device that was used most.
    pub fn load(path: &Path, device: Option<i16>) -> Result<Trace, Unplayed> {
        read(path, device).map_err(|why| Unplayed {
            problem: format!("{}: {}", shown(path), why.problem),
            ..why
        })
    }
}

fn read(path: &Path, device: Option<i16>) -> Result<Trace, Unplayed> {
    let mut gathering = Gathering::default();
    // The name of a journal or snapshot decides, too: a damaged one is told of by its reader.
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let kind = match (kind_of(path)?, extension.as_str()) {
        (_, EXTENSION) => Kind::Journal,
        (_, "pickle" | "pkl") => Kind::Snapshot,
        (kind, _) => kind,
    };
    match kind {
        Kind::Journal => journal(path, device, &mut gathering)?,
        Kind::Snapshot => snapshot::gather(path, device, &mut gathering)?,
        Kind::Other => {
            return Err(
                "is of another kind: give a journal (.vraj), a memory snapshot of PyTorch (.pickle) or RMM's log (.csv, .csv.gz)".into(),
            );
        }
        Kind::Log | Kind::Empty if device.is_some() => {
            let problem = "is a log, which names no devices: leave --device out";
            return Err(Unplayed {
                of_device: true,
                problem: problem.to_owned(),
            });
        }
        Kind::Log | Kind::Empty => rmm_log::gather(path, &mut gathering)?,
    }
    let trace = gathering.end();
    if trace.requests.is_empty() {
        let none = "holds no request for linear device memory";
        return Err(match trace.notes.join("; ") {
            notes if notes.is_empty() => format!("{none}: give the trace of a job that allocated some"),
            notes => format!("{none}; {notes}"),
        }
        .into());
    }
    Ok(trace)
}

/// Collects the requests of a journal. If PyTorch's tensors were recorded beside it, they are the requests, and not the
/// segments that PyTorch obtained for them.
fn journal(path: &Path, device: Option<i16>, gathering: &mut Gathering) -> Result<(), Unplayed> {
    let journal = Journal::open(path).map_err(|why| why.problem)?;
    let tensors = Tensors::beside(&journal).unwrap_or_else(|problem| {
        let told = format!("{}: cannot be read: {problem}", shown(&TensorFile::beside(path)));
        gathering.trace.notes.push(told);
        None
    });
    // Snapshots do not show each request.
    let tensors = tensors.filter(|tensors| tensors.has_segments() && !tensors.snapshots);
    if let Some(tensors) = &tensors {
        gathering
            .trace
            .notes
            .push("the requests are those for PyTorch's recorded tensors".to_owned());
        gathering.trace.notes.extend(tensors.note());
        gathering.trace.doubts.is_partial = tensors.note().is_some();
    }
    let tensors = tensors.as_ref();
    for (name, value) in tensors.iter().flat_map(|tensors| &tensors.settings) {
        gathering.trace.torch.set(name, value);
    }
    // By device.
    let mut devices: BTreeMap<i16, Gathering> = BTreeMap::new();
    let mut memory = BTreeMap::new();
    // By class, how often the job asked for memory that no strategy serves.
    let mut others: BTreeMap<u8, u64> = BTreeMap::new();
    let knows_times = knows_times(journal.header());
    let mut records = Merged::of(&journal, tensors)?;
    while let Some(record) = records.next() {
        let record = record?;
        if is_linear(&record) {
            let gathering = devices.entry(record.device).or_default();
            // A log without times has only an order.
            gathering.at(if knows_times { record.time_ns } else { 0 });
            gather(gathering, &record, tensors, records.pool());
            continue;
        }
        match record.event {
            // PyTorch's handles that never were mapped are its attempts to grow, which it gave up.
            Event::Map { .. } if tensors.is_some() => *others.entry(Class::Vmm.number()).or_default() += 1,
            Event::Alloc(allocation) if tensors.is_some() && allocation.class == Class::Vmm.into() => {}
            Event::Alloc(allocation) => *others.entry(allocation.class.number()).or_default() += 1,
            Event::SegmentFree {
                context_gone: false, ..
            } if tensors.is_some() && is_of_framework(&record) => {
                if let Some(gathering) = devices.get_mut(&record.device) {
                    gathering.at(record.time_ns);
                    gathering.empty_cache();
                }
            }
            Event::Measured {
                mem_info: Some(told), ..
            } => {
                memory.insert(record.device, told.total);
            }
            _ => {}
        }
    }
    let damaged = records.records.damaged();
    for (class, why) in [
        (
            Class::Vmm,
            "PyTorch's expandable_segments obtain it, whose tensors --torch record tells",
        ),
        (
            Class::Async,
            "the driver does not tell how its pool, as of PyTorch's backend:cudaMallocAsync, places it",
        ),
    ] {
        if let Some(&requests) = others.get(&class.number()) {
            gathering.trace.doubts.has_others = true;
            gathering.trace.notes.push(format!(
                "not known: what memory of class {} needs (requests: {requests}). No strategy serves it, and {why}, so it is \
                 not played, and figures are at least what the job needs",
                class.name(),
            ));
        }
    }
    if !devices.is_empty() {
        let chosen = choose_device("journal", &devices, device, |of_device| of_device.asked, gathering)?;
        let known = journal.header().device(chosen);
        let total = known.map(|device| device.total_memory).filter(|&total| total > 0);
        let limit = known.and_then(|device| device.limit);
        let device_memory = total.or(memory.remove(&chosen)).into_iter().chain(limit).min();
        if limit.is_some() && device_memory == limit {
            gathering.trace.notes.push(format!(
                "the device is as large as the job's limit, {}",
                size(limit.unwrap_or(0))
            ));
        }
        gathering.take(devices.remove(&chosen).unwrap_or_default());
        gathering.trace.device_memory = device_memory;
    }
    gathering.trace.doubts.is_partial |= journal.lost() > 0 || damaged > 0;
    if journal.lost() > 0 {
        let lost = events_were(journal.lost());
        let told = format!("{lost} lost: figures are of those that are left");
        gathering.trace.notes.push(told);
    }
    if damaged > 0 {
        let told = format!("left out {}", many(damaged, "damaged record"));
        gathering.trace.notes.push(told);
    }
    let is_tensor = |request: &Request| {
        matches!(
            request.action,
            Action::Allocate {
                way: Way::Tensor(_),
                ..
            }
        )
    };
    let requests = &gathering.trace.requests;
    let has_segments = !requests.is_empty() && !requests.iter().any(is_tensor) && journal.header().uses("PyTorch");
    gathering.trace.doubts.has_segments = has_segments;
    gathering.trace.torch.has_tensors = tensors.is_some();
    if has_segments {
        gathering.trace.notes.push(
            "these requests are PyTorch's segments, not its tensors, whose waste lies inside them: run the job with --torch record"
                .to_owned(),
        );
    }
    gathering.trace.environment = journal.header().environment.clone();
    Ok(())
}

/// Adds a request for linear memory, or its free. `pool` is the tensor's.
fn gather(gathering: &mut Gathering, record: &Record, tensors: Option<&Tensors>, pool: (u64, u64)) {
    match record.event {
        Event::Alloc(block) => {
            let way = match way(record, block.stream) {
                Way::Tensor(stream) => gathering.tensor(stream, pool),
                way => way,
            };
            gathering.allocate(block.address, block.requested, way);
        }
        Event::Free { allocation, .. } => {
            let freed_on = stream(allocation.stream);
            gathering.free(allocation.address, |way| match (way, freed_on) {
                (Way::Driver, _) => LastUse::Awaited,
                // The library names the stream of a free only if no other stream has used the memory.
                (Way::Tensor(own), Some(stream)) if own == Some(stream) => LastUse::Stream(stream),
                (Way::Tensor(_), _) => LastUse::Unknown,
            });
        }
        Event::AllocFailed { requested, .. } => match tensors.and_then(|tensors| tensors.wanted(record)) {
            Some(wanted) => gathering.fail(wanted, Way::Tensor(None)),
            None => gathering.fail(requested, way(record, 0)),
        },
        _ => {}
    }
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
        Some(Api::vramshim_torch_alloc | Api::torch_alloc | Api::torch_before | Api::rmm_allocate) => {
            Way::Tensor(stream(number))
        }
        _ => Way::Driver,
    }
}
