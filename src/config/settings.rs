//! `Config`, which has the library's settings, with its defaults.

use std::path::PathBuf;
use std::time::Duration;

use base::named;
use policy::{Settings, Strategy};
use quota::limits::Amount;

/// `VRAMSHIM_STACK_DEPTH` is at most this.
pub const DEEPEST_STACK: usize = 128;

named! {
    #[derive(Default)]
    pub enum LogLevel {
        Off => "off",
        Error => "error",
        Warn => "warn",
        #[default]
        Info => "info",
        Debug => "debug",
        Trace => "trace",
    }
}

/// `VRAMSHIM_STRICT`, the values that cannot be used for which requests for memory are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strict {
    #[default]
    No,
    /// Those of limits.
    Limits,
    All,
}

named! {
    #[derive(Default)]
    pub enum Stacks {
        #[default]
        Off => "off",
        Python => "python",
        Native => "native",
        Both => "both",
    }
}

impl Stacks {
    pub fn python(self) -> bool {
        matches!(self, Stacks::Python | Stacks::Both)
    }

    pub fn native(self) -> bool {
        matches!(self, Stacks::Native | Stacks::Both)
    }
}

/// `VRAMSHIM_SURGE`, growth that is marked: by `to` within `within`, or from `from` or less to `to` within it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Surge {
    pub from: Option<Amount>,
    pub to: Amount,
    pub within: Duration,
}

/// The settings of the library, as the environment variables give them. `Config::read` gives a variable that is not set the
/// default of its entry in `table`.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub strategy: Strategy,
    /// Whether a variable chose the strategy. If no variable did, requests are passed through, and the library does not
    /// announce itself.
    pub strategy_chosen: bool,
    pub settings: Settings,
    /// Folder for the journals; `None` means `./vramshim-<job>`.
    pub directory: Option<PathBuf>,
    /// Largest size of a journal in bytes; 0 keeps no journal.
    pub journal_max: u64,
    /// Whether the group of a journal may read it.
    pub journal_group: bool,
    /// How long a pool must be without a request before its free memory is given back; `None` keeps the memory.
    pub idle_release: Option<Duration>,
    pub stacks: Stacks,
    pub stack_depth: usize,
    /// Whether the process answers `vramshim ctl`.
    pub control: bool,
    pub quota: quota::Settings,
    /// The largest single request in bytes; `None` if there is no such bound.
    pub max_request: Option<u64>,
    /// The largest single request for host memory in bytes; `None` if there is no such bound. `libvramshim_hostguard.so`
    /// reads the variable by itself.
    pub host_guard: Option<u64>,
    /// Growth that the journal marks; `None` if nothing is watched.
    pub surge: Option<Surge>,
    /// Whether the stored answers of `vramshim doctor --assumptions` are used.
    pub use_verdicts: bool,
    /// The folder of those answers; `None` if the user has no home.
    pub verdicts: Option<PathBuf>,
    pub log: LogLevel,
    pub strict: Strict,
    /// Messages for the user that are not errors.
    pub remarks: Vec<String>,
}
