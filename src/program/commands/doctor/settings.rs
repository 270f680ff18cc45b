//! Checks the environment variables: values that cannot be used, names that nothing reads, and settings that conflict
//! with the chosen strategy.

use std::ffi::OsString;

use config::{Config, ConfigError, table, unknown_variables};
use policy::Strategy;

use super::probe::Driver;
use super::report::{Findings, Severity};
use crate::launch::environment::Environment;
use crate::render::format::size;

const CHECK: &str = "settings";

const TRUE: &[&str] = &["1", "true", "yes", "on"];
const MAPPED: &str = "cuMemCreate and cuMemMap, which the framework calls itself";
const POOL: &str = "the driver's stream-ordered pool";
const NO_MAPPING: &str =
    "Leave it out: auto_growth does the same for every library of the job. Or take --strategy passthrough.";
const NO_POOL: &str = "Leave it out, or take --strategy passthrough.";

/// Settings of frameworks with which memory does not come from the strategy: the variable, its values, the setting, where
/// memory comes from, and what to do.
const BYPASSES: [(&str, &[&str], &str, &str, &str); 4] = [
    (
        "FLAGS_use_virtual_memory_auto_growth",
        TRUE,
        "FLAGS_use_virtual_memory_auto_growth",
        MAPPED,
        NO_MAPPING,
    ),
    (
        "FLAGS_use_cuda_malloc_async_allocator",
        TRUE,
        "FLAGS_use_cuda_malloc_async_allocator",
        POOL,
        NO_POOL,
    ),
    (
        "TF_GPU_ALLOCATOR",
        &["cuda_malloc_async"],
        "TF_GPU_ALLOCATOR=cuda_malloc_async",
        POOL,
        NO_POOL,
    ),
    (
        "XLA_PYTHON_CLIENT_ALLOCATOR",
        &["cuda_async"],
        "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async",
        POOL,
        NO_POOL,
    ),
];

pub fn check(
    findings: &mut Findings,
    environment: &Environment,
    config: &Config,
    errors: &[ConfigError],
    as_given: impl Fn(&ConfigError) -> String,
) {
    let before = findings.0.len();
    for error in errors {
        findings.problem(
                CHECK,
                as_given(error),
                if config.strict { "Correct it: because of VRAMSHIM_STRICT, every request for memory would be refused." } else { "Correct it: vramshim run refuses to start the job; a job that preloads the library goes on with the default." }, error.variable);
    }
    for remark in &config.remarks {
        findings.note(CHECK, remark, "", "");
    }
    let job = Job {
        environment,
        strategy: config.strategy,
    };
    for (variable, values, setting, by, instead) in BYPASSES {
        let value = environment.text(variable).unwrap_or_default().to_ascii_lowercase();
        if values.contains(&value.as_str()) {
            job.bypasses(findings, variable, setting, by, instead);
        }
    }
    job.pytorch(findings);
    job.paddle(findings);
    job.tensorflow_and_jax(findings);
    let inherits = environment.text(table::LIMIT.name).as_deref() == Some("inherit");
    for variable in [
        table::LIMIT_OF_HAMI_CORE.name,
        table::LIMITS_OF_HAMI_CORE[0],
        table::LIMIT_OF_VGPU_MANAGER.name,
        table::LIMITS_OF_VGPU_MANAGER[0],
    ] {
        if let Some(value) = environment.text(variable).filter(|_| !inherits) {
            findings.note(
                CHECK,
                format!("{variable}={value} limits the next layer; the library does not use it as its own limit"),
                "With VRAMSHIM_MEMORY_LIMIT=inherit the library holds the limit too, and reports each refusal.",
                variable,
            );
        }
    }
    if findings.0.len() == before {
        findings.ok(
            CHECK,
            format!("strategy {}; no variable conflicts with it", config.strategy.name()),
            "",
        );
    }
}

struct Job<'a> {
    environment: &'a Environment,
    strategy: Strategy,
}

