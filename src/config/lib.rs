//! The environment, read into one `Config`, with errors that name the variable, its value and what is accepted.
//!
//! A bad value never stops a job: the library says each error once and goes on with that variable's default
//! (`vramshim run` checks with the same code beforehand and refuses).

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use base::units::parse_size;
use policy::{Settings, Strategy};
use quota::limits::Limits;
use quota::{self, Scope};

const MIB: u64 = 1 << 20;
const DEFAULT_JOURNAL_MAX: u64 = 4 << 30;

/// Variables that explain a job when its journal is read later; copied into the journal's header.
pub const EXPLAINING_VARIABLES: &[&str] = &[
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "PADDLE_TRAINER_ID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_DEVICE_MEMORY_LIMIT",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "VRAMSHIM_STRICT",
    "FLAGS_allocator_strategy",
    "FLAGS_fraction_of_gpu_memory_to_use",
    "FLAGS_initial_gpu_memory_in_mb",
    "FLAGS_reallocate_gpu_memory_in_mb",
    "FLAGS_gpu_memory_limit_mb",
    "FLAGS_auto_growth_chunk_size_in_mb",
    "FLAGS_free_idle_chunk",
    "FLAGS_free_when_no_cache_hit",
    "VRAMSHIM_STRATEGY",
    "VRAMSHIM_DIR",
    "VRAMSHIM_LOG",
    "VRAMSHIM_JOURNAL_MAX",
    "VRAMSHIM_IDLE_RELEASE",
    "VRAMSHIM_MEMORY_LIMIT",
    "VRAMSHIM_LIMIT_SCOPE",
    "VRAMSHIM_ACCOUNTS",
];

/// How much the library says on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Debug)]
pub struct Config {
    pub strategy: Strategy,
    /// Whether a variable chose the strategy (otherwise the start is not announced: nothing changes for the job).
    pub strategy_chosen: bool,
    pub settings: Settings,
    /// `VRAMSHIM_DIR`; `None` means `./vramshim-<job>`.
    pub directory: Option<PathBuf>,
    /// Bytes a journal may grow to; 0 keeps none.
    pub journal_max: u64,
    /// How long a pool must rest before what it holds free is given back; `None`: it is kept.
    pub idle_release: Option<Duration>,
    pub quota: quota::Settings,
    pub log: LogLevel,
    pub strict: bool,
    /// Things worth saying that are not errors.
    pub remarks: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            strategy: Strategy::Passthrough,
            strategy_chosen: false,
            settings: Settings::default(),
            directory: None,
            journal_max: DEFAULT_JOURNAL_MAX,
            idle_release: None,
            quota: quota::Settings::default(),
            log: LogLevel::Info,
            strict: false,
            remarks: Vec::new(),
        }
    }
}

/// One variable with a value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub variable: &'static str,
    pub value: String,
    pub accepted: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}={:?} is not accepted; accepted: {}",
            self.variable, self.value, self.accepted
        )
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads every variable through `lookup`. The config is always usable: a variable in error keeps its default.
    pub fn read(lookup: impl Fn(&str) -> Option<OsString>) -> (Config, Vec<ConfigError>) {
        let mut reader = Reader {
            lookup,
            errors: Vec::new(),
        };
        let mut config = Config::default();
        reader.strategy(&mut config);
        let settings = &mut config.settings;
        reader.set(
            "FLAGS_fraction_of_gpu_memory_to_use",
            "a number above 0, up to 1",
            fraction,
            &mut settings.fraction,
        );
        reader.set(
            "FLAGS_initial_gpu_memory_in_mb",
            MEBIBYTES,
            mebibytes,
            &mut settings.initial_bytes,
        );
        reader.set(
            "FLAGS_reallocate_gpu_memory_in_mb",
            MEBIBYTES,
            mebibytes,
            &mut settings.reallocate_bytes,
        );
        reader.set(
            "FLAGS_auto_growth_chunk_size_in_mb",
            MEBIBYTES,
            mebibytes,
            &mut settings.chunk_bytes,
        );
        reader.set("FLAGS_free_idle_chunk", BOOLEAN, boolean, &mut settings.free_idle_chunk);
        reader.set(
            "FLAGS_free_when_no_cache_hit",
            BOOLEAN,
            boolean,
            &mut settings.free_when_no_cache_hit,
        );
        reader.set("VRAMSHIM_JOURNAL_MAX", SIZE, parse_size, &mut config.journal_max);
        reader.set("VRAMSHIM_IDLE_RELEASE", DURATION, idle_bound, &mut config.idle_release);
        reader.set(
            "VRAMSHIM_LOG",
            "off, error, warn, info, debug, trace",
            log_level,
            &mut config.log,
        );
        reader.set("VRAMSHIM_STRICT", BOOLEAN, boolean, &mut config.strict);
        config.directory = (reader.lookup)("VRAMSHIM_DIR")
            .filter(|value| !value.is_empty())
            .map(PathBuf::from);
        reader.quota(&mut config);
        (config, reader.errors)
    }

    /// The same, for a caller that would rather refuse than go on with a default.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Config, Vec<ConfigError>> {
        match Self::read(lookup) {
            (config, errors) if errors.is_empty() => Ok(config),
            (_, errors) => Err(errors),
        }
    }
}

