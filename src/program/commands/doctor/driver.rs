//! Checks whether the driver is installed and works, which devices it has, and whether `auto_growth` can map memory on
//! them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base::identity::may_use_a_device;
use base::layers::known;
use base::process::job_name_of_process;
use base::text::shown;

use super::Setup;
use super::probe::{COMMAND, Device, Driver};
use super::report::{Findings, Severity};
use crate::analysis::names;
use crate::failure::Failure;
use crate::launch::binary::{self, Binary};
use crate::launch::environment::Environment;
use crate::launch::processes::{self, Answer, End};
use crate::render::format::{printable, size};

/// How many other processes on a device are named.
const NAMED: usize = 3;

/// Asks the driver through the preloaded layers of the job. If the driver fails, asks it without layers, to find the
/// cause.
pub fn check(told: &mut Findings, setup: &mut Setup) {
    let (environment, limit) = (setup.environment, setup.timeout);
    let layers = layers_of(environment);
    let answer = match ask(environment, &layers, limit) {
        Ok(answer) => answer,
        Err(error) => {
            told.problem(format!("the driver could not be asked: {error}"))
                .advise("/proc must be mounted, and this program must be allowed to start processes.");
            return;
        }
    };
    let driver = last_state(&answer);
    match answer.end {
        End::By(_) if driver.done => describe(told, &driver),
        End::Interrupted => return,
        _ => {
            let how = failure(&answer, &driver, limit);
            let is_layered = layers.iter().any(|path| !environment.is_beside(path));
            let alone = is_layered.then(|| ask(environment, &[], limit));
            let answers = |answer: Answer| last_state(&answer).done && matches!(answer.end, End::By(_));
            if alone.is_some_and(|answer| answer.is_ok_and(answers)) {
                told.problem(format!("{how}; without what LD_PRELOAD names it answers"))
                    .advise("A preloaded library causes this: leave it out, or update it.");
            } else {
                told.problem(how).advise(
                    "Every CUDA program fails like this here. Look into the kernel's log (dmesg, NVRM and Xid lines); \
                     reload the kernel module or reboot; in a container, compare with the host. A layer in place of \
                     the driver may also be to blame.",
                );
            }
        }
    }
    setup.driver = Some(driver);
}

/// Asks the driver for what needs it: fails if it has no device that answers.
pub fn ask_driver(environment: &Environment, limit: Duration) -> Result<Driver, Failure> {
    let answer = ask(environment, &layers_of(environment), limit).map_err(Failure::failed)?;
    let driver = last_state(&answer);
    let why = match (&driver.load_error, driver.init) {
        (Some(error), _) => format!("libcuda.so.1 cannot be loaded: {error}"),
        (None, Some(code)) if code != 0 => format!("cuInit answered {} ({code})", names::result_name(code)),
        _ if !driver.done => failure(&answer, &driver, limit),
        _ if driver.devices.is_empty() => "the driver has no device".to_owned(),
        _ => return Ok(driver),
    };
    Err(Failure::failed(format!("{why}; `vramshim doctor` says more")))
}

/// Starts this program again as a child, which asks the driver under these preloads.
fn ask(environment: &Environment, preloads: &[PathBuf], limit: Duration) -> io::Result<Answer> {
    // The running program, even if another file has its name by now.
    let mut command = Command::new("/proc/self/exe");
    environment.apply(command.arg(COMMAND), preloads);
    processes::ask(&mut command, limit)
}

/// What the child knew when it began its last step.
fn last_state(answer: &Answer) -> Driver {
    answer.states().next_back().unwrap_or_default()
}

/// What the job preloads beside the library.
pub fn layers_of(environment: &Environment) -> Vec<PathBuf> {
    let preloads = environment.preloads().into_iter();
    preloads.filter(|path| !environment.is_library(path)).collect()
}

fn failure(answer: &Answer, driver: &Driver, limit: Duration) -> String {
    let file = driver.path.as_ref().map(|path| format!(" ({path})"));
    let who = format!("the driver{}", file.unwrap_or_default());
    answer.failure(&who, &driver.doing, limit)
}

