//! Tries the command, and reports how it ended, and by which routes its calls reached the library.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::os::unix::process::ExitStatusExt;

use base::api::Api;
use base::api::FIRST_RUNTIME_API;
use journal::format::Route;
use serde::Serialize;
use serde_json::json;

use super::report::Findings;
use super::trial::{Process, Trial};
use super::{Setup, bypass, trial};
use crate::analysis::job::Job;
use crate::analysis::names::api_name;
use crate::render::format::{count, duration, printable, times};
use crate::render::verdict_lines::verdict;
use crate::say::say;

/// The most processes that get a row of their own. The JSON lists all processes.
const MOST_PROCESSES: usize = 8;
/// The most functions that are named.
const MOST_NAMES: usize = 6;
/// `Api` numbers from this one on stand for functions that are not part of CUDA.
const FIRST_OTHER_API: u16 = 300;

/// How the calls of one process reached the library.
#[derive(Default, Serialize)]
pub struct Ways {
    runtime_calls: u64,
    driver_calls: u64,
    pluggable_allocator_calls: u64,
    /// APIs whose functions were called but never looked up: the loader bound the process to the exported symbols.
    direct: Vec<String>,
    /// How many functions each kind of look-up (such as `dlsym`) handed out, if any.
    handed_out: BTreeMap<&'static str, u64>,
}

impl Ways {
    pub fn in_journal(job: &Job) -> Ways {
        let routes = &job.header.routes;
        let mut ways = Ways::default();
        for (route, handed_out) in Route::ALL.into_iter().zip(routes) {
            if handed_out.times > 0 {
                ways.handed_out.insert(route_name(route), handed_out.times);
            }
        }
        for (&api, totals) in &job.ledger.apis {
            match api {
                0..FIRST_RUNTIME_API => ways.driver_calls += totals.calls,
                FIRST_RUNTIME_API..FIRST_OTHER_API => ways.runtime_calls += totals.calls,
                _ => {
                    if let Some(Api::vramshim_torch_alloc | Api::vramshim_torch_free) = Api::from_number(api) {
                        ways.pluggable_allocator_calls += totals.calls;
                    }
                }
            }
            if api < FIRST_OTHER_API && !routes.iter().any(|handed_out| handed_out.has(api)) {
                ways.direct.push(api_name(api));
            }
        }
        ways
    }

    fn text(&self) -> String {
        let calls = [
            (self.runtime_calls, "of the runtime"),
            (self.driver_calls, "of the driver"),
            (self.pluggable_allocator_calls, "of PyTorch's pluggable allocator"),
        ];
        let calls = calls.into_iter().filter(|(number, _)| *number > 0);
        let calls: Vec<String> = calls
            .map(|(number, what)| format!("{} {what}", count(number)))
            .collect();
        let mut text = match calls.as_slice() {
            [] => "no calls for memory".to_owned(),
            calls => format!("calls: {}", calls.join(", ")),
        };
        let mut ways = Vec::new();
        if !self.direct.is_empty() {
            let mut names = self.direct[..self.direct.len().min(MOST_NAMES)].join(", ");
            if let Some(more @ 1..) = self.direct.len().checked_sub(MOST_NAMES) {
                names += &format!(" and {more} more");
            }
            ways.push(format!("direct symbol ({names})"));
        }
        ways.extend(
            self.handed_out
                .iter()
                .map(|(route, number)| format!("{route} {}", times(*number))),
        );
        if !ways.is_empty() {
            text += &format!("; ways: {}", ways.join(", "));
        }
        text
    }
}

fn route_name(route: Route) -> &'static str {
    match route {
        Route::Dlsym => "dlsym",
        Route::Dlvsym => "dlvsym",
        Route::GetProcAddress => "cuGetProcAddress",
        Route::EntryPoint => "cudaGetDriverEntryPoint",
    }
}

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
        if let Some(why) = verdict(job).and_then(|lines| Some(lines.first()?.to_string())) {
            told.note(why)
                .advise("vramshim run keeps the journal, and vramshim why then says what to do.")
                .at(process.place());
        }
    }
}