const MEBIBYTES: &str = "a whole number of MiB, 0 or more";
const BOOLEAN: &str = "1, true, True, TRUE, 0, false, False, FALSE";
const SIZE: &str = "bytes, or a number with a unit (KiB, MiB, GiB, TiB, KB, MB, GB, TB)";
const DURATION: &str = "a number with a unit (ms, s, min, h), such as 30s; 0 for never";
const LIMIT: &str = "a size or share (8GiB, 50%), or a list by device number or UUID (0=8GiB,1=50%,GPU-3f2a=4GiB); inherit \
                     takes CUDA_DEVICE_MEMORY_LIMIT; 0 for none";
const SCOPE: &str = "process, group";
static FRAMEWORK_STRATEGIES: LazyLock<String> =
    LazyLock::new(|| format!("{}, thread_local (left to Paddle)", Strategy::accepted()));

const LIMIT_VARIABLE: &str = "VRAMSHIM_MEMORY_LIMIT";
const PADDLES_LIMIT: &str = "FLAGS_gpu_memory_limit_mb";
/// Set by HAMi-like layers in a container, in all or with the number of a device behind.
const INHERITED_LIMIT: &str = "CUDA_DEVICE_MEMORY_LIMIT";
const INHERITED_LIMITS: [&str; 16] = [
    "CUDA_DEVICE_MEMORY_LIMIT_0",
    "CUDA_DEVICE_MEMORY_LIMIT_1",
    "CUDA_DEVICE_MEMORY_LIMIT_2",
    "CUDA_DEVICE_MEMORY_LIMIT_3",
    "CUDA_DEVICE_MEMORY_LIMIT_4",
    "CUDA_DEVICE_MEMORY_LIMIT_5",
    "CUDA_DEVICE_MEMORY_LIMIT_6",
    "CUDA_DEVICE_MEMORY_LIMIT_7",
    "CUDA_DEVICE_MEMORY_LIMIT_8",
    "CUDA_DEVICE_MEMORY_LIMIT_9",
    "CUDA_DEVICE_MEMORY_LIMIT_10",
    "CUDA_DEVICE_MEMORY_LIMIT_11",
    "CUDA_DEVICE_MEMORY_LIMIT_12",
    "CUDA_DEVICE_MEMORY_LIMIT_13",
    "CUDA_DEVICE_MEMORY_LIMIT_14",
    "CUDA_DEVICE_MEMORY_LIMIT_15",
];

struct Reader<L> {
    lookup: L,
    errors: Vec<ConfigError>,
}

impl<L: Fn(&str) -> Option<OsString>> Reader<L> {
    /// The value of a variable, where it is set and not empty.
    fn text(&self, variable: &str) -> Option<String> {
        let value = (self.lookup)(variable)?.to_string_lossy().into_owned();
        (!value.trim().is_empty()).then(|| value.trim().to_owned())
    }

    fn set<T>(
        &mut self,
        variable: &'static str,
        accepted: &'static str,
        parse: impl Fn(&str) -> Option<T>,
        field: &mut T,
    ) {
        let Some(value) = self.text(variable) else { return };
        match parse(&value) {
            Some(parsed) => *field = parsed,
            None => self.errors.push(ConfigError {
                variable,
                value,
                accepted,
            }),
        }
    }

