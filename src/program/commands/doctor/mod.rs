//! `vramshim doctor`: checks what would happen to a job on this machine, before it starts.
//!
//! Each check is a file and adds its findings to the list (`report`). Calls that may crash or hang are made in child
//! processes: `probe` runs in a child, and `ask` starts it. `trial` runs the user's command
//! for a limited time; `routes` and `bypass` report what the trial showed. `assumptions` asks the driver what the
//! strategies assume, and `stored` reads the answers again. `forecast` says what the strategy
//! will do here. `book` compares the books of a layer and of the library.

mod accounts;
mod ask;
mod assumptions;
mod book;
mod bypass;
mod command;
mod driver;
mod folder;
mod forecast;
mod layers;
mod library;
mod machine;
mod probe;
mod report;
mod routes;
mod settings;
mod stored;
mod trial;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use config::{Config, parse_duration};
use serde_json::Value;

use self::report::{Findings, Page};
use self::trial::Trial;
use crate::failure::Failure;
use crate::launch::environment::Environment;
use crate::launch::library::find_library;
use crate::launch::options::JobOptions;
use crate::launch::processes;
use crate::render::format;
use crate::say::say;
pub use driver::ask_driver;
pub use probe::{COMMAND as PROBE, Device as DriverDevice, Probe};

// Each paragraph is one line, because clap wraps lines to the width of the terminal.
const EXAMPLES: &str = "\
Examples:
  vramshim doctor                                   # the machine, the driver, the settings
  vramshim doctor --for 60s -- python train.py      # also how the command's calls reach the library
  vramshim doctor --sim 24GiB -- python train.py    # no GPU needed
  vramshim doctor --json | jq '.findings[] | select(.severity != \"ok\")'

The command runs under the library, with its journals in a temporary folder and an empty standard input. After the time of \
--for it is ended with all processes that it started. Until then it does its real work, so give a command that may be interrupted.

Exit codes: 0 nothing worse than a note, 1 doctor itself failed, 2 wrong usage, 3 warnings, 4 problems. With --assumptions or \
--book: 3 if a strategy does without something, or the books do not agree; 4 if the driver does not answer.";

/// The exit codes of `--assumptions` and `--book`.
const FALLS_BACK: u8 = 3;
const DRIFTS: u8 = 3;
const NO_ANSWER: u8 = 4;

const TIME_OF_THE_DRIVER: Duration = Duration::from_secs(30);
const TIME_OF_A_QUESTION: Duration = Duration::from_secs(10);

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Doctor {
    #[command(flatten)]
    options: JobOptions,

    /// Print JSON: every finding, what the driver answered, what COMMAND did
    #[arg(long)]
    json: bool,

    /// How long COMMAND may run, such as 30s or 2min
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = duration)]
    moment: Duration,

    /// How long the driver may take to answer, such as 30s or 2min [default: 30s; with --assumptions 10s a question]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,

    /// Ask the driver whether it does what the strategies assume, and store the answers for later jobs
    #[arg(long, conflicts_with_all = ["command", "moment"])]
    assumptions: bool,

    /// Take memory by each road, give it back, and compare what the next layer counts (cuMemGetInfo) with the ledger
    #[arg(long, conflicts_with_all = ["command", "moment", "assumptions"])]
    book: bool,

    /// A command to try, with its arguments; it runs for the time of --for
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    parse_duration(text).ok_or("a number with a unit (ms, s, m or min, h), such as 30s")
}

impl Doctor {
    pub fn examine(self) -> Result<(), Failure> {
        if self.assumptions {
            return self.ask_assumptions();
        }
        if self.book {
            return self.compare_books();
        }
        let mut findings = Findings::default();
        let (environment, library) = self.environment(&mut findings)?;
        processes::take_charge();
        let examined = self.check_all(&mut findings, &environment, library);
        if let Some(signal) = processes::interrupted() {
            processes::end_by(signal);
        }
        let (driver, forecast, trial) = examined;
        let worst = findings.worst();
        let shown = if self.json {
            report::json(&Page {
                findings: &findings.0,
                worst,
                driver,
                forecast,
                trial: trial.as_ref().map_or(Value::Null, routes::json),
            })
        } else {
            report::table(&findings)
        };
        shown.map_err(Failure::unwritten)?;
        match worst.exit_code() {
            0 => Ok(()),
            code => Err(Failure::answer(code)),
        }
    }

