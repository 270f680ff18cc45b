//! Reads one journal for the report, in two passes: the first finds levels, peaks and failures, the second who held the
//! memory then and in between.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use base::cuda::HOST_DEVICE;
use base::text::shown;
use journal::format::{Event, MarkKind, NoStack, Record};
use journal::reader::{Journal, State};

use super::columns::FirstAndLast;
use super::data::{Device, Failure, Holdings, Mark, Named, Process, Trust};
use super::events::Choice;
use super::interned::Interned;
use super::shown_verdict::shown_verdict;
use super::{groups, space};
use crate::analysis::finding::Verdict;
use crate::analysis::holdings::{self, At};
use crate::analysis::job::{Job, LoadError, NOT_KNOWN, Observer};
use crate::analysis::ledger::Ledger;
use crate::analysis::names::device_uuid;
use crate::analysis::origins::Origins;
use crate::analysis::rank::rank;
use crate::analysis::scene::is_out_of_memory;
use crate::analysis::secrets;
use crate::analysis::symbols;
use crate::analysis::tensor_records;
use crate::analysis::timeline::{DeviceTimeline, Point, Timeline};
use crate::render::answer::Answer;
use crate::render::{format, host_memory};
use crate::say::say;

/// How much of each process a report keeps: the more processes there are, the less of each.
pub struct Detail {
    /// Spans of a curve.
    pub spans: usize,
    /// Moments at equal distances at which the page knows who holds what.
    pub moments: usize,
    pub groups: usize,
    /// Records in the list of events.
    pub events: usize,
    pub failures: usize,
}

impl Detail {
    /// The detail of each of `processes`.
    pub fn each_of(processes: usize) -> Detail {
        let share = |all: usize, least: usize, most: usize| (all / processes.max(1)).clamp(least, most);
        Detail {
            spans: share(12_000, 16, 6000),
            moments: share(720, 8, 240),
            groups: share(640, 8, 320),
            events: share(12_000, 24, 12_000),
            failures: share(800, 4, 200),
        }
    }
}

/// What the first pass keeps of a journal, besides the job.
struct FirstPass {
    timeline: Timeline,
    choice: Choice,
    failures: FirstAndLast<Failure>,
    /// How many failures there were so far.
    failed_so_far: u64,
    marks: FirstAndLast<(u64, u64, MarkKind)>,
    /// Allocated bytes by the reason why there is no stack; `None` if there is one.
    stack_bytes: BTreeMap<Option<NoStack>, u64>,
    first_ns: Option<u64>,
    /// The time of the last failed call, and the number of its stack.
    failed: Option<(u64, u32)>,
}

impl Observer for FirstPass {
    fn after(&mut self, ledger: &Ledger, record: &Record) {
        self.first_ns.get_or_insert(record.time_ns);
        self.timeline.note(record, ledger);
        self.choice.apply(record);
        if let Event::AllocFailed { .. } | Event::FreeFailed { .. } = record.event {
            self.failed = Some((record.time_ns, record.stack));
        }
        match record.event {
            Event::Alloc(allocation) => {
                let no_stack = NoStack::stack(record.stack).err();
                let bytes = self.stack_bytes.entry(no_stack).or_default();
                *bytes = bytes.saturating_add(allocation.allocated);
                if let Some(known) = self.failures.list.last_mut() {
                    known.went_on += 1;
                }
            }
            Event::AllocFailed { result, .. } if is_out_of_memory(result) => {
                let scenes = &ledger.scenes;
                let is_known = std::mem::replace(&mut self.failed_so_far, scenes.out_of_memory) == scenes.out_of_memory;
                match (scenes.last().map(Failure::from), self.failures.list.last_mut()) {
                    (Some(again), Some(known)) if is_known => *known = again,
                    (Some(new), _) => self.failures.push(new),
                    (None, _) => {}
                }
            }
            Event::Mark { text, kind } => self.marks.push((record.time_ns, text, kind)),
            _ => {}
        }
    }
}

