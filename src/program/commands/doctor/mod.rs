//! `vramshim doctor`: checks what would happen to a job on this machine, before it starts.
//!
//! Each check is a file and adds its findings to the list (`report`). Calls that may crash or hang are made in child
//! processes: `probe` runs in a child, and `ask` starts it. `assumptions` asks the driver what the strategies assume. `forecast` reads its answers again, and says what the strategy
//! will do here.

mod accounts;
mod assumptions;
mod driver;
mod folder;
mod forecast;
mod layers;
mod library;
mod machine;
mod probe;
mod report;
mod settings;

use std::time::Duration;

use clap::Args;
use config::{Config, ConfigError};
use serde_json::json;

use self::report::Findings;
use crate::failure::Failure;
use crate::launch::environment::Environment;
use crate::launch::options::JobOptions;
use crate::launch::processes;
pub use driver::ask_driver;
pub use probe::{COMMAND as PROBE, Device as DriverDevice, Driver, answer as answer_probe};

// Each paragraph is one line, because clap wraps lines to the width of the terminal.
const EXAMPLES: &str = "\
Examples:
  vramshim doctor                                   # machine, driver and settings
  vramshim doctor --strategy auto_growth --limit 8GiB    # a job with these options
  vramshim doctor --json | jq '.findings[] | select(.severity != \"ok\")'

Exit codes: 0 nothing worse than a note, 1 doctor itself failed, 2 wrong usage, 3 warnings, 4 problems. With \
--assumptions: 3 if a strategy does without something; 4 if the driver does not answer.";

/// The exit codes of `--assumptions`: a strategy falls back; no driver answers.
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

    /// Print JSON: every finding, and what the driver answered
    #[arg(long)]
    json: bool,

    /// How long the driver may take to answer, such as 30s or 2min [default: 30s; with --assumptions 10s a question]
    #[arg(long, value_name = "TIME", value_parser = super::time)]
    timeout: Option<Duration>,

    /// Ask the driver whether it does what the strategies assume, and store the answers for later jobs
    #[arg(long)]
    assumptions: bool,
}

/// The job as it would run here, and what the checks found out about it.
struct Setup<'a> {
    options: &'a JobOptions,
    environment: &'a Environment,
    no_library: Option<Failure>,
    config: Config,
    errors: Vec<ConfigError>,
    timeout: Duration,
    driver: Option<Driver>,
    forecast: Vec<forecast::Forecast>,
}

impl Setup<'_> {
    fn devices(&self) -> &[DriverDevice] {
        self.driver.as_ref().map_or(&[], |driver| &driver.devices)
    }
}

/// A check adds its findings. A later one may use what an earlier one noted in the setup.
type Check = fn(&mut Findings, &mut Setup);

/// All checks, in the order of the report. A name may have two checks; findings may have a name of their own.
const CHECKS: [(&str, Check); 11] = [
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
];

impl Doctor {
    pub fn examine(self) -> Result<(), Failure> {
        let (environment, no_library) = self.options.environment()?;
        processes::take_charge();
        let done = if self.assumptions {
            assumptions::examine(&environment, self.timeout.unwrap_or(TIME_OF_A_QUESTION), self.json)
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
            driver: None,
            forecast: Vec::new(),
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
        let page = || {
            json!({
                "findings": findings.list, "worst": worst, "driver": setup.driver, "forecast": setup.forecast,
            })
        };
        super::print(self.json.then(page), |page| findings.show(page))?;
        match worst.exit_code() {
            0 => Ok(()),
            code => Err(Failure::answer(code)),
        }
    }
}
