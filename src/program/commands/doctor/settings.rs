//! Checks the environment variables: values that cannot be used, names that nothing reads, and settings that conflict
//! with the chosen strategy.

use config::{table, unknown_variables};
use policy::Strategy;

use super::Setup;
use super::driver::layer_of;
use super::report::{Findings, Severity};
use crate::launch::environment::Environment;
use crate::render::format::size;

const TRUE: &[&str] = &["1", "true", "yes", "on"];

/// Where the memory comes from, and what to do.
type Source = (&'static str, &'static str);
const MAPPED: Source = (
    "cuMemCreate and cuMemMap, which the framework calls itself",
    "Leave it out: auto_growth does the same for every library of the job. Or take --strategy passthrough.",
);
const POOL: Source = (
    "the driver's stream-ordered pool",
    "Leave it out, or take --strategy passthrough.",
);

const PYTORCH: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
/// Settings of frameworks with which memory does not come from the strategy: the variables, and the settings in small letters.
const BYPASSES: [(&[&str], &[&str], Source); 6] = [
    (&PYTORCH, &["expandable_segments:true"], MAPPED),
    (&PYTORCH, &["backend:cudamallocasync"], POOL),
    (&["FLAGS_use_virtual_memory_auto_growth"], TRUE, MAPPED),
    (&["FLAGS_use_cuda_malloc_async_allocator"], TRUE, POOL),
    (&["TF_GPU_ALLOCATOR"], &["cuda_malloc_async"], POOL),
    (&["XLA_PYTHON_CLIENT_ALLOCATOR"], &["cuda_async"], POOL),
];

pub fn check(told: &mut Findings, setup: &mut Setup) {
    let (environment, config) = (setup.environment, &setup.config);
    let before = told.list.len();
    for error in &setup.errors {
        let instead = if error.refuses_memory {
            "Correct it: because of VRAMSHIM_STRICT, every request for memory would be refused."
        } else {
            "Correct it: vramshim run refuses to start the job; a job that preloads the library goes on with the default."
        };
        told.problem(setup.options.as_given(error))
            .advise(instead)
            .at(error.variable);
    }
    for remark in config.remarks.iter().chain(&setup.options.missing_hook(environment)) {
        told.note(remark);
    }
    // A variable with `VRAMSHIM_` in front that nothing reads is most likely mistyped.
    for unknown in unknown_variables(std::env::vars_os().map(|(name, _)| name)) {
        told.warning(unknown.to_string())
            .advise("Correct or unset it: vramshim run refuses to start the job.")
            .at(unknown.0.as_str());
    }
    bypasses(told, environment, config.strategy);
    paddle(told, environment);
    tensorflow_and_jax(told, environment);
    let own = [table::POD_LIMIT.name, table::LIMIT.name];
    let inherits = own
        .iter()
        .any(|name| environment.text(name).as_deref() == Some("inherit"));
    for variable in [
        table::LIMIT_OF_HAMI_CORE.name,
        table::LIMITS_OF_HAMI_CORE[0],
        table::LIMIT_OF_VGPU_MANAGER.name,
        table::LIMITS_OF_VGPU_MANAGER[0],
    ] {
        if let Some(value) = environment.text(variable).filter(|_| !inherits) {
            told.note(format!(
                "{variable}={value} limits the next layer; the library does not use it as its own limit"
            ))
            .advise("With VRAMSHIM_MEMORY_LIMIT=inherit the library holds the limit too, and reports each refusal.")
            .at(variable);
        }
    }
    if told.list.len() == before {
        let name = config.strategy.name();
        told.ok(format!("strategy {name}; no variable conflicts with it"));
    }
}

