//! The page of one job: a row for each rank, and the rank whose peak differs from that of the others.

use std::collections::BTreeSet;

use base::units::size;
use journal::reader::State;

use super::found::{Found, Head, Newest, job_name};
use super::frame::{escaped, failures, links, page, processes, table, text};
use super::node::now_ns;
use super::process::identity;
use super::summary::{Holding, Summary};
use crate::analysis::odd_one::odd_one;
use crate::analysis::rank::rank;
use crate::analysis::runs::runs;
use crate::render::format::{ended_in_words, time};
use crate::render::odd_process::odd_one as odd_words;

/// The most journals whose heads are looked at, the newest first.
const MOST_HEADS: usize = 4000;
/// The most bytes of journals that are read for the page, besides those that the metrics follow. That takes less than a
/// second.
const MOST_BYTES: u64 = 64 << 20;
/// The most processes that the page lists.
const MOST_ROWS: usize = 1000;

const TITLES: [&str; 11] = [
    "Rank",
    "Process",
    "Host",
    "State",
    " Live",
    " Peak",
    " Reserved",
    " Limit",
    " Failures",
    "Verdict of the last",
    "Pages",
];

/// The page of the job with this name; `None` if no process of it is found.
pub fn ranks(found: Vec<Found>, name: &str) -> Option<String> {
    let mut newest = Newest::of(found, MOST_HEADS);
    let told = newest.words();
    let mut ours = std::mem::take(&mut newest.read);
    ours.retain(|(_, head)| job_name(&head.header) == name);
    // Of a process with several journals, the one that the metrics follow counts, and a copy of the moment last.
    ours.sort_by_key(|(found, head)| (found.summary.is_none(), head.state == State::Dumped));
    let mut seen = BTreeSet::new();
    ours.retain(|(_, head)| seen.insert(identity(&head.header)));
    let job = ours.first()?.1.header.job.clone();
    let all = ours.len();
    ours.truncate(MOST_ROWS);
    // The metrics do not follow processes that ended long ago.
    let mut room = MOST_BYTES;
    for (found, _) in ours
        .iter_mut()
        .filter(|(found, head)| found.summary.is_none() && head.state != State::Running)
    {
        found.summary = Summary::read(&found.path, &mut room);
    }
    let mut body = format!(
        "<p><a href=\"../\">All processes</a>. As of {}. {}",
        time(now_ns()),
        escaped(&told)
    );
    if ours.len() < all {
        body += &format!(". {} of the {all} processes of the job are here", ours.len());
    }
    body += ". The page asks again every 15 seconds.</p>\n";
    for (number, run) in runs(ours, |(_, head)| head.span).into_iter().enumerate() {
        body += &one_run(number, run);
    }
    let name = if job.is_empty() {
        "Job without a name".to_owned()
    } else {
        format!("Job {}", base::text::printable(&job, 80))
    };
    Some(page(&name, &body))
}

/// The section of a run; the newest has the number 0.
fn one_run(number: usize, mut run: Vec<(Found, Head)>) -> String {
    // Ranks are numbers, if the launcher is one of those that are known.
    run.sort_by_cached_key(|(_, head)| {
        let rank = rank(&head.header);
        let number = rank.as_ref().and_then(|rank| rank.parse::<u64>().ok());
        (number.unwrap_or(u64::MAX), rank, head.header.pid)
    });
    let peaks = run.iter().enumerate().filter_map(|(place, (found, head))| {
        let summary = found.summary.as_ref().filter(|_| rank(&head.header).is_some())?;
        Some((place, summary.peak()))
    });
    let odd = odd_one(peaks.collect());
    let mut told = String::new();
    if let Some(odd) = &odd {
        let header = &run[odd.who].1.header;
        let rank = rank(header).map_or(String::new(), |rank| {
            format!(" (rank {})", base::text::printable(&rank, 12))
        });
        told = odd_words(odd, &format!("process {}{rank}", header.pid));
    }
    let is_odd = |place: usize| odd.as_ref().is_some_and(|odd| odd.who == place);
    let rows: String = run
        .iter()
        .enumerate()
        .map(|(place, (found, head))| row(found, head, is_odd(place)))
        .collect();
    let began_ns = run.iter().map(|(_, head)| head.span.0).min().unwrap_or(0);
    let running = run.iter().filter(|(_, head)| head.state == State::Running).count();
    let title = format!("Run of {}: {}, {running} running", time(began_ns), processes(run.len()));
    format!(
        "<section aria-labelledby=\"run{number}\"><h2 id=\"run{number}\">{title}</h2>\n<p>{}</p>\n{}\n</section>\n",
        escaped(&told),
        table(&title, &TITLES, &format!("<tbody>{rows}</tbody>"))
    )
}

fn row(found: &Found, head: &Head, is_odd: bool) -> String {
    let header = &head.header;
    let rank = rank(header).map_or_else(|| "-".to_owned(), |rank| text(&rank));
    let (class, mark) = match is_odd {
        true => (" class=\"odd\"", " <strong>(the odd one out)</strong>"),
        false => ("", ""),
    };
    let figures = match &found.summary {
        Some(summary) => figures(summary),
        None => "<td>-</td>".repeat(6),
    };
    format!(
        "<tr{class}><td>{rank}{mark}</td><td>{}</td><td>{}</td><td>{}</td>{figures}<td>{}</td></tr>\n",
        header.pid,
        text(&header.host),
        state(head.state),
        links("../", &found.name, head.state),
    )
}

/// Whether the process runs, or how it ended.
fn state(state: State) -> String {
    match state {
        State::Running => "runs".to_owned(),
        State::Dumped => "copy of a process that ran on".to_owned(),
        State::Exited(_) => format!("ended, {}", ended_in_words(state)),
        State::Killed => "killed or crashed, signal not known".to_owned(),
    }
}

/// The cells of a process about its memory and its failures. Each device has a line of its own.
fn figures(summary: &Summary) -> String {
    let several = summary.of_devices().count() > 1;
    let cell = |value: fn(&Holding) -> String| {
        let line = |holding: &Holding| match several {
            true => format!("{}: {}", holding.device, value(holding)),
            false => value(holding),
        };
        let lines: Vec<String> = summary.of_devices().map(line).collect();
        format!("<td class=\"number\">{}</td>", lines.join("<br>"))
    };
    let limit = |holding: &Holding| holding.limit.map_or_else(|| "none".to_owned(), size);
    [
        cell(|holding| size(holding.live)),
        cell(|holding| size(holding.peak)),
        cell(|holding| size(holding.reserved)),
        cell(limit),
        failures(summary.failures),
        format!("<td>{}</td>", summary.verdict().unwrap_or("-")),
    ]
    .concat()
}
