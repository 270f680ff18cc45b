//! Reads the variables of the environment into a `Config`.
//!
//! If a value cannot be used, the variable keeps its default. The caller gets an error that names the variable, the
//! value and what is accepted.

use std::ffi::OsString;
use std::path::PathBuf;

use base::identity::effective_user;
use base::units::Dialect;
use policy::Strategy;
use quota::Scope;
use quota::limits::{Limits, Name, Refused};

use crate::parse::{
    boolean, duration_or_never, host_guard, mebibytes, size_or_none, size_with_unit, stack_depth, stored, strict, surge,
};
use crate::settings::{Config, LogLevel, Stacks, Strict};
use base::text::printable;

use crate::table::{self, Part, VARIABLES, Variable};

/// The variables of our own limit, and how their sizes are written. The first that is set counts.
const OWN_LIMITS: [(&Variable, Dialect); 2] = [(&table::POD_LIMIT, Dialect::Kubernetes), (&table::LIMIT, Dialect::Own)];

/// The longest text of a variable that is repeated, in characters.
pub(crate) const LONGEST_SHOWN: usize = 200;

/// A variable with a value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={:?} is not accepted{}; accepted: {accepted}", printable(value, LONGEST_SHOWN), self.reason())]
pub struct ConfigError {
    pub variable: &'static str,
    pub value: String,
    /// What the variable accepts, in words.
    pub accepted: &'static str,
    /// Whether the library refuses requests for memory because of it, as `VRAMSHIM_STRICT` asks.
    pub refuses_memory: bool,
}

impl ConfigError {
    /// What is wrong with the value, as it follows its text; empty if what is accepted says enough.
    pub fn reason(&self) -> String {
        let limit = OWN_LIMITS.into_iter().find(|(limit, _)| limit.name == self.variable);
        match limit.map(|(_, dialect)| Limits::parse_in(dialect, &self.value)) {
            Some(Err(why)) if why != Refused::Unreadable => format!(": {why}"),
            _ => String::new(),
        }
    }
}

impl Config {
    /// Reads every variable through `lookup`. Also returns an error for each value that cannot be used; the config then
    /// has the variable's default.
    pub fn read(lookup: impl Fn(&str) -> Option<OsString>) -> (Config, Vec<ConfigError>) {
        let mut reader = Reader {
            lookup,
            errors: Vec::new(),
        };
        let mut config = Config::default();
        reader.strategy(&mut config);
        for variable in VARIABLES {
            if let Part::Policy(store) = variable.part {
                let store = |text: &str| store(text, &mut config.settings);
                reader.parsed(variable.name, (variable.accepted)(), store);
            }
        }
        reader.set(&table::JOURNAL_MAX, size_with_unit, &mut config.journal_max);
        reader.set(&table::MAX_REQUEST, size_or_none, &mut config.max_request);
        reader.set(&table::HOST_GUARD, host_guard, &mut config.host_guard);
        reader.set(&table::SURGE, surge, &mut config.surge);
        reader.set(&table::IDLE_RELEASE, duration_or_never, &mut config.idle_release);
        reader.set(&table::STACKS, Stacks::parse, &mut config.stacks);
        reader.set(&table::STACK_DEPTH, stack_depth, &mut config.stack_depth);
        reader.set(&table::JOURNAL_GROUP, boolean, &mut config.journal_group);
        reader.set(&table::CONTROL, boolean, &mut config.control);
        let level = |text: &str| LogLevel::parse(&text.to_ascii_lowercase());
        reader.set(&table::LOG, level, &mut config.log);
        reader.set(&table::STRICT, strict, &mut config.strict);
        if reader.errors.iter().any(|error| error.variable == table::STRICT.name) {
            // Whoever misspelt it wanted limits to hold.
            config.strict = Strict::Limits;
        }
        reader.set(&table::ASSUMPTIONS, stored, &mut config.use_verdicts);
        config.verdicts = reader.state_folder();
        config.directory = reader.path(&table::DIRECTORY);
        let others = reader.errors.len();
        reader.quota(&mut config);
        let first = match config.strict {
            Strict::No => reader.errors.len(),
            Strict::Limits => others,
            Strict::All => 0,
        };
        for error in &mut reader.errors[first..] {
            error.refuses_memory = true;
        }
        (config, reader.errors)
    }
}

struct Reader<L> {
    lookup: L,
    errors: Vec<ConfigError>,
}

impl<L: Fn(&str) -> Option<OsString>> Reader<L> {
    /// The trimmed value of a variable; `None` if the variable is not set or empty.
    fn text(&self, variable: &str) -> Option<String> {
        let value = (self.lookup)(variable)?.to_string_lossy().into_owned();
        (!value.trim().is_empty()).then(|| value.trim().to_owned())
    }

    fn path(&self, variable: &Variable) -> Option<PathBuf> {
        let value = (self.lookup)(variable.name).filter(|value| !value.is_empty())?;
        Some(PathBuf::from(value))
    }

