//! Reads one journal for the report, in two passes: the first finds levels, peaks and failures, the second who held the
//! memory then and in between.

use std::collections::BTreeMap;
use std::path::Path;

use base::cuda::HOST_DEVICE;
use journal::format::{Event, MarkKind, Record};
use journal::reader::{Journal, State};
use serde_json::{Value, json};

use super::columns::{FirstAndLast, Steps};
use super::data::{Failure, Holdings, Mark, Named, Process};
use super::events::{Choice, Levels};
use super::interned::Interned;
use super::ranges::Ranges;
use super::{groups, space, strategies};
use crate::analysis::finding::Verdict;
use crate::analysis::frameless::Frameless;
use crate::analysis::holdings::{self, At};
use crate::analysis::job::{Job, LoadError, NOT_KNOWN, Observer};
use crate::analysis::labels::Labels;
use crate::analysis::ledger::Ledger;
use crate::analysis::live_set::Catcher;
use crate::analysis::names::{api_name, device_uuid, mark_name};
use crate::analysis::rank::rank;
use crate::analysis::scene::is_out_of_memory;
use crate::analysis::secrets;
use crate::analysis::tensor_records::Tensors;
use crate::analysis::timeline::{Curve, DeviceTimeline, Point, Timeline};
use crate::render::answer::Answer;
use crate::render::holders_and_next::{self, MOMENTS, requests};
use crate::render::{format, host_memory};

/// How much of each process a report keeps: the more processes there are, the less of each.
pub struct Detail {
    pub spans: usize,
    /// Moments at equal distances at which the page knows who holds what.
    pub moments: usize,
    pub groups: usize,
    /// Records in the list of events.
    pub events: usize,
    pub failures: usize,
    /// A journal with more events is not played: that takes long. `why` and `replay` do it.
    pub most_played: u64,
}

impl Detail {
    pub fn each_of(processes: usize) -> Detail {
        let share = |all: usize, least: usize, most: usize| (all / processes.max(1)).clamp(least, most);
        Detail {
            spans: share(12_000, 16, 6000),
            moments: share(720, 8, 240),
            groups: share(640, 8, 320),
            events: share(12_000, 24, 12_000),
            failures: share(800, 4, 200),
            most_played: share(200_000, 0, 200_000) as u64,
        }
    }
}

/// What the first pass keeps of a journal, besides the job.
struct FirstPass<'a> {
    labels: &'a Labels,
    timeline: Timeline,
    failures: FirstAndLast<Failure>,
    /// How many failures each device had so far.
    failed: BTreeMap<i16, u64>,
    marks: FirstAndLast<(u64, u64, MarkKind)>,
    ranges: Ranges,
    /// Requested bytes by why they have no stack; `None`: they have one.
    requested: BTreeMap<Option<Frameless>, u64>,
    first_ns: Option<u64>,
}

