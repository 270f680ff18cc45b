//! Reports the trial of a command: how the command ended, and by which routes its calls reached the library.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use base::api::Api;
use base::api::FIRST_RUNTIME_API;
use journal::format::Route;
use serde_json::{Value, json};

use super::bypass::{self, process};
use super::probe::Driver;
use super::report::Findings;
use super::trial::{Seen, Trial};
use crate::analysis::job::Job;
use crate::analysis::names::api_name;
use crate::render::format::{self, count};
use crate::render::verdict_lines::verdict;

/// The most processes that get a row of their own. The JSON lists all processes.
const MOST_PROCESSES: usize = 8;
/// `Api` numbers from this one on stand for functions that are not part of CUDA.
const FIRST_OTHER_API: u16 = 300;

fn route_name(route: Route) -> &'static str {
    match route {
        Route::Dlsym => "dlsym",
        Route::Dlvsym => "dlvsym",
        Route::GetProcAddress => "cuGetProcAddress",
        Route::EntryPoint => "cudaGetDriverEntryPoint",
    }
}

/// How the calls of one process reached the library.
struct Ways {
    runtime_calls: u64,
    driver_calls: u64,
    plugged_calls: u64,
    /// APIs whose functions were called but never looked up: the loader bound the process to the exported symbols.
    direct: Vec<String>,
    /// How many functions each kind of look-up (such as `dlsym`) handed out, if any.
    handed_out: Vec<(Route, u64)>,
}

impl Ways {
    fn of_job(job: &Job) -> Ways {
        let routes = &job.header.routes;
        let mut ways = Ways {
            runtime_calls: 0,
            driver_calls: 0,
            plugged_calls: 0,
            direct: Vec::new(),
            handed_out: Route::ALL
                .into_iter()
                .zip(routes.iter().map(|handed_out| handed_out.times))
                .filter(|(_, times)| *times > 0)
                .collect(),
        };
        for (&api, totals) in &job.ledger.apis {
            match api {
                0..FIRST_RUNTIME_API => ways.driver_calls += totals.calls,
                FIRST_RUNTIME_API..FIRST_OTHER_API => ways.runtime_calls += totals.calls,
                _ if matches!(
                    Api::from_number(api),
                    Some(Api::vramshim_torch_alloc | Api::vramshim_torch_free)
                ) =>
                {
                    ways.plugged_calls += totals.calls;
                }
                _ => {}
            }
            if api < FIRST_OTHER_API && !routes.iter().any(|handed_out| handed_out.has(api)) {
                ways.direct.push(api_name(api));
            }
        }
        ways
    }

    fn text(&self) -> String {
        let mut calls = Vec::new();
        for (number, what) in [
            (self.runtime_calls, "of the runtime"),
            (self.driver_calls, "of the driver"),
            (self.plugged_calls, "of PyTorch's pluggable allocator"),
        ] {
            if number > 0 {
                calls.push(format!("{} {what}", count(number)));
            }
        }
        let calls = if calls.is_empty() {
            "no calls for memory".to_owned()
        } else {
            format!("calls: {}", calls.join(", "))
        };
        let mut ways: Vec<String> = Vec::new();
        if !self.direct.is_empty() {
            ways.push(format!("direct symbol ({})", some_of(&self.direct)));
        }
        let look_ups = self.handed_out.iter();
        ways.extend(look_ups.map(|(route, times)| format!("{} {}", route_name(*route), format::times(*times))));
        if ways.is_empty() {
            calls
        } else {
            format!("{calls}; ways: {}", ways.join(", "))
        }
    }
}

fn some_of(names: &[String]) -> String {
    const MOST_NAMES: usize = 6;
    let shown = names
        .iter()
        .take(MOST_NAMES)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    match names.len().checked_sub(MOST_NAMES) {
        Some(more @ 1..) => format!("{shown} and {more} more"),
        _ => shown,
    }
}

/// A text about the runtime that the process used; `None` if the files that the process mapped do not show it.
fn runtime(ways: &Ways, seen: Option<&Seen>) -> Option<String> {
    let seen = seen.filter(|seen| !seen.drivers.is_empty() || !seen.runtimes.is_empty())?;
    if ways.runtime_calls > 0 || !seen.runtimes.is_empty() {
        let paths: Vec<&str> = seen.runtimes.iter().map(String::as_str).collect();
        let called = if ways.runtime_calls > 0 {
            "dynamic"
        } else {
            "mapped, not called"
        };
        return (!paths.is_empty()).then(|| format!("{called}, {}", paths.join(" and ")));
    }
    let looked_up = ways.handed_out.iter().any(|(route, _)| *route == Route::GetProcAddress);
    Some(if looked_up {
        "no library of its own: it is linked statically, or only the driver is used".into()
    } else {
        "none: only the driver is used".into()
    })
}

