//! The first lines about a job: why its last request failed, or how far from its limit it stayed; and the same as JSON.

use std::fmt;

use journal::format::{Amount, ProcessBytes};
use journal::reader::{Device, Header, State, TensorFile};

use crate::analysis::finding::{Distance, Failure, Verdict};
use crate::analysis::job::Job;
use crate::analysis::names::{api_name, failed_with, is_mig_instance};
use crate::analysis::scene::Scene;
use crate::analysis::tensor_records::segment_for;
use crate::render::format::{amount, duration, events_were, knows_end, many, printable, shown, size, times};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Why the last request failed, or that it is not known; of a job without one, that its memory grew.
    Explanation(String),
    Other(String),
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Line::Explanation(text) => write!(f, "Verdict: {text}"),
            Line::Other(text) => f.write_str(text),
        }
    }
}

/// The verdict in a sentence or two, and what happened in a line; without a failure the latter alone. Before them stand how
/// the job ended if it did not end by the failure, and whether the journal is damaged.
pub fn verdict(job: &Job) -> Vec<Line> {
    let damaged = damaged_parts(job);
    let damage = (!damaged.is_empty()).then(|| {
        format!(
            "Damaged journal: not certain, because what is said here rests on what is left of it. Damaged: {damaged}"
        )
    });
    let before = damage.into_iter().chain(without_tensors(job)).map(Line::Other);
    before.chain(sentences(job)).collect()
}

pub fn text_of(lines: &[Line]) -> String {
    lines.iter().map(Line::to_string).collect::<Vec<_>>().join("\n")
}

/// The verdict as far as the records go.
fn sentences(job: &Job) -> Vec<Line> {
    let finding = job.finding();
    let left = |failed: &str| match &finding.distance {
        Some(left) => distance(
            failed,
            left,
            finding.uncertain || job.ledger.begins_late,
            job.is_imported(),
        ),
        None if damaged_parts(job).is_empty() => "No GPU memory was asked for".to_owned(),
        None => "In what is left, no device was used".to_owned(),
    };
    let mut lines = match (&finding.failure, finding.refused_by_torch) {
        (Some(failure), _) => vec![
            Line::Explanation(match failure.scene.served_again {
                true => format!(
                    "{} were refused, and served when the framework asked again with its cache given back",
                    size(failure.scene.requested)
                ),
                false => explanation(job, failure),
            }),
            Line::Other(what_failed(job, failure)),
        ],
        (None, Some(refused)) => vec![
            Line::Explanation(refused_by_torch(refused)),
            Line::Other(left("No call of CUDA failed")),
        ],
        (None, None) => {
            let cut_off = (finding.verdict == Verdict::NotEnoughEvidence).then(|| Line::Explanation(cut_off(job)));
            let grew = job.growth().map(|(device, growth)| {
                let [from, to] = [growth.from_ns, growth.to_ns].map(duration);
                let (bytes, rate) = (size(growth.bytes), size(growth.a_second()));
                Line::Explanation(format!(
                    "live memory of device {device} grew steadily: its low points rose by {bytes} from {from} to {to}, {rate} a \
                     second"
                ))
            });
            let none = match job.is_imported() {
                true => "The trace has no failed request, and what is not in it is not known",
                false => "No request failed for lack of memory",
            };
            let what_is_left = Line::Other(left(none));
            cut_off.into_iter().chain(grew).chain([what_is_left]).collect()
        }
    };
    if let Some(Line::Other(line)) = lines.last_mut().filter(|_| job.lost > 0) {
        *line = format!(
            "Not certain, because {} lost. In what is left: {line}",
            events_were(job.lost)
        );
    }
    let failed_before = finding
        .failure
        .as_ref()
        .filter(|_| !finding.fatal && !job.is_imported());
    let not_for_lack = match (failed_before, finding.refused_by_torch) {
        (Some(_), _) => Some(
            "not for lack of device memory: the job went on after its last failed request, which is explained below",
        ),
        (None, None) => Some("not for lack of device memory"),
        (None, Some(_)) => None,
    };
    // A verdict alone sounds as if the job had died.
    let verdict = lines.iter_mut().find(|line| matches!(line, Line::Explanation(_)));
    if let (true, Some(Line::Explanation(why))) = (finding.lived, verdict) {
        let how = match job.state {
            State::Exited(_) => "recovered and ended well",
            _ => "went on",
        };
        *why = format!("the job {how}; its last failed request: {why}");
    }
    let end = match job.state {
        State::Killed => Some("Ended without exit: killed or crashed, by a signal that is not known".to_owned()),
        State::Exited(status) if status != 0 && failed_before.is_some() && job.header.knows_end() => {
            Some(format!("Ended with exit status {status}"))
        }
        _ => None,
    };
    if let (Some(end), Some(not_for_lack)) = (end, not_for_lack)
        && !finding.fatal
    {
        lines.insert(0, Line::Other(format!("{end}; {not_for_lack}")));
    }
    lines
}