/// Reads the process of a journal. `progress` is called with the bytes read and the bytes in total, of both passes.
pub fn read(
    path: &Path,
    detail: &Detail,
    interned: &mut Interned,
    mut progress: impl FnMut(u64, u64),
) -> Result<Process, LoadError> {
    let journal = Journal::open(path).map_err(LoadError::Open)?;
    let stacks = or_none(path, "stacks", symbols::named_stacks(path));
    let torch = or_none(path, "tensors", tensor_records::stacks(path).map(Some)).unwrap_or_default();
    let origins = Origins::new(stacks, torch);
    let size = journal.size();
    let mut first = FirstPass {
        timeline: Timeline::new(detail.spans),
        choice: Choice::new(detail.events),
        failures: FirstAndLast::new(detail.failures),
        failed_so_far: 0,
        marks: FirstAndLast::new(detail.failures),
        stack_bytes: BTreeMap::new(),
        first_ns: None,
        failed: None,
    };
    let mut job = Job::load_with(&journal, &mut [&mut first], |done, _| progress(done, size * 2))?;
    job.ledger.forget_live();
    let mut holdings = holdings::Holdings::new(moments(&first, &job, detail));
    let mut at_failure = match &job.finding().failure {
        Some(failure) if failure.shortage.verdict() == Verdict::Unusable => {
            Some(space::AtFailure::new(failure.scene.device, failure.scene.time_ns))
        }
        _ => None,
    };
    let mut observers: Vec<&mut dyn Observer> = vec![&mut holdings];
    observers.extend(at_failure.as_mut().map(|space| space as &mut dyn Observer));
    let again = Job::load_with(&journal, &mut observers, |done, _| progress(size + done, size * 2))?;
    let at = holdings.moments().to_vec();
    let series = holdings.finish(&again.ledger);
    let mut stack = |number: u32| origins.frames(number).map(|frames| interned.stack(frames));
    let text = |number: u64| {
        origins
            .stacks()
            .and_then(|stacks| stacks.text(number))
            .map_or_else(|| format!("mark {number}"), str::to_owned)
    };
    let named = named(&first, &at, text);
    let groups = groups::select(series, &at, &named, detail.groups, &mut stack);
    let FirstPass { timeline, choice, .. } = first;
    let around = timeline.devices.values().flat_map(DeviceTimeline::kept);
    let failed = first
        .failed
        .and_then(|(time_ns, number)| Some((time_ns, stack(number)?)));
    let answer = Answer::in_short(&job);
    let verdict = shown_verdict(&answer, failed);
    let header = &job.header;
    let of_process = |text: String| {
        if header.knows_process() {
            text
        } else {
            NOT_KNOWN.to_owned()
        }
    };
    Ok(Process {
        title: secrets::command_line(&job.title().split(' ').map(str::to_owned).collect::<Vec<_>>()).join(" "),
        pid: header.pid,
        rank: rank(header),
        host: of_process(header.host.clone()),
        path: path.display().to_string(),
        command: of_process(secrets::command_line(&header.command_line).join(" ")),
        strategy: of_process(header.strategy.clone()),
        run: 0,
        started: format::started(&job),
        started_unix_ns: header.wall_start_ns,
        ended: format::job_ended(&job),
        ended_by_failure: answer.finding.fatal,
        duration_ns: job.duration_ns,
        software: header.software.clone(),
        environment: secrets::environment(&header.environment),
        caches: job.caches(),
        snapshots: job.tensors.as_ref().is_some_and(|tensors| tensors.snapshots),
        trust: trust(&job, &first.stack_bytes, first.first_ns),
        devices: devices(&job, &timeline),
        host_memory: host_memory::as_json(&job.ledger.host),
        failures_in_all: first.failures.in_all,
        failures: first.failures.list,
        marks: first
            .marks
            .list
            .iter()
            .map(|&(time_ns, number, kind)| Mark {
                time_ns,
                text: text(number),
                kind: match kind {
                    MarkKind::Instant => "instant",
                    MarkKind::Begin => "begin",
                    MarkKind::End => "end",
                },
            })
            .collect(),
        marks_in_all: first.marks.in_all,
        holdings: Holdings {
            moments_ns: at.iter().map(|at| at.time_ns).collect(),
            named,
            groups,
        },
        events: choice.finish(around.map(|moment| (moment.event, moment.record)), &mut stack, text),
        space: at_failure.and_then(|space| space.space),
        verdict,
    })
}

/// What lies beside a journal. A file that cannot be read is named on stderr.
fn or_none<T>(journal: &Path, what: &str, loaded: io::Result<Option<T>>) -> Option<T> {
    loaded.unwrap_or_else(|error| {
        say!("the {what} beside {} cannot be read: {error}", shown(journal));
        None
    })
}

/// The moments at which the second pass looks who holds what: at equal distances, at each peak, at the failures, at
/// the marks, and at the end.
fn moments(first: &FirstPass, job: &Job, detail: &Detail) -> Vec<At> {
    let end_ns = job.duration_ns.max(job.ledger.last_ns);
    let begin_ns = first.first_ns.unwrap_or(0);
    let until = |time_ns: u64| At {
        time_ns,
        event: u64::MAX,
    };
    let steps = detail.moments.max(2) as u64;
    let length = u128::from(end_ns.saturating_sub(begin_ns));
    let mut moments: Vec<At> = (1..=steps)
        .map(|step| until(begin_ns.saturating_add((length * u128::from(step) / u128::from(steps)) as u64)))
        .collect();
    moments.extend(first.timeline.devices.values().filter_map(|device| {
        let peak = device.live.peak()?;
        Some(At {
            time_ns: peak.time_ns,
            event: peak.event,
        })
    }));
    let failures = first.failures.list.iter().rev().take(detail.moments / 4);
    moments.extend(failures.map(|failure| until(failure.time_ns)));
    let marks = first.marks.list.iter().rev().take(detail.moments / 2);
    moments.extend(marks.map(|&(time_ns, ..)| until(time_ns)));
    moments
}