    /// Limits, whom they hold for, and where accounts are shared.
    fn quota(&mut self, config: &mut Config) {
        let quota = &mut config.quota;
        let mut of_process_only = false;
        if self.text(LIMIT_VARIABLE).as_deref() == Some("inherit") {
            (quota.limits, quota.from) = (self.inherited_limits(), INHERITED_LIMIT);
            if quota.limits.is_empty() {
                let remark = format!("{LIMIT_VARIABLE}=inherit, but no {INHERITED_LIMIT} is set: there is no limit");
                config.remarks.push(remark);
            }
        } else if self.text(LIMIT_VARIABLE).is_some() {
            self.set(LIMIT_VARIABLE, LIMIT, Limits::parse, &mut quota.limits);
            quota.from = LIMIT_VARIABLE;
        } else {
            let mut bytes = 0;
            self.set(PADDLES_LIMIT, MEBIBYTES, mebibytes, &mut bytes);
            if bytes > 0 {
                (quota.limits, quota.from) = (Limits::every(bytes), PADDLES_LIMIT);
                // Paddle counts each process by itself.
                of_process_only = true;
            }
        }
        quota.accounts = (self.lookup)("VRAMSHIM_ACCOUNTS")
            .filter(|value| !value.is_empty())
            .map(PathBuf::from);
        let mut scope = None;
        self.set(
            "VRAMSHIM_LIMIT_SCOPE",
            SCOPE,
            |text| Some(Some(scope_of(text)?)),
            &mut scope,
        );
        quota.scope = match scope {
            Some(scope) => scope,
            None if quota.accounts.is_some() && !of_process_only => Scope::Group,
            None => Scope::Process,
        };
        if quota.scope == Scope::Group && quota.accounts.is_none() && !quota.limits.is_empty() {
            // SAFETY: has no preconditions.
            let user = unsafe { libc::geteuid() };
            quota.accounts = Some(PathBuf::from(format!("/dev/shm/vramshim-{user}")));
        }
    }

    /// What a virtualisation layer's variables say of limits.
    fn inherited_limits(&mut self) -> Limits {
        let mut limits = Limits::default();
        let mut bytes = None;
        let parse = |text: &str| parse_size(text).map(Some);
        self.set(INHERITED_LIMIT, SIZE, parse, &mut bytes);
        if let Some(bytes) = bytes.take() {
            limits.limit_every(bytes);
        }
        for (number, variable) in (0..).zip(INHERITED_LIMITS) {
            self.set(variable, SIZE, parse, &mut bytes);
            if let Some(bytes) = bytes.take() {
                limits.limit_number(number, bytes);
            }
        }
        limits
    }

    fn strategy(&mut self, config: &mut Config) {
        let own = self.text("VRAMSHIM_STRATEGY").map(|value| ("VRAMSHIM_STRATEGY", value));
        let paddles = || Some(("FLAGS_allocator_strategy", self.text("FLAGS_allocator_strategy")?));
        let Some((variable, value)) = own.or_else(paddles) else {
            return;
        };
        if let Some(strategy) = Strategy::parse(&value) {
            (config.strategy, config.strategy_chosen) = (strategy, true);
        } else if variable == "FLAGS_allocator_strategy" && value == "thread_local" {
            config
                .remarks
                .push("FLAGS_allocator_strategy=thread_local is Paddle's own affair: passing through".to_owned());
        } else {
            let accepted = match variable {
                "VRAMSHIM_STRATEGY" => Strategy::accepted(),
                _ => &FRAMEWORK_STRATEGIES,
            };
            self.errors.push(ConfigError {
                variable,
                value,
                accepted,
            });
        }
    }
}

fn fraction(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value| *value > 0.0 && *value <= 1.0)
}

fn mebibytes(text: &str) -> Option<u64> {
    text.parse::<u64>().ok()?.checked_mul(MIB)
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "true" | "True" | "TRUE" => Some(true),
        "0" | "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

/// A duration of at least a millisecond, with a unit (ms, s, min, h).
pub fn parse_duration(text: &str) -> Option<Duration> {
    idle_bound(text.trim()).flatten()
}

/// A duration of at least a millisecond, or 0 for never.
fn idle_bound(text: &str) -> Option<Option<Duration>> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let number: f64 = text[..unit_at].trim().parse().ok().filter(|number| *number >= 0.0)?;
    let milliseconds = match text[unit_at..].trim() {
        "ms" => number,
        "s" => number * 1e3,
        "min" => number * 60e3,
        "h" => number * 3600e3,
        "" if number == 0.0 => 0.0,
        _ => return None,
    };
    match milliseconds {
        0.0 => Some(None),
        // a year, so that no sum of times overflows
        1.0..31_536_000_000.0 => Some(Some(Duration::from_micros((milliseconds * 1e3) as u64))),
        _ => None,
    }
}

