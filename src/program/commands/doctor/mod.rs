//! `vramshim doctor`: checks what would happen to a job on this machine, before it starts.
//!
//! Each check is a file and adds its findings to the list (`report`). Calls that may crash or hang are made in child
//! processes: `probe` runs in a child, and `ask` starts it. `trial` runs the user's command for a limited time.
//! `assumptions` asks the driver what the strategies assume. `forecast` reads its answers again, and says what the strategy
//! will do here. `book` compares the books of a layer and of the library.

mod accounts;
mod ask;
mod assumptions;
mod book;
mod command;
mod driver;
mod folder;
mod forecast;
mod layers;
mod library;
mod machine;
mod probe;
mod report;
mod settings;
mod trial;

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use config::{Config, ConfigError, parse_duration};
use serde_json::{Value, json};

use self::report::Findings;
use crate::failure::Failure;
use crate::launch::environment::Environment;
use crate::launch::options::JobOptions;
use crate::launch::processes;
pub use driver::ask_driver;
pub use probe::{COMMAND as PROBE, Device as DriverDevice, Driver, Probe};

// Each paragraph is one line, because clap wraps lines to the width of the terminal.
const EXAMPLES: &str = "\
Examples:
  vramshim doctor                                   # machine and driver
  vramshim doctor --for 60s -- python train.py      # and a job, for a minute
  vramshim doctor --sim 24GiB -- python train.py    # no GPU needed
  vramshim doctor --json | jq '.findings[] | select(.severity != \"ok\")'

The command runs under the library, with its journals in a temporary folder and an empty standard input. After the time of \
--for it is ended with all processes that it started. Until then it does its real work, so give a command that may be interrupted.

The options that set up a job are those of `vramshim run`: -s, -d, -q, --limit, --host-guard, --accounts, --torch, --stacks, \
--control, --sim, --library:
  see vramshim run --help

Exit codes: 0 nothing worse than a note, 1 doctor itself failed, 2 wrong usage, 3 warnings, 4 problems. With --assumptions or \
--book: 3 if a strategy does without something, or the books do not agree; 4 if the driver does not answer.";

/// The exit codes of `--assumptions` and `--book`: a strategy falls back, or the books differ; no driver answers.
const DIFFERS: u8 = 3;
const NO_ANSWER: u8 = 4;

/// Options of `run` that `--help` does not repeat.
pub const OF_THE_JOB: &str = "dir host_guard accounts torch stacks control library quiet";

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

/// The job as it would run here, and what the checks found out about it.
struct Setup<'a> {
    options: &'a JobOptions,
    environment: &'a Environment,
    /// Why there is no library.
    no_library: Option<Failure>,
    config: Config,
    errors: Vec<ConfigError>,
    timeout: Duration,
    command: &'a [OsString],
    /// How long the command may run.
    moment: Duration,
    /// Whether the command can be tried under the library.
    is_usable: bool,
    driver: Option<Driver>,
    forecast: Vec<forecast::Forecast>,
    /// The figures of the trial; `null` if no command was run.
    trial: Value,
}

impl Setup<'_> {
    fn devices(&self) -> &[DriverDevice] {
        self.driver.as_ref().map_or(&[], |driver| &driver.devices)
    }
}

/// A check adds its findings. A later one may use what an earlier one noted in the setup.
type Check = fn(&mut Findings, &mut Setup);

/// All checks, in the order of the report. A name may have two checks; findings may have a name of their own.
const CHECKS: [(&str, Check); 13] = [
    ("library", library::check),
    ("preload", layers::check),
    ("settings", settings::check),
    ("journal", folder::check),
    ("limits", machine::check),
    ("driver", driver::check),
    ("limit", accounts::check_limits),
    ("accounts", accounts::check_accounts),
    ("settings", settings::check_shared),
    ("assumptions", forecast::check_stored),
    ("strategy", forecast::check),
    ("command", command::check),
    ("trial", trial::check),
];

impl Doctor {
    pub fn examine(self) -> Result<(), Failure> {
        let (environment, no_library) = self.options.environment()?;
        processes::take_charge();
        let done = if self.assumptions {
            assumptions::examine(&environment, self.timeout.unwrap_or(TIME_OF_A_QUESTION), self.json)
        } else if self.book {
            match no_library {
                None => book::examine(&environment, self.timeout.unwrap_or(TIME_OF_THE_DRIVER), self.json),
                Some(why) => Err(Failure::failed(why.message())),
            }
        } else {
            self.check_all(&environment, no_library)
        };
        match processes::interrupted() {
            Some(signal) => processes::end_by(signal),
            None => done,
        }
    }

    fn check_all(&self, environment: &Environment, no_library: Option<Failure>) -> Result<(), Failure> {
        let (config, errors) = Config::read(|name| environment.get(name));
        let mut setup = Setup {
            options: &self.options,
            environment,
            no_library,
            config,
            errors,
            timeout: self.timeout.unwrap_or(TIME_OF_THE_DRIVER),
            command: &self.command,
            moment: self.moment,
            is_usable: false,
            driver: None,
            forecast: Vec::new(),
            trial: Value::Null,
        };
        let mut findings = Findings::default();
        for (name, check) in CHECKS {
            findings.begin(name);
            check(&mut findings, &mut setup);
            if processes::interrupted().is_some() {
                // A report without its last checks is not shown: the signal ends the program.
                return Ok(());
            }
        }
        let worst = findings.worst();
        let shown = if self.json {
            report::json(&json!({
                "findings": findings.list,
                "worst": worst,
                "driver": setup.driver,
                "forecast": setup.forecast,
                "trial": setup.trial,
            }))
        } else {
            report::table(&findings)
        };
        shown.map_err(Failure::unwritten)?;
        match worst.exit_code() {
            0 => Ok(()),
            code => Err(Failure::answer(code)),
        }
    }
}