/// The moments that have a name.
fn named(first: &FirstPass, at: &[At], text: impl Fn(u64) -> String) -> Vec<Named> {
    let mut named = Vec::new();
    let mut name = |moment: Option<usize>, kind, device, text| {
        named.extend(moment.map(|moment| Named {
            moment,
            kind,
            device,
            text,
        }));
    };
    let place = |time_ns: u64, event: u64| at.binary_search(&At { time_ns, event }).ok();
    for (&device, timeline) in &first.timeline.devices {
        let peak = timeline.live.peak().filter(|peak| peak.bytes > 0);
        let moment = peak.and_then(|peak| place(peak.time_ns, peak.event));
        name(moment, "peak", Some(device), "peak".to_owned());
    }
    for failure in &first.failures.list {
        let (api, requested) = (&failure.api, format::size(failure.requested));
        let moment = place(failure.time_ns, u64::MAX);
        name(
            moment,
            "failure",
            Some(failure.device),
            format!("{api} of {requested} failed"),
        );
    }
    for &(time_ns, number, _) in &first.marks.list {
        name(place(time_ns, u64::MAX), "mark", None, text(number));
    }
    name(at.len().checked_sub(1), "end", None, "end".to_owned());
    named.sort_by_key(|named| named.moment);
    named
}

fn trust(job: &Job, stack_bytes: &BTreeMap<Option<NoStack>, u64>, first_ns: Option<u64>) -> Trust {
    let header = &job.header;
    Trust {
        events: job.ledger.events,
        lost: job.lost,
        lost_from_ns: job.lost_from_ns(),
        lost_because: (job.lost > 0).then(|| job.lost_because()),
        unfinished: job.unfinished,
        damaged: job.damaged,
        damaged_header: header.damaged.clone(),
        anomalies: job.ledger.anomalies.total(),
        unknown_frees: header.unknown_frees,
        stack_bytes: stack_bytes.get(&None).copied().unwrap_or(0),
        no_stack_bytes: stack_bytes
            .iter()
            .filter_map(|(reason, &bytes)| reason.map(|reason| (reason.words(), bytes)))
            .collect(),
        no_stack_remedy: stack_bytes
            .iter()
            .filter_map(|(reason, bytes)| Some((bytes, (*reason)?)))
            .max()
            .and_then(|(_, reason)| reason.remedy()),
        first_ns: first_ns.unwrap_or(0),
        last_ns: job.ledger.last_ns,
        running: job.state == State::Running,
    }
}

fn devices(job: &Job, timeline: &Timeline) -> Vec<Device> {
    let mut ordinals: Vec<i16> = job.devices().iter().map(|&(ordinal, ..)| ordinal).collect();
    if job.host_memory().is_some_and(|host| host.all.count > 0) {
        ordinals.push(HOST_DEVICE);
    }
    let device = |ordinal: i16| {
        let entry = job
            .header
            .devices
            .iter()
            .find(|entry| entry.ordinal == i32::from(ordinal));
        let curves = timeline.devices.get(&ordinal);
        let steps = |points: fn(&DeviceTimeline) -> Vec<Point>| curves.map(points).unwrap_or_default().into();
        let ledger = job.ledger.devices.get(&ordinal);
        let all = ledger.map_or_else(Default::default, |ledger| ledger.all);
        let peak = curves.and_then(|curves| curves.live.peak()).unwrap_or_default();
        let peak_reserved = curves.and_then(|curves| curves.reserved.peak()).unwrap_or_default();
        Device {
            ordinal,
            name: match (entry, ordinal) {
                (Some(entry), _) => entry.name.clone(),
                (None, HOST_DEVICE) => "host memory".to_owned(),
                (None, _) => String::new(),
            },
            uuid: entry.and_then(|entry| device_uuid(&entry.uuid)),
            total: entry.map(|entry| entry.total_memory).filter(|&total| total > 0),
            limit: entry.and_then(|entry| entry.limit),
            live: steps(DeviceTimeline::live_points),
            reserved: steps(DeviceTimeline::reserved_points),
            used: steps(|device| device.used.points()),
            peak_bytes: peak.bytes,
            peak_ns: peak.time_ns,
            peak_reserved: peak_reserved.bytes,
            peak_reserved_ns: peak_reserved.time_ns,
            live_at_end: all.allocated.current,
            allocations: all.count,
            utilisation: all.utilisation(),
            failures: ledger.map_or(0, |ledger| ledger.failures),
        }
    };
    ordinals.into_iter().map(device).collect()
}