fn scope_of(text: &str) -> Option<Scope> {
    [Scope::Process, Scope::Group]
        .into_iter()
        .find(|scope| scope.name() == text)
}

fn log_level(text: &str) -> Option<LogLevel> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> (Config, Vec<ConfigError>) {
        Config::read(|name| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn nothing_set_is_passthrough_and_quiet() {
        let (config, errors) = read(&[]);
        assert_eq!(
            (config.strategy, config.strategy_chosen),
            (Strategy::Passthrough, false)
        );
        assert!(errors.is_empty());
    }

    #[test]
    fn own_variable_wins_over_paddles() {
        let (config, errors) = read(&[
            ("VRAMSHIM_STRATEGY", "autogrow"),
            ("FLAGS_allocator_strategy", "naive_best_fit"),
        ]);
        assert_eq!(config.strategy, Strategy::AutoGrowth);
        assert!(errors.is_empty());
    }

    #[test]
    fn a_bad_value_is_named_and_the_default_kept() {
        let (config, errors) = read(&[
            ("FLAGS_allocator_strategy", "best_fit"),
            ("FLAGS_free_idle_chunk", "yes"),
        ]);
        assert_eq!(config.strategy, Strategy::Passthrough);
        let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(
            text[0].contains("FLAGS_allocator_strategy=\"best_fit\"") && text[0].contains("naive_best_fit"),
            "{text:?}"
        );
        assert!(text[1].contains("FLAGS_free_idle_chunk"), "{text:?}");
    }

    #[test]
    fn thread_local_is_left_to_paddle_but_not_ours_to_accept() {
        let (config, errors) = read(&[("FLAGS_allocator_strategy", "thread_local")]);
        assert!(errors.is_empty() && config.remarks.len() == 1);
        assert_eq!(config.strategy, Strategy::Passthrough);
        assert_eq!(read(&[("VRAMSHIM_STRATEGY", "thread_local")]).1.len(), 1);
    }

    #[test]
    fn limits_come_from_one_variable() {
        let gib = |bytes: u64| bytes << 30;
        let limit = |pairs: &[(&str, &str)], number| {
            let (config, errors) = read(pairs);
            assert!(errors.is_empty(), "{errors:?}");
            (
                config.quota.limits.of(Some(number), "GPU-0", gib(80)),
                config.quota.scope,
            )
        };
        let own = ("VRAMSHIM_MEMORY_LIMIT", "8GiB");
        let paddles = ("FLAGS_gpu_memory_limit_mb", "4096");
        let shared = ("VRAMSHIM_ACCOUNTS", "/accounts");
        assert_eq!(limit(&[own, paddles], 0), (Some(gib(8)), Scope::Process));
        assert_eq!(limit(&[own, shared], 0), (Some(gib(8)), Scope::Group));
        assert_eq!(limit(&[paddles, shared], 0), (Some(gib(4)), Scope::Process));
        assert_eq!(limit(&[shared], 0), (None, Scope::Group));
        let inherit = ("VRAMSHIM_MEMORY_LIMIT", "inherit");
        let layers = [
            inherit,
            ("CUDA_DEVICE_MEMORY_LIMIT", "3g"),
            ("CUDA_DEVICE_MEMORY_LIMIT_1", "2048m"),
            paddles,
        ];
        assert_eq!((limit(&layers, 0).0, limit(&layers, 1).0), (Some(gib(3)), Some(gib(2))));
        assert_eq!(limit(&layers[1..3], 0).0, None, "only when asked");
        assert_eq!(read(&[inherit]).0.remarks.len(), 1);
        assert_eq!(
            read(&[inherit, ("CUDA_DEVICE_MEMORY_LIMIT_1", "x")]).1[0].variable,
            "CUDA_DEVICE_MEMORY_LIMIT_1"
        );
    }

    #[test]
    fn an_idle_bound_has_a_unit() {
        assert_eq!(idle_bound("30s"), Some(Some(Duration::from_secs(30))));
        assert_eq!(idle_bound("1.5 min"), Some(Some(Duration::from_secs(90))));
        assert_eq!(idle_bound("1h"), Some(Some(Duration::from_secs(3600))));
        assert_eq!(idle_bound("0"), Some(None));
        for bad in ["30", "-1s", "s", "1d", "nan", "infs", "0.1ms", "1e30min"] {
            assert_eq!(idle_bound(bad), None, "{bad}");
        }
    }
}
