//! The page that lists the processes of the node by job, and leads to the pages of jobs and processes.

use std::collections::BTreeMap;

use journal::reader::State;

use super::found::{Found, Head, Newest, job_name};
use super::frame::{escaped, failures, links, page, processes, table, text};
use super::node::now_ns;
use super::summary::Holding;
use crate::analysis::rank::rank;
use crate::render::format::{ended, time};

/// The most processes that the page lists, the newest first.
const MOST_ROWS: usize = 200;
/// The most problems that the page lists.
const MOST_PROBLEMS: usize = 20;

const TITLES: [&str; 7] = ["Process", "Strategy", "Started", "State", "Holds", " Failures", "Pages"];

/// Running processes come first, and then the newest.
type Place = (bool, u64);

fn place(head: &Head) -> Place {
    (head.state == State::Running, head.header.wall_start_ns)
}

/// The page. `problems` says which folders and journals cannot be read.
pub fn list(found: Vec<Found>, problems: &[String]) -> String {
    let newest = Newest::of(found, MOST_ROWS);
    let told = newest.words();
    let mut jobs: BTreeMap<String, Vec<(Found, Head)>> = BTreeMap::new();
    for (found, head) in newest.read {
        jobs.entry(head.header.job.clone()).or_default().push((found, head));
    }
    let mut groups: Vec<(Place, String)> = Vec::new();
    for mut listed in jobs.into_values() {
        listed.sort_by_key(|(_, head)| std::cmp::Reverse(place(head)));
        let Some((_, first)) = listed.first() else { continue };
        groups.push((place(first), group(first, &listed)));
    }
    groups.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
    let rows: String = groups.into_iter().map(|(_, group)| group).collect();
    let body = format!(
        "<section aria-labelledby=\"processes\"><h2 id=\"processes\">Processes</h2>\n<p>As of {}. {}. The page asks again \
         every 15 seconds.</p>\n{}{}\n</section>",
        time(now_ns()),
        escaped(&told),
        unreadable(problems),
        table("Processes", &TITLES, &rows)
    );
    page(&format!("GPU memory of {}", base::identity::host_name()), &body)
}

/// What cannot be read, as a list.
fn unreadable(problems: &[String]) -> String {
    if problems.is_empty() {
        return String::new();
    }
    let items: String = (problems.iter().take(MOST_PROBLEMS))
        .map(|problem| format!("<li>{}</li>", escaped(problem)))
        .collect();
    let more = match problems.len().saturating_sub(MOST_PROBLEMS) {
        0 => String::new(),
        more => format!("<li>{more} more</li>"),
    };
    format!("<p>Folders and journals that cannot be read, or not in full:</p>\n<ul>{items}{more}</ul>\n")
}

/// The rows of one job, below a row with its name.
fn group(first: &Head, listed: &[(Found, Head)]) -> String {
    let running = listed.iter().filter(|(_, head)| head.state == State::Running).count();
    let name = match first.header.job.as_str() {
        "" => "without a name".to_owned(),
        job => text(job),
    };
    let count = processes(listed.len());
    let rows: String = listed.iter().map(|(found, head)| row(found, head)).collect();
    format!(
        "<tbody><tr><th scope=\"rowgroup\" colspan=\"{}\">Job <a href=\"job/{}\">{name}</a>: {count}, {running} \
         running</th></tr>\n{rows}</tbody>\n",
        TITLES.len(),
        escaped(&job_name(&first.header)),
    )
}

/// Why the page does not say what a process holds.
fn unfollowed(state: State) -> &'static str {
    match state {
        State::Running => "not read yet",
        State::Dumped => "see the report: this is a copy",
        State::Exited(_) | State::Killed => "nothing, it ended",
    }
}

fn row(found: &Found, head: &Head) -> String {
    let header = &head.header;
    let rank = rank(header).map_or(String::new(), |rank| format!(", rank {}", text(&rank)));
    let (holds, failed) = match &found.summary {
        Some(summary) => {
            let holdings: Vec<String> = summary.holdings.iter().map(Holding::words).collect();
            (escaped(&holdings.join("; ")), failures(summary.failures))
        }
        None => (
            unfollowed(head.state).to_owned(),
            "<td class=\"number\">-</td>".to_owned(),
        ),
    };
    format!(
        "<tr><td>{} on {}{rank}</td><td>{}</td><td>{}</td><td>{}</td><td>{holds}</td>{failed}<td>{}</td></tr>\n",
        header.pid,
        text(&header.host),
        text(&header.strategy),
        time(header.wall_start_ns),
        ended(head.state),
        links("", &found.name, head.state),
    )
}