impl Observer for FirstPass<'_> {
    fn after(&mut self, ledger: &Ledger, record: &Record) {
        self.first_ns.get_or_insert(record.time_ns);
        self.timeline.after(ledger, record);
        match record.event {
            Event::Alloc(one) => {
                let sum = self
                    .requested
                    .entry(self.labels.frames(record.stack).err())
                    .or_default();
                *sum = sum.saturating_add(one.requested);
                if let Some(known) = self.failures.list.last_mut() {
                    known.went_on += 1;
                }
            }
            Event::AllocFailed { result, .. } if is_out_of_memory(result) => {
                let scenes = &ledger.scenes;
                let is_known = self.failed.values().sum::<u64>() == scenes.out_of_memory;
                match (scenes.last().map(Failure::from), self.failures.list.last_mut()) {
                    (Some(again), Some(known)) if is_known => *known = again,
                    (Some(new), _) => {
                        *self.failed.entry(new.device).or_default() += 1;
                        self.failures.push(new);
                    }
                    (None, _) => {}
                }
            }
            Event::Mark { text, kind } => {
                self.marks.push((record.time_ns, text, kind));
                self.ranges.mark(record, text, kind);
            }
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
    let labels = Labels::load(path);
    let size = journal.size();
    let mut first = FirstPass {
        labels: &labels,
        timeline: Timeline::new(detail.spans),
        failures: FirstAndLast::new(detail.failures),
        failed: BTreeMap::new(),
        marks: FirstAndLast::new(detail.failures),
        ranges: Ranges::new(detail.failures),
        requested: BTreeMap::new(),
        first_ns: None,
    };
    let mut catcher = Catcher::new(&MOMENTS);
    let mut observers: [&mut dyn Observer; 2] = [&mut first, &mut catcher];
    let mut job = Job::load_with(&journal, false, &mut observers, |done, _| progress(done, size * 2))?;
    let set = holders_and_next::set_of(&mut job, catcher);
    let devices = first.timeline.devices.iter().filter(|(device, _)| **device >= 0);
    let peaks = devices.filter_map(|(&device, timeline)| Some((timeline.live.peak()?.bytes, device)));
    let highest = peaks.max();
    let failed_on = job.finding().failure.map(|failure| failure.scene.device);
    let device = failed_on.or(highest.map(|(_, device)| device));
    let requests = (job.ledger.events <= detail.most_played).then(|| requests(path, device));
    let answer = holders_and_next::answer(&job, set, &labels, 0, requests.as_ref());
    let trace = requests.as_ref().and_then(|requests| requests.as_ref());
    let replay = trace
        .zip(device)
        .and_then(|(trace, device)| strategies::played(trace, device));
    drop(requests);
    let named = named(&first, detail, |number| labels.mark(number));
    let moments = steps(&first, &job, detail).chain(named.iter().map(|(at, _)| *at));
    let mut holdings = holdings::Holdings::new(moments.collect());
    let mut at_failure = match &job.finding().failure {
        Some(failure) if failure.shortage.verdict() == Verdict::Unusable => {
            let (device, time_ns, space) = (failure.scene.device, failure.scene.time_ns, None);
            Some(space::AtFailure { device, time_ns, space })
        }
        _ => None,
    };
    let half = (detail.spans as u64 / 20).clamp(8, 300);
    let mut choice = Choice::new(detail.events, job.ledger.records, &first.timeline, half);
    let mut observers: Vec<&mut dyn Observer> = vec![&mut holdings, &mut choice];
    let sums = at_failure.is_none();
    observers.extend(at_failure.as_mut().map(|space| space as &mut dyn Observer));
    let again = Job::load_with(&journal, sums, &mut observers, |done, _| {
        progress(size + done, size * 2)
    })?;
    let at = holdings.moments().to_vec();
    let series = holdings.finish(&again.ledger);
    let mut stack = |number: u32| labels.origins.frames(number).map(|frames| interned.stack(frames));
    let tensors = job.tensors.as_ref();
    let is_exact = |time_ns, failed_on| tensors.is_none_or(|tensors| tensors.are_whole_at(time_ns, failed_on));
    let placed = named.into_iter().filter_map(|(moment, named)| {
        let failed_on = named.device.filter(|_| named.kind == "failure");
        let (exact, moment) = (is_exact(moment.time_ns, failed_on), at.binary_search(&moment).ok()?);
        Some(Named { moment, exact, ..named })
    });
    let end = at.len().checked_sub(1).map(|moment| Named {
        moment,
        kind: "end",
        device: None,
        text: "end".to_owned(),
        exact: is_exact(at[moment].time_ns, None),
    });
    let mut named: Vec<Named> = placed.chain(end).collect();
    named.sort_by_key(|named| named.moment);
    let groups = groups::select(series, &at, &named, detail.groups, &mut stack);
    let verdict = shown_verdict(&answer, &mut stack);
    let marks = first.marks.list.iter().map(|&(time_ns, number, kind)| Mark {
        time_ns,
        text: labels.mark(number),
        kind: mark_name(kind),
    });
    let ranges = first.ranges.list().into_iter();
    let ranges = ranges.map(|(text, from_ns, to_ns, depth)| (labels.mark(text), from_ns, to_ns, depth));
    let failure = answer.finding.failure.as_ref().map(|failure| &failure.scene);
    Ok(Process {
        pid: job.header.pid,
        rank: rank(&job.header),
        run: 0,
        started_unix_ns: job.header.wall_start_ns,
        ended_by_failure: answer.finding.fatal,
        duration_ns: job.duration_ns,
        failed_ns: failure.map(|scene| scene.time_ns),
        peak_bytes: highest.map_or(0, |(bytes, _)| bytes),
        replay,
        marks: marks.collect(),
        about: about(
            &answer,
            verdict,
            trust(&job, &first),
            devices_of(&job, &first, &choice.levels),
        ),
        failures_in_all: first.failures.in_all,
        failures: first.failures.list,
        marks_in_all: first.marks.in_all,
        ranges: ranges.collect(),
        holdings: Holdings {
            moments_ns: at.iter().map(|at| at.time_ns).collect(),
            named,
            groups,
        },
        events: choice.finish(&mut stack, |number| labels.mark(number)),
        space: at_failure.and_then(|space| space.space),
    })
}

fn about(answer: &Answer, verdict: Value, trust: Value, devices: Value) -> Value {
    let (job, header) = (answer.job, &answer.job.header);
    let of_process = |text: String| {
        if header.knows_process() {
            text
        } else {
            NOT_KNOWN.to_owned()
        }
    };
    let title: Vec<String> = job.title().split(' ').map(str::to_owned).collect();
    json!({
        "title": secrets::command_line(&title).join(" "),
        "host": of_process(header.host.clone()),
        "path": job.path.display().to_string(),
        "command": of_process(secrets::command_line(&header.command_line).join(" ")),
        "strategy": of_process(header.strategy.clone()),
        // When the journal began, in RFC 3339.
        "started": format::started(job),
        "ended": format::job_ended(job),
        "end_title": format::end_title(job),
        "software": header.software,
        "environment": secrets::environment(&header.environment),
        // The framework with a cache of its own, whose segments are what the journal calls allocations.
        "caches": job.caches(),
        "peaks_are_at_least": job.tells_at_least(),
        // If snapshots tell PyTorch's tensors: what was live is not known before the first, and is then at least what is told.
        "first_snapshot_ns": job.tensors.as_ref().and_then(Tensors::first_snapshot_ns),
        "verdict": verdict,
        "trust": trust,
        "devices": devices,
        // In the words of `inspect`.
        "host_memory": host_memory::lines(&job.ledger.host),
    })
}

/// The answer about the process. `stack` gives the place of a stack.
fn shown_verdict(answer: &Answer, stack: &mut impl FnMut(u32) -> Option<usize>) -> Value {
    let failure = answer.finding.failure.as_ref();
    let [explanation, sentence] = answer.text();
    json!({
        "name": answer.finding.verdict.name(),
        "words": answer.finding.verdict.words(),
        // What happened.
        "sentence": sentence,
        // The causes, and what would help, with bytes.
        "explanation": explanation,
        "next": answer.steps_as_json(),
        // Whether the failure is what ended the job.
        "fatal": answer.finding.fatal,
        "lived": answer.finding.lived,
        "device": failure.map(|failure| failure.scene.device),
        "time_ns": failure.map(|failure| failure.scene.time_ns),
        // Of growth: from when to when the bytes came.
        "window": match failure {
            Some(failure) => failure.scene.around.growth.filter(|_| answer.finding.verdict == Verdict::Growth),
            None => answer.job.growth().map(|(_, growth)| growth),
        },
        // What the request asked for, by which function, and from where.
        "api": failure.map(|failure| api_name(failure.scene.api)),
        "requested": failure.map(|failure| failure.scene.requested),
        "stack": failure.and_then(|failure| stack(failure.scene.stack)),
        "parts": answer.parts,
        "total": failure.and_then(|failure| Some(failure.shortage.parts?.total)),
    })
}

const fn until(time_ns: u64) -> At {
    let event = u64::MAX;
    At { time_ns, event }
}

/// Moments at equal distances, the last at the end.
fn steps(first: &FirstPass, job: &Job, detail: &Detail) -> impl Iterator<Item = At> + use<> {
    let begin_ns = first.first_ns.unwrap_or(0);
    let length = u128::from(job.duration_ns.max(job.ledger.last_ns).saturating_sub(begin_ns));
    let steps = detail.moments.max(2) as u128;
    (1..=steps).map(move |step| until(begin_ns.saturating_add((length * step / steps) as u64)))
}

/// The moments that have a name: each peak, failures, and marks. Their places are not known yet.
fn named(first: &FirstPass, detail: &Detail, text: impl Fn(u64) -> String) -> Vec<(At, Named)> {
    let mut named = Vec::new();
    let mut name = |at: At, kind, device, text| {
        let named_one = Named {
            kind,
            device,
            text,
            ..Named::default()
        };
        named.push((at, named_one));
    };
    for (&device, timeline) in &first.timeline.devices {
        if let Some(Point { time_ns, event, .. }) = timeline.live.peak().filter(|peak| peak.bytes > 0) {
            name(At { time_ns, event }, "peak", Some(device), "peak".to_owned());
        }
    }
    let (failures, marks) = (&first.failures.list, &first.marks.list);
    for failure in &failures[failures.len().saturating_sub(detail.moments / 4)..] {
        let text = format!("{} of {} failed", failure.api, format::size(failure.requested));
        name(until(failure.time_ns), "failure", Some(failure.device), text);
    }
    for &(time_ns, number, _) in &marks[marks.len().saturating_sub(detail.moments / 2)..] {
        name(until(time_ns), "mark", None, text(number));
    }
    named
}

fn trust(job: &Job, first: &FirstPass) -> Value {
    let with = first.requested.get(&None).copied().unwrap_or(0);
    let without = || (first.requested.iter()).filter_map(|(why, bytes)| Some(((*why)?, bytes)));
    let most = without().max_by_key(|(_, bytes)| **bytes);
    let remedy = most.and_then(|(why, _)| why.remedy(&job.path, &job.header, with > 0));
    let without: BTreeMap<&str, &u64> = without().map(|(why, bytes)| (why.words(), bytes)).collect();
    json!({
        "events": job.ledger.events,
        "lost": job.lost,
        "lost_from_ns": job.lost_from_ns(),
        "lost_because": (job.lost > 0).then(|| job.lost_because()),
        "unfinished": job.unfinished,
        "damaged": job.damaged,
        "damaged_header": job.header.damaged,
        "anomalies": job.ledger.anomalies.total(),
        "unknown_frees": job.header.unknown_frees,
        // Requested bytes with a stack, and those without, by reason.
        "stack_bytes": with,
        "no_stack_bytes": without,
        // What would record the stacks of most of them.
        "no_stack_remedy": remedy,
        "first_ns": first.first_ns.unwrap_or(0),
        "last_ns": job.ledger.last_ns,
        "running": job.state == State::Running,
    })
}

/// Each device by its number, -1 for the host, in bytes.
fn devices_of(job: &Job, first: &FirstPass, levels: &[Levels]) -> Value {
    let mut ordinals: Vec<i16> = job.devices().iter().map(|&(ordinal, ..)| ordinal).collect();
    if job.host_memory().is_some_and(|host| host.all.count > 0) {
        ordinals.push(HOST_DEVICE);
    }
    let device = |ordinal: i16| {
        let entry = job.header.device(ordinal);
        let curves = first.timeline.devices.get(&ordinal);
        let steps = |curve: fn(&DeviceTimeline) -> &Curve, exact: Option<usize>| {
            let near = exact.into_iter().flat_map(|level| {
                let of_device = levels.iter().filter(|(device, _)| *device == ordinal);
                of_device.map(move |(_, levels)| levels[level])
            });
            let points = curves.map_or_else(Vec::new, |curves| curve(curves).points());
            let points = points.into_iter().chain(near).map(|point| (point.event, point));
            let mut points: Vec<Point> = points.collect::<BTreeMap<_, _>>().into_values().collect();
            points.dedup_by_key(|point| point.bytes);
            Steps::from(points)
        };
        let ledger = job.ledger.devices.get(&ordinal);
        let all = ledger.map_or_else(Default::default, |ledger| ledger.all);
        let peak = curves.and_then(|curves| curves.live.peak()).unwrap_or_default();
        let peak_reserved = curves.and_then(|curves| curves.reserved.peak()).unwrap_or_default();
        let knows_reserved = ledger.is_none_or(|ledger| job.knows_reserved(ledger));
        json!({
            "ordinal": ordinal,
            "name": match (entry, ordinal) {
                (Some(entry), _) => &entry.name,
                (None, HOST_DEVICE) => "host memory",
                (None, _) => "",
            },
            "uuid": entry.and_then(|entry| device_uuid(&entry.uuid)),
            "total": entry.map(|entry| entry.total_memory).filter(|&total| total > 0),
            "limit": entry.and_then(|entry| entry.limit),
            // Of live allocations, after rounding.
            "live": steps(|device| &device.live, Some(0)),
            // Null if it is not known, as of an imported log.
            "reserved": knows_reserved.then(|| steps(|device| &device.reserved, Some(1))),
            // In use by all processes, whenever it was measured.
            "used": steps(|device| &device.used, None),
            "peak_bytes": peak.bytes,
            "peak_ns": peak.time_ns,
            "peak_reserved": knows_reserved.then_some(peak_reserved.bytes),
            "peak_reserved_ns": peak_reserved.time_ns,
            "live_at_end": all.allocated.current,
            // For lack of memory, as in the process's list.
            "failures": first.failed.get(&ordinal).unwrap_or(&0),
        })
    };
    ordinals.into_iter().map(device).collect()
}
