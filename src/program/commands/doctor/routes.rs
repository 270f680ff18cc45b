//! Tries the command, and reports how it ended, and by which routes its calls reached the library.

use std::io::{self, IsTerminal};
use std::os::unix::process::ExitStatusExt;

use journal::format::Route;
use serde_json::json;

use super::report::Findings;
use super::trial::{Process, Trial};
use super::ways::{Ways, route_name};
use super::{Setup, bypass, trial};
use crate::render::format::{duration, printable};
use crate::render::verdict_lines::verdict;
use crate::say::say;

/// The most processes that get a row of their own. The JSON lists all processes.
const MOST_PROCESSES: usize = 8;

/// A text about the runtime that the process used; `None` if the files that the process mapped do not show it.
fn runtime(process: &Process, ways: &Ways) -> Option<String> {
    let paths: Vec<&str> = process.seen.runtimes.iter().map(String::as_str).collect();
    let paths = paths.join(" and ");
    match ways.runtime_calls {
        0 if !paths.is_empty() => Some(format!("mapped, not called, {paths}")),
        0 if process.seen.drivers.is_empty() => None,
        0 if ways.handed_out.contains_key(route_name(Route::GetProcAddress)) => {
            Some("no library of its own: it is linked statically, or only the driver is used".into())
        }
        0 => Some("none: only the driver is used".into()),
        _ => (!paths.is_empty()).then(|| format!("dynamic, {paths}")),
    }
}

pub fn check(told: &mut Findings, setup: &mut Setup) {
    if setup.command.is_empty() || !setup.is_usable {
        return;
    }
    let moment = duration(setup.moment.as_nanos() as u64);
    if io::stderr().is_terminal() {
        say!("running the command for up to {moment}");
    }
    let trial = match trial::run(setup.environment, setup.command, setup.moment) {
        Ok(Some(trial)) => trial,
        Ok(None) => return,
        Err(why) => {
            told.problem(format!("it cannot be tried: {why}"));
            return;
        }
    };
    ended(told, &trial, &moment);
    for error in &trial.unreadable {
        told.warning(error);
    }
    told.begin("routes");
    for (process, ways) in trial
        .processes
        .iter()
        .filter_map(|one| Some((one, one.ways.as_ref()?)))
        .take(MOST_PROCESSES)
    {
        let runtime = runtime(process, ways).map(|runtime| format!("; runtime: {runtime}"));
        told.ok(ways.text() + &runtime.unwrap_or_default()).at(process.place());
    }
    if let Some(more @ 1..) = trial.jobs().count().checked_sub(MOST_PROCESSES) {
        told.ok(format!("{more} more processes wrote journals (--json lists all)"));
    }
    let before = told.list.len();
    told.begin("bypass");
    bypass::check(told, &trial, setup.devices());
    if trial.jobs().next().is_none() && told.list.len() == before {
        let is_loaded = trial.processes.iter().any(|process| !process.seen.drivers.is_empty());
        told.note(if is_loaded {
            "the command loaded the driver, but asked for no memory in this time"
        } else {
            "the command did not load the driver in this time"
        })
        .advise("Its calls cannot be judged: let it run longer (--for 60s), or give a command that uses CUDA.")
        .of("routes");
    }
    setup.trial = json!(trial);
}

/// How the command ended, and why requests failed after which a process ended, as `vramshim why` says it.
fn ended(told: &mut Findings, trial: &Trial, moment: &str) {
    let last = trial.last_line_written.as_ref();
    let last = last.map_or_else(String::new, |line| format!("; its last line: {}", printable(line, 200)));
    match trial.ended.map(|status| (status, status.code(), status.signal())) {
        None => told.ok(format!("ran for {moment} and was ended")),
        Some((_, Some(0), _)) => told.ok("ran to its end (exit 0)"),
        Some((_, Some(code), _)) => told
            .warning(format!("it failed (exit {code}){last}"))
            .advise("Run it by itself to see its output."),
        Some((_, None, Some(signal))) => told
            .problem(format!("it died of signal {signal}{last}"))
            .advise("Run it without the library; if it works then, report a bug of vramshim."),
        Some((status, None, None)) => told.warning(format!("it failed ({status}){last}")),
    };
    let died = trial.jobs().filter(|(_, job)| job.finding().fatal);
    for (process, job) in died.take(MOST_PROCESSES) {
        if let Some(why) = verdict(job).first() {
            told.note(why.to_string())
                .advise("vramshim run keeps the journal, and vramshim why then says what to do.")
                .at(process.place());
        }
    }
}