fn describe(told: &mut Findings, driver: &Driver) {
    if let Some(error) = &driver.load_error {
        told.problem(format!("libcuda.so.1 cannot be loaded: {error}"))
            .advise(advice_if_not_loaded(error));
        return;
    }
    let path = driver.path.clone().unwrap_or_else(|| "libcuda.so.1".into());
    told.look_at(&path);
    let elf = binary::read(Path::new(&path)).ok().flatten();
    let simulated = elf.as_ref().is_some_and(|elf| elf.exports("simgpu_truth"));
    let version = driver.version.map_or_else(
        || "of unknown version".into(),
        |version| format!("of CUDA {}.{}", version / 1000, version % 1000 / 10),
    );
    let what = if simulated { "the simulated driver" } else { "a driver" };
    match driver.init {
        Some(0) => told.ok(format!("{what} {version}")),
        Some(code) => {
            told.problem(format!("cuInit failed with {} ({code})", names::result_name(code)))
                .advise(advice_if_not_initialised(code));
            return;
        }
        None => {
            told.problem("libcuda.so.1 has no cuInit")
                .advise("The file is no driver: reinstall the driver.");
            return;
        }
    };
    // The simulated driver alone is not compared with NVIDIA's. A layer that loads the simulated driver exports
    // `simgpu_truth`, too, and must be reported as a layer.
    if let Some(elf) = elf.filter(|_| !simulated || !driver.behind.is_empty()) {
        in_place_of_the_driver(told, Path::new(&path), &elf, &driver.behind);
    }
    told.begin("device");
    if driver.devices.is_empty() {
        let hidden = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let hidden = hidden.map(|value| format!("no device is visible (CUDA_VISIBLE_DEVICES={value:?})"));
        told.problem(hidden.unwrap_or_else(|| "the driver knows no device".into()))
            .advise(
                "Give the container or the job a device; an index or UUID in CUDA_VISIBLE_DEVICES that is not there \
                 hides all that follow it.",
            );
    }
    for device in &driver.devices {
        describe_device(told, device, layer_of(driver));
        abilities(told, device);
    }
}

/// The layer that answers a job's requests, if that is not the driver.
pub fn layer_of(known: &Driver) -> Option<&str> {
    let (path, allocates) = (known.path.as_deref(), known.allocates.as_deref());
    let preloaded = allocates.filter(|allocates| path.is_some_and(|path| !same_file(allocates, path)));
    preloaded.or_else(|| path.filter(|_| !known.behind.is_empty()))
}

pub fn same_file(one: &str, other: &str) -> bool {
    let real = |path: &str| Path::new(path).canonicalize().ok();
    one == other || real(one).is_some() && real(one) == real(other)
}

fn advice_if_not_loaded(error: &str) -> &'static str {
    if error.contains("wrong ELF class") {
        "A 32-bit driver comes first in the loader's path: put the folder of the 64-bit driver before it."
    } else if Path::new("/proc/driver/nvidia/version").exists() {
        "The kernel has the driver, but its library is not in the loader's path. In a container: start it with the \
         NVIDIA runtime and NVIDIA_DRIVER_CAPABILITIES=compute,utility; else add the driver's folder to \
         LD_LIBRARY_PATH or run ldconfig."
    } else {
        "Install NVIDIA's driver, or give the container a GPU (docker run --gpus all). Without a GPU, --sim 24GiB \
         takes a simulated one."
    }
}

fn advice_if_not_initialised(code: i32) -> &'static str {
    match code {
        2 => "The device or the host is out of memory: nvidia-smi shows which processes hold it.",
        100 | 101 => {
            "No device is visible, or one is named that is not there: compare CUDA_VISIBLE_DEVICES and \
             NVIDIA_VISIBLE_DEVICES with nvidia-smi -L. A container needs its devices (docker run --gpus all)."
        }
        _ => "No CUDA program starts here: compare with nvidia-smi, and look into the kernel's log (dmesg).",
    }
}

/// Adds a note if a layer stands in place of NVIDIA's driver.
fn in_place_of_the_driver(told: &mut Findings, path: &Path, elf: &Binary, behind: &[String]) {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let why = match (behind.first(), known(&real)) {
        (Some(behind), _) => format!("it loads {behind}"),
        (None, Some(layer)) => format!("it has the file name of {}", layer.project),
        (None, None) if elf.exports("dlsym") => "it exports dlsym".to_owned(),
        (None, None) => return,
    };
    told.note(format!("libcuda.so.1 is not NVIDIA's own: {why}"))
        .advise("A layer stands in place of the driver. The library calls it as the next layer.")
        .of("layer")
        .at(shown(&real));
}