    /// The folder where the program keeps what later jobs shall know (XDG Base Directory Specification).
    fn state_folder(&self) -> Option<PathBuf> {
        let absolute = |name: &str| (self.lookup)(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
        Some(state.join("vramshim"))
    }

    /// Sets a field to the value of a variable, or to its default in the table, if that is a value.
    fn set<T>(&mut self, variable: &Variable, parse: impl Fn(&str) -> Option<T>, field: &mut T) {
        let parsed = self.parsed(variable.name, (variable.accepted)(), &parse);
        if let Some(value) = parsed.or_else(|| parse(variable.default)) {
            *field = value;
        }
    }

    /// The value of a variable, if it is set and can be used. A value that cannot be used is noted as an error.
    fn parsed<T>(
        &mut self,
        variable: &'static str,
        accepted: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let value = self.text(variable)?;
        let parsed = parse(&value);
        if parsed.is_none() {
            self.errors.push(ConfigError {
                variable,
                value,
                accepted,
                refuses_memory: false,
            });
        }
        parsed
    }

    /// Reads the limits, their scope (each process alone or a group), and the folder of the shared accounts.
    fn quota(&mut self, config: &mut Config) {
        let quota = &mut config.quota;
        quota.strict = config.strict != Strict::No;
        let mut of_process_only = false;
        let mut own = OWN_LIMITS.into_iter();
        let own = own.find_map(|(variable, dialect)| Some((variable, dialect, self.text(variable.name)?)));
        if let Some((variable, dialect, text)) = &own {
            if text == "inherit" {
                (quota.limits, quota.from) = self.inherited_limits(variable.name, &mut config.remarks);
            } else {
                let parse = |text: &str| Limits::parse_in(*dialect, text).ok();
                self.set(variable, parse, &mut quota.limits);
                quota.from = variable.name;
            }
            if variable.name != table::LIMIT.name && self.text(table::LIMIT.name).is_some() {
                let (pod, other) = (variable.name, table::LIMIT.name);
                config
                    .remarks
                    .push(format!("{other} is not read, because {pod} is set"));
            }
        } else {
            let mut bytes = 0;
            self.set(&table::PADDLES_LIMIT, mebibytes, &mut bytes);
            if bytes > 0 {
                (quota.limits, quota.from) = (Limits::every(bytes), table::PADDLES_LIMIT.name);
                // Paddle applies its limit to each process alone.
                of_process_only = true;
            }
        }
        self.set(&table::CONTEXT, size_with_unit, &mut quota.assumed_context);
        quota.accounts = self.path(&table::ACCOUNTS);
        let asked_for = self.parsed(table::LIMIT_SCOPE.name, (table::LIMIT_SCOPE.accepted)(), Scope::parse);
        quota.scope = match asked_for {
            _ if own.is_some_and(|(variable, ..)| variable.name == table::POD_LIMIT.name) => Scope::Group,
            Some(scope) => scope,
            None if quota.accounts.is_some() && !of_process_only => Scope::Group,
            None => Scope::Process,
        };
        if quota.scope == Scope::Group && quota.accounts.is_none() && !quota.limits.is_empty() {
            quota.accounts = Some(PathBuf::from(format!("/dev/shm/vramshim-{}", effective_user())));
        }
    }

    /// The limits of a virtualisation layer, and the variable that they come from. If no variable is set, the limit is what
    /// the next layer shows of a device. `limit` is the variable that says `inherit`.
    fn inherited_limits(&mut self, limit: &'static str, remarks: &mut Vec<String>) -> (Limits, &'static str) {
        let (hami, vgpu) = (&table::LIMIT_OF_HAMI_CORE, &table::LIMIT_OF_VGPU_MANAGER);
        for (variable, by_device, dialect) in [
            (hami, table::LIMITS_OF_HAMI_CORE, Dialect::HamiCore),
            (vgpu, table::LIMITS_OF_VGPU_MANAGER, Dialect::VgpuManager),
        ] {
            let mut limits = Limits::default();
            let mut parsed = |name| {
                let bytes = self.parsed(name, (variable.accepted)(), |text| dialect.parse(text))?;
                if (1..1 << 20).contains(&bytes) {
                    remarks.push(format!("{name} means {bytes} bytes to the layer that reads it"));
                }
                Some(bytes)
            };
            if let Some(bytes) = parsed(variable.name) {
                limits.add(Name::Every, bytes);
            }
            for (number, name) in (0..).zip(by_device) {
                if let Some(bytes) = parsed(name) {
                    limits.add(Name::Number(number), bytes);
                }
            }
            if !limits.is_empty() {
                return (limits, variable.name);
            }
        }
        if self.errors.is_empty() {
            let [hami, vgpu] = [hami, vgpu].map(|variable| variable.name);
            remarks.push(format!(
                "{limit}=inherit, but neither {hami} nor {vgpu} is set: the limit is what the next layer shows of each device"
            ));
        }
        (Limits::whole_devices(), limit)
    }

    fn strategy(&mut self, config: &mut Config) {
        let (own, paddles) = (&table::STRATEGY, &table::PADDLES_STRATEGY);
        let variable = if self.text(own.name).is_some() { own } else { paddles };
        let left_to_paddle = |text: &str| variable.name == paddles.name && text == "thread_local";
        let parse = |text: &str| Strategy::parse(text).map(Some).or(left_to_paddle(text).then_some(None));
        match self.parsed(variable.name, (variable.accepted)(), parse) {
            Some(Some(strategy)) => (config.strategy, config.strategy_chosen) = (strategy, true),
            Some(None) => config.remarks.push(
                "FLAGS_allocator_strategy=thread_local is left to Paddle: requests are passed through".to_owned(),
            ),
            None => {}
        }
    }
}
