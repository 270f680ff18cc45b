//! The first line about a job: how it ended for want of memory, or how far from its limit it stayed.

use journal::reader::State;

use crate::analysis::job::Job;
use crate::analysis::names::api_name;
use crate::analysis::out_of_memory::OutOfMemory;
use crate::render::format::{count, duration, size, times};

/// `None` if the job used no device.
pub fn verdict(job: &Job) -> Option<String> {
    let verdict = match job.ledger.out_of_memory.last() {
        Some(last) => failed(job, last),
        None => distance(job)?,
    };
    Some(match job.lost {
        0 => verdict,
        lost => format!(
            "Not certain, because {} events were lost. In what is left: {verdict}",
            count(lost)
        ),
    })
}

/// The last request that failed for lack of memory, and what the job did after it.
fn failed(job: &Job, last: &OutOfMemory) -> String {
    let all = &job.ledger.out_of_memory;
    let tries = match last.tries {
        1 => String::new(),
        tries => format!(" (asked {}, counted once)", times(tries)),
    };
    let why = match last.by_limit {
        true => ", refused by the limit",
        false => "",
    };
    let request = format!(
        "{} of {} on device {}{why}{tries} at {}",
        api_name(last.api),
        size(last.requested),
        last.device,
        duration(last.time_ns)
    );
    let held = format!("; the process held {} there", size(last.held));
    match (last.went_on, job.state) {
        (0, State::Running) => format!("Out of memory: {request}; no allocation since{held}"),
        (0, _) => format!("Out of memory: {request}; the job allocated nothing after it{held}"),
        (went_on, _) => {
            let number = match all.count {
                1 => "once".to_owned(),
                several => times(several),
            };
            let allocations = match went_on {
                1 => "1 allocation".to_owned(),
                several => format!("{} allocations", count(several)),
            };
            format!(
                "Out of memory {number}, and the job went on: the last was {request}, then {allocations} followed{held}"
            )
        }
    }
}

/// How far the fullest device stayed from its limit or its size.
fn distance(job: &Job) -> Option<String> {
    let devices = job.devices().into_iter().filter_map(|(ordinal, entry, ledger)| {
        let (entry, peak) = (entry?, ledger?.all.reserved.peak);
        let (room, what) = match entry.limit {
            Some(limit) if limit < entry.total_memory => (limit, "its limit"),
            _ => (entry.total_memory, "the device's memory"),
        };
        (room > 0).then_some((peak as f64 / room as f64, ordinal, peak, room, what))
    });
    let (_, ordinal, peak, room, what) = devices.max_by(|one, other| one.0.total_cmp(&other.0))?;
    Some(match room.checked_sub(peak) {
        Some(left) => format!(
            "No request failed for lack of memory: at most {} of device {ordinal} reserved, {} below {what}",
            size(peak),
            size(left)
        ),
        None => format!(
            "No request failed for lack of memory: at most {} reserved on device {ordinal}, more than {what} ({})",
            size(peak),
            size(room)
        ),
    })
}