fn describe_device(told: &mut Findings, device: &Device, layer: Option<&str>) {
    let (ordinal, total) = (device.ordinal, size(device.total_memory));
    let mut about = format!("device {ordinal}: {}, {total}", device.name);
    if let Some(free) = device.free_memory {
        about += &format!(", {} free", size(free));
    }
    if let (Some(layer), Some(free)) = (layer, device.free_memory) {
        let kept = size(device.total_memory.saturating_sub(free));
        about += &format!(
            " by the figures of {}, a layer, which keeps or counts {kept}",
            shown(Path::new(layer))
        );
    }
    told.ok(about).at(device.uuid.as_deref().unwrap_or_default());
    occupied(told, device, layer);
    match device.compute_mode {
        0 => {}
        2 => {
            told.problem(format!("device {ordinal} is in compute mode \"prohibited\""))
                .advise("nvidia-smi -c DEFAULT allows contexts again.");
        }
        _ => {
            told.note(format!(
                "device {ordinal} serves one process at a time (exclusive compute mode)"
            ))
            .advise("A second process on this device fails; use nvidia-smi -c DEFAULT, or MPS.");
        }
    }
    if let Some((function, code)) = &device.context_error {
        let name = names::result_name(*code);
        told.problem(format!("device {ordinal}: {function} failed with {name} ({code})"))
            .advise(match code {
                2 => "There is no room for a context: nvidia-smi shows which processes hold the device's memory.",
                _ => "No job can use it: look at nvidia-smi and dmesg.",
            });
    }
}

fn occupied(told: &mut Findings, device: &Device, layer: Option<&str>) {
    let others = device.held_by_others(layer).unwrap_or(0);
    let known: u64 = device.others.iter().filter_map(|held| held.used).sum();
    if device.others.is_empty() && (device.context_bytes.is_none() || others <= device.total_memory / 50) {
        return;
    }
    let mut holders: Vec<_> = device.others.iter().collect();
    holders.sort_by_key(|held| std::cmp::Reverse(held.used));
    let name = |pid: u32| match job_name_of_process(pid) {
        _ if device.host_pids || !may_use_a_device(pid) => format!("host pid {pid}, not visible here,"),
        Some(name) => format!("process {pid} {}", printable(&name, 40)),
        None => format!("process {pid}"),
    };
    let named = holders.iter().take(NAMED);
    let mut words: Vec<String> = named
        .map(|held| format!("{} has {}", name(held.pid), size(held.used.unwrap_or(0))))
        .collect();
    if holders.len() > NAMED {
        words.push(format!("{} processes have the rest", holders.len() - NAMED));
    }
    if known < others && others - known > device.total_memory / 50 {
        words.push(format!("NVML does not say who has {}", size(others - known)));
    }
    let held = others.max(known);
    let severity = if held >= device.total_memory / 2 {
        Severity::Warning
    } else {
        Severity::Note
    };
    let of = layer.map_or_else(|| size(device.total_memory), |_| "the device behind the layer".into());
    let found = format!(
        "device {}: others hold {} of {of}: {}",
        device.ordinal,
        size(held),
        words.join(", ")
    );
    told.tell(severity, found)
        .advise("A job gets only the rest. vramshim reconcile shows who has which bytes.");
}

/// Says what the device has for mapping and sharing memory. `forecast` says what follows for the strategy.
fn abilities(told: &mut Findings, device: &Device) {
    const CHECK: &str = "vmm";
    let ordinal = device.ordinal;
    if let Some(granule) = device.granularity {
        let granule = size(granule);
        told.ok(format!("device {ordinal}: a granule of {granule} was made and mapped"))
            .of(CHECK);
    } else if let Some((function, code)) = &device.granule_error {
        let name = names::result_name(*code);
        told.note(format!(
            "device {ordinal} says it has virtual memory management, but {function} failed with {name} ({code})"
        ))
        .of(CHECK);
    } else if device.context_error.is_none() {
        told.note(format!("device {ordinal} has no virtual memory management"))
            .of(CHECK);
    }
    if device.vmm && !device.descriptors {
        told.note(format!("device {ordinal} cannot share memory by file descriptor"))
            .advise(
                "Processes that share tensors (torch.multiprocessing) cannot under auto_growth: naive_best_fit or \
                 passthrough can.",
            )
            .of(CHECK);
    }
    if !device.pools {
        told.note(format!("device {ordinal} has no memory pools"))
            .advise("cudaMallocAsync fails on this device: set no setting that uses it.")
            .of(CHECK);
    }
}