/// Finds framework settings with which memory is recorded, but does not come from the strategy.
fn bypasses(told: &mut Findings, environment: &Environment, strategy: Strategy) {
    let is_pytorchs_allocator = environment.text(table::TORCH.name).as_deref() == Some("allocator");
    let all = BYPASSES
        .iter()
        .flat_map(|(names, settings, source)| names.iter().map(move |name| (*name, settings, source)));
    for (variable, settings, (source, instead)) in all {
        if PYTORCH.contains(&variable) && is_pytorchs_allocator {
            continue;
        }
        let value = environment.text(variable).unwrap_or_default().replace(' ', "");
        let is_set = |setting: &&str| settings.contains(&setting.to_ascii_lowercase().as_str());
        for setting in value.split(',').filter(is_set) {
            let (severity, advice) = match strategy {
                Strategy::Passthrough => (Severity::Note, "It is recorded nevertheless."),
                _ => (Severity::Warning, *instead),
            };
            let name = strategy.name();
            let found = format!("with {variable}={setting} memory comes from {source}: {name} does not serve it");
            told.tell(severity, found).advise(advice).at(variable);
        }
    }
    for variable in PYTORCH.into_iter().filter(|_| is_pytorchs_allocator) {
        if let Some(value) = environment.text(variable) {
            told.note(format!(
                "{variable}={value} has no effect, because the library is PyTorch's allocator"
            ))
            .advise("It has, if PyTorch's own allocator takes over, as for memory pools.")
            .at(variable);
        }
    }
}

fn paddle(told: &mut Findings, environment: &Environment) {
    let paddles = table::PADDLES_STRATEGY.name;
    let variables = [table::STRATEGY.name, paddles].map(|variable| environment.text(variable));
    if let [Some(ours), Some(theirs)] = variables
        && Strategy::parse(&ours) != Strategy::parse(&theirs)
    {
        told.warning(format!(
            "the library serves with {ours}, and Paddle caches with {theirs} on top of it"
        ))
        .advise("Set both to the same strategy, or leave VRAMSHIM_STRATEGY out.")
        .at(paddles);
    }
}

fn tensorflow_and_jax(told: &mut Findings, environment: &Environment) {
    let is_off = |variable| {
        let value = environment.text(variable).unwrap_or_default().to_ascii_lowercase();
        ["0", "false"].contains(&value.as_str())
    };
    if is_off("TF_FORCE_GPU_ALLOW_GROWTH") {
        told.warning("TensorFlow takes nearly all memory of each device at once")
            .advise("TF_FORCE_GPU_ALLOW_GROWTH=true lets it grow, and the strategy see its requests.")
            .at("TF_FORCE_GPU_ALLOW_GROWTH");
    }
    let jax = ["XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"];
    let set = jax.into_iter().find(|variable| environment.text(variable).is_some());
    if let Some(variable) = set.filter(|_| !is_off(jax[0])) {
        let share = environment.text(jax[1]).unwrap_or_else(|| "75 %".into());
        told.warning(format!("JAX takes {share} of each device's memory at once"))
            .advise("XLA_PYTHON_CLIENT_PREALLOCATE=false lets it grow, and the strategy see its requests.")
            .at(variable);
    }
}

/// Warns if the strategy would reserve a share of a device's free memory while others hold over a tenth of the device.
pub fn check_shared(told: &mut Findings, setup: &mut Setup) {
    let config = &setup.config;
    if !config.strategy.reserves_up_front() || config.settings.initial_bytes > 0 {
        return;
    }
    let layer = setup.driver.as_ref().and_then(layer_of);
    for device in setup.devices() {
        let others = device.held_by_others(layer).unwrap_or(0);
        if others > device.total_memory / 10 {
            told.warning(format!(
                "{} reserves {:.0} % of what is free on device {} at first use, and others have {} of it already",
                config.strategy.name(),
                config.settings.share() * 95.0,
                device.ordinal,
                size(others)
            ))
            .advise(
                "Say how much the job may have: FLAGS_initial_gpu_memory_in_mb, or a smaller \
                 FLAGS_fraction_of_gpu_memory_to_use.",
            )
            .at(table::FRACTION.name);
        }
    }
}
