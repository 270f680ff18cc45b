//! `Config`, which has the library's settings, with its defaults; and the error for a value that cannot be used.

use std::path::PathBuf;
use std::time::Duration;

use policy::{Settings, Strategy};

pub(crate) const DEFAULT_JOURNAL_MAX_BYTES: u64 = 4 << 30;
pub(crate) const DEFAULT_STACK_DEPTH: usize = 32;
/// `VRAMSHIM_STACK_DEPTH` is at most this.
pub const DEEPEST_STACK: usize = 128;

/// How much the library writes to standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    pub(crate) fn parse(text: &str) -> Option<LogLevel> {
        Some(match text.to_ascii_lowercase().as_str() {
            "off" => LogLevel::Off,
            "error" => LogLevel::Error,
            "warn" => LogLevel::Warn,
            "info" => LogLevel::Info,
            "debug" => LogLevel::Debug,
            "trace" => LogLevel::Trace,
            _ => return None,
        })
    }
}

/// Which stacks are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stacks {
    #[default]
    Off,
    Python,
    Native,
    Both,
}

impl Stacks {
    pub const ALL: [Stacks; 4] = [Stacks::Off, Stacks::Python, Stacks::Native, Stacks::Both];

    pub const fn name(self) -> &'static str {
        match self {
            Stacks::Off => "off",
            Stacks::Python => "python",
            Stacks::Native => "native",
            Stacks::Both => "both",
        }
    }

    pub fn parse(text: &str) -> Option<Stacks> {
        Stacks::ALL.into_iter().find(|stacks| stacks.name() == text)
    }

    pub fn python(self) -> bool {
        matches!(self, Stacks::Python | Stacks::Both)
    }

    pub fn native(self) -> bool {
        matches!(self, Stacks::Native | Stacks::Both)
    }
}

/// Bytes, or a share of all memory of the device or the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Bytes(u64),
    Share(f64),
}

impl Amount {
    /// The bytes, of `all` bytes; `None` if those are not known and needed.
    pub fn bytes_of(self, all: u64) -> Option<u64> {
        match self {
            Amount::Bytes(bytes) => Some(bytes),
            Amount::Share(share) => (all > 0).then_some((all as f64 * share) as u64),
        }
    }
}

/// `VRAMSHIM_SURGE`, growth that is marked: by `to` within `within`, or from `from` or less to `to` within it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Surge {
    pub from: Option<Amount>,
    pub to: Amount,
    pub within: Duration,
}

/// The settings of the library, as the environment variables give them.
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
    /// How many frames of a stack are kept at most.
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
    /// Whether the allocator of host memory is asked what it holds.
    pub host_heap: bool,
    /// Whether the stored answers of `vramshim doctor --assumptions` are used.
    pub use_verdicts: bool,
    /// The folder of those answers; `None` if the user has no home.
    pub verdicts: Option<PathBuf>,
    pub log: LogLevel,
    pub strict: bool,
    /// Messages for the user that are not errors.
    pub remarks: Vec<String>,
}

/// A variable with a value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub variable: &'static str,
    pub value: String,
    /// What the variable accepts, in words.
    pub accepted: &'static str,
}

impl std::error::Error for ConfigError {}
