//! `vramshim doctor --assumptions`: asks the driver whether it does what the strategies assume, and keeps the answers
//! for later jobs.
//!
//! The questions are the probes of `tests/assumptions`, a program of their own. Each probe runs in a process of its own
//! with a time limit, so that a driver that hangs is an answer.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use base::text::shown;
use base::verdict::{Outcome, Verdict};
use config::Config;
use policy::Strategy;
use policy::needs::FallBack;
use serde::{Deserialize, Serialize};

use super::driver;
use super::forecast::subject;
use crate::commands;
use crate::failure::Failure;
use crate::launch::environment::Environment;
use crate::launch::library::find_probes;
use crate::launch::processes::{End, ask};
use crate::render::format::{duration, printable, strong};
use crate::render::progress;
use crate::render::text_or_json::Page;
use crate::say::say;

/// How long starting and ending a probe may take, beyond its limit.
const MARGIN: Duration = Duration::from_secs(3);
/// The most characters of one figure or source that are shown.
const MOST_CHARACTERS: usize = 1000;

/// The first line of the probes.
#[derive(Deserialize)]
struct Opening {
    device: String,
    outcome: String,
}

#[derive(Serialize, Deserialize)]
struct Probed {
    name: String,
    outcome: String,
    needed: bool,
    figures: String,
    assumption: String,
    source: String,
}

#[derive(Serialize)]
struct Consequence {
    strategy: &'static str,
    /// `null` if everything holds that the strategy needs.
    instead: Option<&'static str>,
    why: Option<String>,
}

#[derive(Serialize)]
struct Answers<'a> {
    device: &'a str,
    assumptions: &'a [Probed],
    strategies: &'a [Consequence],
    /// The file that later jobs read; `null` if it could not be written.
    stored: Option<String>,
}

pub fn examine(environment: &Environment, limit: Duration, as_json: bool) -> Result<(), Failure> {
    let of_one = duration(limit.as_nanos() as u64);
    let asking =
        format!("asking the driver for about a minute, {of_one} if it hangs. No job should use the device meanwhile");
    let asking = progress::spinner(asking);
    let probes = find_probes()?;
    let no_answer = |why: &str| Failure::new(super::NO_ANSWER, why);
    let driver = driver::ask_driver(environment, limit.max(super::TIME_OF_THE_DRIVER));
    let driver = driver.map_err(|failure| no_answer(failure.message()))?;
    let subject = subject(&driver, 0).ok_or_else(|| no_answer("the driver does not say what it is"))?;
    let mut command = Command::new(&probes);
    environment.apply(&mut command, &driver::layers_of(environment));
    command.args(["--json", "--limit", &limit.as_secs().max(1).to_string()]);
    // Every probe may take all of its time.
    let most = (limit + MARGIN) * 200;
    let answer = ask(&mut command, most).map_err(|error| Failure::failed(format!("{}: {error}", shown(&probes))))?;
    drop(asking);
    let opening = answer.states::<Opening>().next();
    let (End::By(_), Some(opening)) = (answer.end, opening) else {
        return Err(Failure::failed(answer.failure("the program of the probes", "", most)));
    };
    let answers: Vec<Probed> = answer.states().collect();
    if Outcome::parse(&opening.outcome) != Some(Outcome::Holds) {
        return Err(no_answer(&format!("the driver does not answer: {}", opening.device)));
    }
    let verdict = verdict_of(&answers);
    let stored = match Config::read(|name| environment.get(name)).0.verdicts {
        Some(folder) => verdict
            .write(&folder, &subject)
            .map_err(|error| format!("{}: {error}", shown(&folder))),
        None => Err("neither XDG_STATE_HOME nor HOME is set".to_owned()),
    };
    if let Err(problem) = &stored {
        say!("the answers were not stored, so no job will know them: {problem}");
    }
    let consequences = consequences(&verdict);
    let told = Answers {
        device: &opening.device,
        assumptions: &answers,
        strategies: &consequences,
        stored: stored.ok().map(|path| path.to_string_lossy().into_owned()),
    };
    commands::print(as_json.then_some(&told), |page| show(page, &told))?;
    if consequences.iter().any(|consequence| consequence.instead.is_some()) {
        Err(Failure::answer(super::DIFFERS))
    } else {
        Ok(())
    }
}

fn verdict_of(answers: &[Probed]) -> Verdict {
    let outcome = |answer: &Probed| Some((answer.name.clone(), Outcome::parse(&answer.outcome)?));
    Verdict {
        asked_s: UNIX_EPOCH.elapsed().map_or(0, |now| now.as_secs()),
        outcomes: answers.iter().filter_map(outcome).collect(),
    }
}

fn consequences(verdict: &Verdict) -> Vec<Consequence> {
    let of = |&strategy: &Strategy| {
        let fall_back = FallBack::of(strategy, verdict);
        Consequence {
            strategy: strategy.name(),
            instead: fall_back.as_ref().map(|fall_back| fall_back.instead.words()),
            why: fall_back.map(|fall_back| fall_back.why()),
        }
    };
    Strategy::ALL.iter().map(of).collect()
}

fn words(outcome: &str) -> &str {
    match Outcome::parse(outcome) {
        Some(Outcome::Differs) => "does not hold",
        Some(Outcome::Hangs) => "does not hold (hangs)",
        _ => outcome,
    }
}

fn show(page: &mut Page, told: &Answers) {
    page.line(format!("{}\n", printable(told.device, MOST_CHARACTERS)));
    for answer in told.assumptions {
        let mark = if answer.needed { " *" } else { "" };
        page.line(format!("{}: {}{mark}", strong(words(&answer.outcome)), answer.name));
        page.line(format!("    {}", printable(&answer.assumption, MOST_CHARACTERS)));
        for line in answer.figures.lines().filter(|line| !line.is_empty()) {
            page.line(format!("    seen: {}", printable(line, MOST_CHARACTERS)));
        }
        page.line(format!("    source: {}", printable(&answer.source, MOST_CHARACTERS)));
    }
    page.line("\n* a strategy needs it. What becomes of the strategies here:");
    for Consequence { strategy, instead, why } in told.strategies {
        page.line(match (instead, why) {
            (Some(instead), Some(why)) => format!("    {strategy} {instead}: {why}"),
            _ => format!("    {strategy}: all that it needs holds, as far as it could be asked"),
        });
    }
    if let Some(path) = &told.stored {
        page.line(format!("\nStored for later jobs: {}", shown(Path::new(path))));
    }
}