    fn ask_assumptions(&self) -> Result<(), Failure> {
        // What is wrong with the library does not matter here.
        let (environment, _) = self.environment(&mut Findings::default())?;
        let limit = self.timeout.unwrap_or(TIME_OF_A_QUESTION);
        processes::take_charge();
        assumptions::announce(limit);
        let done = assumptions::examine(&environment, limit, self.json);
        match processes::interrupted() {
            Some(signal) => processes::end_by(signal),
            None => done,
        }
    }

    fn compare_books(&self) -> Result<(), Failure> {
        let mut findings = Findings::default();
        let (environment, is_found) = self.environment(&mut findings)?;
        if !is_found {
            let why = findings.0.first().map_or("no library", |finding| &finding.found);
            return Err(Failure::failed(why));
        }
        processes::take_charge();
        let done = book::examine(&environment, self.timeout.unwrap_or(TIME_OF_THE_DRIVER), self.json);
        match processes::interrupted() {
            Some(signal) => processes::end_by(signal),
            None => done,
        }
    }

    /// The job's environment, and whether the library was found.
    fn environment(&self, findings: &mut Findings) -> Result<(Environment, bool), Failure> {
        let mut variables = self.options.variables()?;
        let mut stand_ins = Vec::new();
        if let Some((simulator, own)) = self.options.simulator()? {
            variables.extend(own);
            stand_ins = simulator.preloads();
        }
        let library = match find_library(self.options.library.as_deref()) {
            Ok(library) => {
                variables.extend(self.options.for_python(&library)?);
                Some(library)
            }
            Err(failure) => {
                findings.problem(
                    "library",
                    failure.message(),
                    "Build it (scripts/build), or give its path.",
                    "",
                );
                None
            }
        };
        let found = library.is_some();
        Ok((Environment::new(variables, library, stand_ins), found))
    }

    fn check_all(
        &self,
        findings: &mut Findings,
        environment: &Environment,
        found: bool,
    ) -> (Option<probe::Driver>, Vec<forecast::Forecast>, Option<Trial>) {
        let timeout = self.timeout.unwrap_or(TIME_OF_THE_DRIVER);
        let (config, errors) = Config::read(|name| environment.get(name));
        let mut usable = found;
        if let Some(library) = &environment.library {
            usable = library::check(findings, environment, library, timeout);
        }
        layers::check(findings, environment);
        settings::check(findings, environment, &config, &errors, |error| {
            self.options.as_given(error)
        });
        settings::check_names(findings, std::env::vars_os().map(|(name, _)| name));
        folder::check(findings, &config);
        machine::check(findings, config.journal_max);
        let driver = driver::check(findings, environment, timeout);
        accounts::check(findings, &config, driver.as_ref());
        if let Some(driver) = &driver {
            settings::check_shared(findings, &config, driver);
            stored::check(findings, &config, driver);
        }
        let forecast = forecast::check(findings, environment, &config, driver.as_ref());
        let mut tried = None;
        if let Some(name) = self.command.first()
            && processes::interrupted().is_none()
            && command::check(findings, environment, name)
            && usable
        {
            tried = self.try_command(findings, environment);
        }
        if let Some(trial) = &tried {
            routes::check(findings, trial, driver.as_ref(), self.moment.as_nanos() as u64);
        }
        (driver, forecast, tried)
    }

    fn try_command(&self, findings: &mut Findings, environment: &Environment) -> Option<Trial> {
        if std::io::stderr().is_terminal() {
            let moment = format::duration(self.moment.as_nanos() as u64);
            say!("running the command for up to {moment}");
        }
        match trial::run(environment, &self.command, self.moment) {
            Ok(trial) => trial,
            Err(why) => {
                findings.problem("trial", format!("it cannot be tried: {why}"), "", "");
                None
            }
        }
    }
}