/// The damaged parts of a journal, in words. The text is empty if no part is damaged.
pub fn damaged_parts(job: &Job) -> String {
    let mut parts = job.header.damaged.clone();
    if job.damaged > 0 {
        parts.push("records, which are left out");
    }
    parts.join(", ")
}

/// That the file with PyTorch's tensors is missing, if the verdict would know more with it.
fn without_tensors(job: &Job) -> Option<String> {
    let file = TensorFile::beside(&job.path);
    job.lacks_tensors.then(|| {
        format!(
            "Not certain, because {} is missing: PyTorch's tensors were to be recorded there. What its cache held free, and \
             what its own limit refused, is not known",
            shown(&file)
        )
    })
}

/// Records of the journal are not there, or are damaged, and may have told a failure.
fn cut_off(job: &Job) -> String {
    let what = match job.cut_off {
        0 => format!(
            "{} damaged. A failed request may be among them",
            events_were(job.damaged)
        ),
        cut => format!(
            "the journal was cut short, and {} cut off. A failed request may be among them",
            events_were(cut)
        ),
    };
    format!("{}: {what}", Verdict::NotEnoughEvidence.words())
}

/// What PyTorch's own limit refused. No call of CUDA failed, so the journal alone does not know it.
fn refused_by_torch(refused: &Scene) -> String {
    let segments = refused.around.reserved;
    format!(
        "PyTorch's own limit (torch.cuda.set_per_process_memory_fraction): it refused {} on device {} at {}, \
         with {} in its segments. How large the limit is was not recorded: at least {}, and less than {}",
        size(refused.requested),
        refused.device,
        duration(refused.time_ns),
        size(segments),
        size(segments),
        size(segments.saturating_add(segment_for(refused.requested).unwrap_or(refused.requested)))
    )
}

/// Why the request failed, with the bytes that would help.
fn explanation(job: &Job, failure: &Failure) -> String {
    let mut text = failure.shortage.explanation();
    let verdict = failure.shortage.verdict();
    if let (Verdict::Growth, Some(growth)) = (verdict, failure.scene.around.growth) {
        text += &format!(
            ". They came from {} to {}",
            duration(growth.from_ns),
            duration(growth.to_ns)
        );
    }
    if let (Some(instance), Verdict::LargerThanDevice | Verdict::LiveSet | Verdict::Growth | Verdict::OtherProcesses) =
        (mig_instance(job, failure), verdict)
    {
        text += &format!(
            ". The device is a MIG instance, {}, and has only its part of the card's memory: {}",
            printable(&instance.name, 64),
            size(instance.total_memory)
        );
    }
    if let (Verdict::LiveSet | Verdict::Unusable | Verdict::Growth, Some(framework)) = (verdict, failure.cache) {
        text += &format!(". {framework}'s segments count as live: what its cache wastes inside them is not seen");
        text += match job.tensors {
            Some(_) => ", because PyTorch's recorder took no snapshot at this failure",
            None => ", unless the job runs with --torch record",
        };
    }
    if matches!(verdict, Verdict::LiveSet | Verdict::Unusable | Verdict::Growth) {
        let others = job.header.frameworks().filter(|name| *name != "PyTorch");
        text.extend(
            others.map(|name| format!(". What {name}'s cache holds counts as live: what is used inside is not known")),
        );
    }
    text
}

/// The device of a failure, if it is a MIG instance.
pub fn mig_instance<'a>(job: &'a Job, failure: &Failure) -> Option<&'a Device> {
    let device = job.header.device(failure.scene.device);
    device.filter(|device| is_mig_instance(&device.name))
}