impl Job<'_> {
    /// Adds a finding about a framework setting with which memory is recorded but comes from `by` instead of the
    /// strategy.
    fn bypasses(&self, findings: &mut Findings, variable: &str, setting: &str, by: &str, instead: &str) {
        let (severity, advice) = match self.strategy {
            Strategy::Passthrough => (Severity::Note, "It is recorded nevertheless.".to_owned()),
            _ => (Severity::Warning, instead.to_owned()),
        };
        findings.add(
            CHECK,
            severity,
            format!(
                "with {setting} memory comes from {by}: {} does not serve it",
                self.strategy.name()
            ),
            advice,
            variable,
        );
    }

    fn pytorch(&self, findings: &mut Findings) {
        const VARIABLES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
        let [old, new] = VARIABLES.map(|variable| self.environment.text(variable));
        if let (Some(old), Some(new)) = (&old, &new)
            && old != new
        {
            findings.warning(
                CHECK,
                format!("PYTORCH_CUDA_ALLOC_CONF={old} and PYTORCH_ALLOC_CONF={new} differ"),
                "Which of them PyTorch reads depends on its version: set only one.",
                "PYTORCH_ALLOC_CONF",
            );
        }
        let is_allocator = self.environment.text(table::TORCH.name).as_deref() == Some("allocator");
        for (variable, value) in VARIABLES.into_iter().zip([old, new]) {
            if is_allocator && let Some(value) = &value {
                findings.note(
                    CHECK,
                    format!("{variable}={value} has no effect, because the library is PyTorch's allocator"),
                    "It has, if PyTorch's own allocator takes over, as for memory pools.",
                    variable,
                );
                continue;
            }
            for setting in value.unwrap_or_default().split(',').map(str::trim) {
                let (name, value) = setting.split_once(':').unwrap_or((setting, ""));
                match (name.trim(), value.trim()) {
                    ("expandable_segments", value) if value.eq_ignore_ascii_case("true") => self.bypasses(
                        findings,
                        variable,
                        "expandable_segments:True",
                        "cuMemCreate and cuMemMap, which PyTorch calls itself",
                        "Leave expandable_segments out: auto_growth does the same for every library of the job. Or take \
                         --strategy passthrough.",
                    ),
                    ("backend", "cudaMallocAsync") => self.bypasses(
                        findings,
                        variable,
                        "backend:cudaMallocAsync",
                        "the driver's stream-ordered pool",
                        "Leave the backend out (native is the default), or take --strategy passthrough.",
                    ),
                    _ => {}
                }
            }
        }
    }

    fn paddle(&self, findings: &mut Findings) {
        let own = self.environment.text(table::STRATEGY.name);
        let paddles = self.environment.text(table::PADDLES_STRATEGY.name);
        if let (Some(own), Some(paddles)) = (own, paddles)
            && Strategy::parse(&own) != Strategy::parse(&paddles)
        {
            findings.warning(
                CHECK,
                format!("the library serves with {own}, and Paddle caches with {paddles} on top of it"),
                "Set both to the same strategy, or leave VRAMSHIM_STRATEGY out.",
                table::PADDLES_STRATEGY.name,
            );
        }
    }

    fn tensorflow_and_jax(&self, findings: &mut Findings) {
        let refused = |variable| {
            let value = self.environment.text(variable);
            value.is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "0" | "false"))
        };
        if refused("TF_FORCE_GPU_ALLOW_GROWTH") {
            findings.warning(
                CHECK,
                "TensorFlow takes nearly all memory of each device at once",
                "TF_FORCE_GPU_ALLOW_GROWTH=true lets it grow, and the strategy see its requests.",
                "TF_FORCE_GPU_ALLOW_GROWTH",
            );
        }
        let jax = ["XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"];
        let set = jax
            .into_iter()
            .find(|variable| self.environment.text(variable).is_some());
        if let Some(variable) = set.filter(|_| !refused("XLA_PYTHON_CLIENT_PREALLOCATE")) {
            let share = self.environment.text("XLA_PYTHON_CLIENT_MEM_FRACTION");
            findings.warning(
                CHECK,
                format!(
                    "JAX takes {} of each device's memory at once",
                    share.unwrap_or_else(|| "75 %".into())
                ),
                "XLA_PYTHON_CLIENT_PREALLOCATE=false lets it grow, and the strategy see its requests.",
                variable,
            );
        }
    }
}

/// Warns of variables that begin with `VRAMSHIM_` but are none of ours, most likely because of a typing error.
pub fn check_names(findings: &mut Findings, names: impl Iterator<Item = OsString>) {
    for unknown in unknown_variables(names) {
        findings.warning(
            CHECK,
            unknown.to_string(),
            "Correct or unset it: vramshim run refuses to start the job.",
            unknown.0.as_str(),
        );
    }
}

/// Warns if the strategy would reserve a share of a device's free memory while others hold over a tenth of the device.
pub fn check_shared(findings: &mut Findings, config: &Config, driver: &Driver) {
    if !config.strategy.reserves_up_front() || config.settings.initial_bytes > 0 {
        return;
    }
    for device in &driver.devices {
        let Some(free) = device.free_memory else { continue };
        let own = device.context_bytes.unwrap_or(0);
        let others = device.total_memory.saturating_sub(free).saturating_sub(own);
        if others > device.total_memory / 10 {
            findings.warning(
                CHECK,
                format!(
                    "{} reserves {:.0} % of what is free on device {} at first use, and others have {} of it \
                         already",
                    config.strategy.name(),
                    config.settings.fraction * 95.0,
                    device.ordinal,
                    size(others)
                ),
                "Say how much the job may have: FLAGS_initial_gpu_memory_in_mb, or a smaller \
                     FLAGS_fraction_of_gpu_memory_to_use.",
                table::FRACTION.name,
            );
        }
    }
}
