//! Reads the journals of a report. The more there are, the less detail each gets, so that the file stays small.

use std::path::{Path, PathBuf};

use super::data::{self, Process, Report};
use super::interned::Interned;
use super::read_process::{self, Detail};
use crate::analysis::job::LoadError;
use crate::analysis::runs::{median, runs};

/// The first processes of a report get more detail than the others.
const FIRST: usize = 4;

/// Reads the journals. Journals that cannot be read are named in `unread`, and the others are in the report. `progress`
/// is called with a journal, and with the bytes read and the bytes to read of it.
pub fn gather(
    journals: &[PathBuf],
    against: Option<&Path>,
    mut progress: impl FnMut(&Path, u64, u64),
) -> Result<Report, Vec<LoadError>> {
    let mut interned = Interned::default();
    let detail = Detail::each_of(journals.len() + usize::from(against.is_some()));
    let mut read = |path: &Path, detail: &Detail, interned: &mut Interned| -> Result<Process, LoadError> {
        read_process::read(path, detail, interned, |done, all| progress(path, done, all))
    };
    let (mut processes, mut unread, mut early) = (Vec::new(), Vec::new(), Vec::new());
    for path in journals {
        match read(path, &detail, &mut interned) {
            Ok(process) => processes.push((path.clone(), process)),
            Err(error) if error.is_too_early() => early.push(error),
            Err(error) => unread.push(error),
        }
    }
    unread.append(&mut early);
    if processes.is_empty() {
        return Err(unread);
    }
    let unplayed = Detail {
        most_played: 0,
        ..detail
    };
    let against = against.map(|path| read(path, &unplayed, &mut interned)).transpose();
    let against = against.map_err(|error| vec![error])?.map(Box::new);
    let first_because = order(&mut processes);
    if processes.len() > FIRST {
        let most_played = Detail::each_of(FIRST).most_played;
        let full = Detail {
            most_played,
            ..Detail::each_of(2 * FIRST)
        };
        for (path, process) in processes.iter_mut().take(FIRST) {
            // A journal that was read a moment ago is kept as it was read, if it cannot be read again.
            if let Ok(again) = read(path, &full, &mut interned) {
                let run = process.run;
                *process = Process { run, ..again };
            }
        }
    }
    Ok(Report {
        format: data::FORMAT,
        made_by: env!("CARGO_PKG_VERSION"),
        processes: processes.into_iter().map(|(_, process)| process).collect(),
        first_because,
        unread: unread.iter().map(LoadError::to_string).collect(),
        against,
        stacks: interned.lists(),
    })
}

/// Puts the newest run at the beginning, and of each run the process to look at first: one that a failure ended, else the
/// one whose peak is furthest from the middle of the run's peaks. Returns why the first process is the first.
fn order(processes: &mut Vec<(PathBuf, Process)>) -> Option<String> {
    let runs = runs(std::mem::take(processes), |(_, process)| {
        let began_ns = process.started_unix_ns;
        (began_ns, began_ns.saturating_add(process.duration_ns))
    });
    let several = runs.len() > 1;
    let mut because = None;
    for (number, mut run) in runs.into_iter().enumerate() {
        let why = order_run(&mut run);
        if number == 0 {
            because = if several {
                let newest = why.map(|why| format!("it is of the newest run, and {why}"));
                newest.or_else(|| Some("it is the newest run".to_owned()))
            } else {
                why
            };
        }
        run.iter_mut().for_each(|(_, process)| process.run = number);
        processes.append(&mut run);
    }
    because
}

/// Returns why the first process is the first; `None` if there is one.
fn order_run(processes: &mut [(PathBuf, Process)]) -> Option<String> {
    let rank = |process: &Process| process.rank.as_ref().and_then(|rank| rank.parse::<u64>().ok());
    let middle = median(processes.iter().map(|(_, process)| process.peak_bytes).collect());
    let far = |process: &Process| process.peak_bytes.abs_diff(middle);
    processes.sort_by_key(|(_, process)| {
        let failed_ns = process.failed_ns.filter(|_| process.ended_by_failure);
        (
            // Of failures, the earliest came before what followed from it in other ranks.
            failed_ns.map_or(u64::MAX, |failed_ns| process.started_unix_ns.saturating_add(failed_ns)),
            std::cmp::Reverse(far(process)),
            rank(process),
            process.pid,
        )
    });
    let (_, first) = processes.first()?;
    let share = far(first) as f64 / middle.max(1) as f64 * 100.0;
    match processes.len() {
        1 => None,
        _ if first.ended_by_failure => Some("it was the first that ran out of memory".to_owned()),
        _ if share >= 1.0 => Some(format!("its peak differs most from the median of all: by {share:.0} %")),
        _ => Some("all peaks are nearly the same, and its rank is the lowest".to_owned()),
    }
}