/// The request, and what the job did after it.
fn what_failed(job: &Job, failure: &Failure) -> String {
    let scene = failure.scene;
    let tries = match scene.tries {
        1 => String::new(),
        tries => format!(" (asked {}, counted once)", times(tries)),
    };
    let why = match (scene.lacked_memory(), scene.by_limit) {
        (false, _) => format!(", {}", failed_with(scene.api, scene.result)),
        (_, true) if failure.shortage.is_of_group() => ", refused by the limit of the group".to_owned(),
        (_, true) => ", refused by the limit".to_owned(),
        (_, false) if scene.is_of_host_guard() => ", refused by the host guard".to_owned(),
        (_, false) if scene.guard.is_some() => ", refused by the guard".to_owned(),
        (_, false) => refused_by(&job.header, scene).map_or(String::new(), |who| format!(", refused by {who}")),
    };
    let place = if scene.of_host {
        "of the host's memory".to_owned()
    } else {
        format!("on device {}", scene.device)
    };
    let of = match scene.requested {
        0 => String::new(),
        bytes => format!(" of {}", size(bytes)),
    };
    let request = format!(
        "{}{of} {place}{why}{tries} at {}",
        api_name(scene.api),
        duration(scene.time_ns)
    );
    let lacked = scene.lacked_memory() && !scene.of_host;
    let held = match failure.shortage.lost_before {
        // An imported log has requests alone.
        0 if lacked => format!(
            "; the process held {} there",
            size(scene.around.reserved.max(scene.around.live))
        ),
        // With lost events it is not known.
        _ => String::new(),
    };
    let out = if lacked { "Out of memory" } else { "Failed" };
    // How an imported job ended is not known, nor if that part of the header is damaged.
    let state = if job.is_imported() || !knows_end(job) {
        State::Killed
    } else {
        job.state
    };
    let followed = match (scene.went_on, scene.freed, state) {
        _ if scene.served_again => Some("the same request, now served,".to_owned()),
        // The clean-up of a job that dies frees memory too.
        (0, _, State::Exited(status)) if status != 0 => None,
        (0, _, State::Killed) if !job.is_imported() => None,
        (0, 0, _) => None,
        (0, freed, _) => Some(many(freed, "free")),
        // A snapshot shows old tensors that an earlier one did not.
        _ if job.has_snapshots() => Some("other requests".to_owned()),
        (went_on, ..) => Some(many(went_on, "allocation")),
    };
    if let Some(followed) = followed {
        let number = times(job.ledger.scenes.out_of_memory.max(1));
        return format!("{out} {number}, and the job went on: the last was {request}, then {followed} followed{held}");
    }
    let then = match state {
        State::Dumped => "ran when this copy was made, and had allocated nothing since".to_owned(),
        State::Running => "still runs, and allocated nothing since".to_owned(),
        State::Exited(0) => "made no further allocation and ended well".to_owned(),
        State::Killed if scene.freed > 0 => {
            let freed = many(scene.freed, "allocation");
            format!("freed {freed} after it, as on its way out, and allocated nothing")
        }
        _ => "allocated nothing after it".to_owned(),
    };
    format!("{out}: {request}; the job {then}{held}")
}

pub fn refused_by(header: &Header, scene: &Scene) -> Option<String> {
    let refusal = scene.refusal()?;
    let file = header.file_of(refusal.by).map(|file| printable(file, 200));
    Some(refusal.words(file.as_deref()))
}

/// How far the fullest device stayed from its limit or its size. `failed` says that nothing did. If records are missing, it is
/// not known how full it was.
fn distance(failed: &str, distance: &Distance, is_at_least: bool, of_trace: bool) -> String {
    let &Distance {
        device,
        peak,
        room,
        is_limit,
        of_group,
    } = distance;
    let what = match (is_limit, of_group) {
        (_, true) => "the limit of its group, of which other members took what is not known here",
        (true, false) => "its limit",
        (false, false) => "the device's memory",
    };
    if is_at_least {
        let peak = amount(Amount::AtLeast(peak));
        return format!("{failed}: {peak} of device {device} reserved; how far below {what} that stayed is not known");
    }
    let Some(room) = room else {
        let (peak, held) = (size(peak), if of_trace { "the trace has" } else { "the job held" });
        return format!("{failed}: {held} at most {peak} of device {device}. The size of the device is not known");
    };
    match room.checked_sub(peak) {
        Some(left) => format!(
            "{failed}: at most {} of device {device} reserved, {} below {what}",
            size(peak),
            size(left)
        ),
        None => format!(
            "{failed}: at most {} reserved on device {device}, more than {what} ({})",
            size(peak),
            size(room)
        ),
    }
}

/// A process on a device, as `why` names it.
pub fn process_name(process: &ProcessBytes) -> String {
    match (process.pid, process.name.text().as_str()) {
        (0, _) => process.words(),
        (pid, "") => pid.to_string(),
        (pid, name) => format!("{pid} {}", printable(name, 16)),
    }
}