pub fn check(findings: &mut Findings, trial: &Trial, driver: Option<&Driver>, moment: u64) {
    ended(findings, trial, moment);
    deaths(findings, trial);
    for error in &trial.unreadable {
        findings.warning("trial", error, "", "");
    }
    for job in trial.jobs.iter().take(MOST_PROCESSES) {
        let ways = Ways::of_job(job);
        let seen = trial.seen.get(&job.header.pid);
        let mut text = ways.text();
        if let Some(runtime) = runtime(&ways, seen) {
            text += &format!("; runtime: {runtime}");
        }
        findings.ok(
            "routes",
            text,
            process(job.header.pid, &job.header.command_line.join(" ")),
        );
    }
    if trial.jobs.len() > MOST_PROCESSES {
        let more = trial.jobs.len() - MOST_PROCESSES;
        findings.ok(
            "routes",
            format!("{more} more processes wrote journals (--json lists all)"),
            "",
        );
    }
    let before = findings.0.len();
    bypass::check(findings, trial, driver);
    if trial.jobs.is_empty() && findings.0.len() == before {
        let found = if trial.seen.values().all(|seen| seen.drivers.is_empty()) {
            "the command did not load the driver in this time"
        } else {
            "the command loaded the driver, but asked for no memory in this time"
        };
        findings.note(
            "routes",
            found,
            "Its calls cannot be judged: let it run longer (--for 60s), or give a command that uses CUDA.",
            "",
        );
    }
}

fn ended(findings: &mut Findings, trial: &Trial, moment: u64) {
    let last = trial.last_line_written.as_ref();
    let last = last.map_or_else(String::new, |line| {
        format!("; its last line: {}", format::printable(line, 200))
    });
    match trial.ended {
        None => {
            findings.ok(
                "trial",
                format!("ran for {} and was ended", format::duration(moment)),
                "",
            );
        }
        Some(status) if status.success() => {
            findings.ok("trial", "ran to its end (exit 0)", "");
        }
        Some(status) => match status.signal() {
            Some(signal) => {
                findings.problem(
                    "trial",
                    format!("it died of signal {signal}{last}"),
                    "Run it without the library; if it works then, report a bug of vramshim.",
                    "",
                );
            }
            None => {
                findings.warning(
                    "trial",
                    format!("it failed ({}){last}", exit(status)),
                    "Run it by itself to see its output.",
                    "",
                );
            }
        },
    }
}

/// Why requests failed after which the command ended, as `vramshim why` says it.
fn deaths(findings: &mut Findings, trial: &Trial) {
    let died = trial.jobs.iter().filter(|job| job.finding().fatal);
    for job in died.take(MOST_PROCESSES) {
        let Some(why) = verdict(job).and_then(|lines| Some(lines.first()?.to_string())) else {
            continue;
        };
        let advice = "vramshim run keeps the journal, and vramshim why then says what to do.";
        let process = process(job.header.pid, &job.header.command_line.join(" "));
        findings.note("trial", why, advice, process);
    }
}

fn exit(status: ExitStatus) -> String {
    status
        .code()
        .map_or_else(|| status.to_string(), |code| format!("exit {code}"))
}

pub fn json(trial: &Trial) -> Value {
    let process = |number: u32| {
        let job = trial.jobs.iter().find(|job| job.header.pid == number);
        let seen = trial.seen.get(&number);
        let ways = job.map(Ways::of_job);
        let handed_out: serde_json::Map<String, Value> = ways
            .iter()
            .flat_map(|ways| &ways.handed_out)
            .map(|(route, times)| (route_name(*route).to_owned(), json!(times)))
            .collect();
        json!({
            "pid": number,
            "command": match (job, seen) {
                (Some(job), _) => job.header.command_line.join(" "),
                (None, Some(seen)) => seen.command.clone(),
                (None, None) => String::new(),
            },
            "journal": job.is_some(),
            "strategy": job.map(|job| &job.header.strategy),
            "runtime_calls": ways.as_ref().map(|ways| ways.runtime_calls),
            "driver_calls": ways.as_ref().map(|ways| ways.driver_calls),
            "pluggable_allocator_calls": ways.as_ref().map(|ways| ways.plugged_calls),
            "direct": ways.as_ref().map(|ways| &ways.direct),
            "handed_out": handed_out,
            "unknown_frees": job.map(|job| job.header.unknown_frees),
            "library_mapped": seen.map(|seen| seen.library),
            "drivers": seen.map(|seen| &seen.drivers),
            "runtimes": seen.map(|seen| &seen.runtimes),
            "layers": seen.map(|seen| &seen.layers),
            "held": seen.map(|seen| &seen.holds),
        })
    };
    let mut numbers: Vec<u32> = trial.jobs.iter().map(|job| job.header.pid).collect();
    numbers.extend(
        trial
            .seen
            .keys()
            .filter(|number| !trial.jobs.iter().any(|job| job.header.pid == **number)),
    );
    json!({
        "exit_status": trial.ended.and_then(|status| status.code()),
        "signal": trial.ended.and_then(|status| status.signal()),
        "ended_by_itself": trial.ended.is_some(),
        "processes": numbers.into_iter().map(process).collect::<Value>(),
    })
}
