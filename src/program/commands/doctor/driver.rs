//! Checks whether the driver is installed and works, which devices it has, and whether `auto_growth` can map memory on
//! them.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::process::job_name_of;
use base::text::shown;

use super::ask::{Answer, ask};
use super::layers;
use super::probe::{Device, Driver, What};
use super::report::Findings;
use crate::analysis::names;
use crate::failure::Failure;
use crate::launch::binary::{self, Binary, Kind};
use crate::launch::environment::Environment;
use crate::launch::processes::End;
use crate::render::format::{self, duration};

const CHECK: &str = "driver";
const VMM: &str = "vmm";
/// How many other processes on a device are named.
const NAMED: usize = 3;

/// Asks the driver through the preloaded layers of the job. If the driver fails, asks it without layers, to find the
/// cause.
pub fn check(findings: &mut Findings, environment: &Environment, limit: Duration) -> Option<Driver> {
    let layers = layers_of(environment);
    let answer = match ask(What::Driver, environment, &layers, limit) {
        Ok(answer) => answer,
        Err(error) => {
            findings.problem(
                CHECK,
                format!("the driver could not be asked: {error}"),
                "/proc must be mounted, and this program must be allowed to start processes.",
                "",
            );
            return None;
        }
    };
    let driver = last_state(&answer);
    match answer.end {
        End::By(_) if driver.done => {
            describe(findings, &driver);
            return Some(driver);
        }
        End::Interrupted => return None,
        _ => {}
    }
    let how = failure(&answer, &driver, limit);
    let others: Vec<&PathBuf> = layers.iter().filter(|path| !environment.is_stand_in(path)).collect();
    let alone = if others.is_empty() {
        None
    } else {
        ask(What::Driver, environment, &[], limit).ok()
    };
    if alone.is_some_and(|answer| last_state(&answer).done && matches!(answer.end, End::By(_))) {
        findings.problem(
            CHECK,
            format!("{how}; without what LD_PRELOAD names it answers"),
            "A preloaded library causes this: leave it out, or update it.",
            "",
        );
    } else {
        findings.problem(
            CHECK,
            how,
            "Every CUDA program fails like this here. Look into the kernel's log (dmesg, NVRM and Xid lines); reload \
             the kernel module or reboot; in a container, compare with the host. A layer in place of the driver may also be \
             to blame.", "");
    }
    Some(driver)
}

/// Asks the driver for other commands, which need it: fails if it has no device that answers.
pub fn ask_driver(environment: &Environment, limit: Duration) -> Result<Driver, Failure> {
    let answer = ask(What::Driver, environment, &layers_of(environment), limit).map_err(Failure::failed)?;
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

/// What the job preloads beside the library.
pub fn layers_of(environment: &Environment) -> Vec<PathBuf> {
    let preloads = environment.preloads().into_iter();
    preloads.filter(|path| !environment.is_library(path)).collect()
}

/// The last state that the child wrote.
pub fn last_state(answer: &Answer) -> Driver {
    let lines = answer.lines.iter().rev();
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .next()
        .unwrap_or_default()
}

fn failure(answer: &Answer, driver: &Driver, limit: Duration) -> String {
    let doing = match driver.doing.as_str() {
        "" => "starting",
        "dlopen" => "dlopen(\"libcuda.so.1\")",
        doing => doing,
    };
    let file = driver
        .path
        .as_ref()
        .map_or_else(String::new, |path| format!(" ({path})"));
    match answer.end {
        End::By(status) => match status.signal() {
            Some(signal) => format!("the driver{file} crashed with signal {signal} in {doing}"),
            None => format!(
                "the driver{file} ended the process in {doing} ({status}){}",
                last_error_line(&answer.error_text)
            ),
        },
        _ => format!(
            "the driver{file} did not come back from {doing} within {}",
            duration(limit.as_nanos() as u64)
        ),
    }
}

fn last_error_line(error_text: &str) -> String {
    let last = error_text.lines().rfind(|line| !line.trim().is_empty());
    last.map_or_else(String::new, |line| format!(": {}", line.trim()))
}

fn describe(findings: &mut Findings, driver: &Driver) {
    if let Some(error) = &driver.load_error {
        return not_loaded(findings, error);
    }
    let path = driver.path.clone().unwrap_or_else(|| "libcuda.so.1".into());
    let file = binary::read(Path::new(&path)).ok();
    let elf = match &file {
        Some(Kind::Elf(elf)) => Some(elf),
        _ => None,
    };
    let simulated = elf.is_some_and(|elf| elf.exports("simgpu_truth"));
    let version = driver.version.map_or_else(
        || "of unknown version".into(),
        |version| format!("of CUDA {}.{}", version / 1000, version % 1000 / 10),
    );
    match driver.init {
        Some(0) => {}
        Some(code) => return not_initialised(findings, code, &path),
        None => {
            findings.problem(
                CHECK,
                "libcuda.so.1 has no cuInit",
                "The file is no driver: reinstall the driver.",
                path,
            );
            return;
        }
    }
    let what = if simulated { "the simulated driver" } else { "a driver" };
    findings.ok(CHECK, format!("{what} {version}"), &path);
    // The simulated driver alone is not compared with NVIDIA's. A layer that loads the simulated driver exports
    // `simgpu_truth`, too, and must be reported as a layer.
    if let Some(elf) = elf.filter(|_| !simulated || !driver.behind.is_empty()) {
        in_place_of_the_driver(findings, Path::new(&path), elf, &driver.behind);
    }
    if let Some(answers) = driver.answers.as_ref().filter(|answers| !same_file(answers, &path)) {
        findings.note(
            "layer",
            "another library answers for the driver's functions",
            "The library calls it as the next layer.",
            answers,
        );
    }
    if driver.devices.is_empty() {
        let hidden = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        findings.problem(
            "device",
            match &hidden {
                Some(value) => format!("no device is visible (CUDA_VISIBLE_DEVICES={value:?})"),
                None => "the driver knows no device".into(),
            },
            "Give the container or the job a device; an index or UUID in CUDA_VISIBLE_DEVICES that is not there hides \
             all that follow it.",
            "",
        );
    }
    for device in &driver.devices {
        describe_device(findings, device);
        abilities(findings, device);
    }
}

pub fn same_file(one: &str, other: &str) -> bool {
    let real = |path: &str| Path::new(path).canonicalize().ok();
    one == other || real(one).is_some() && real(one) == real(other)
}

fn not_loaded(findings: &mut Findings, error: &str) {
    let module = Path::new("/proc/driver/nvidia/version").exists();
    let advice = match (module, error.contains("wrong ELF class")) {
        (_, true) => "A 32-bit driver comes first in the loader's path: put the folder of the 64-bit driver before it.",
        (true, _) => {
            "The kernel has the driver, but its library is not in the loader's path. In a container: start it with the \
             NVIDIA runtime and NVIDIA_DRIVER_CAPABILITIES=compute,utility; else add the driver's folder to \
             LD_LIBRARY_PATH or run ldconfig."
        }
        (false, _) => {
            "Install NVIDIA's driver, or give the container a GPU (docker run --gpus all). Without a GPU, --sim 24GiB \
             takes a simulated one."
        }
    };
    findings.problem(CHECK, format!("libcuda.so.1 cannot be loaded: {error}"), advice, "");
}

/// Adds a problem that explains the code with which `cuInit` failed.
fn not_initialised(findings: &mut Findings, code: i32, path: &str) {
    let nodes = |name: &str| Path::new("/dev").join(name).exists();
    let advice = match code {
        2 => "The device or the host is out of memory: nvidia-smi shows which processes hold it.",
        34 => {
            "This is the toolkit's stub, made for linking only: take the folder `stubs` out of LD_LIBRARY_PATH and let \
             the loader find the driver's own library."
        }
        46 => "The device is used exclusively by another process, or is being reset: look at nvidia-smi -q -d COMPUTE.",
        100 if !nodes("nvidiactl") => {
            "There is no /dev/nvidiactl: load the kernel module (nvidia-smi does), or give the container its devices \
             (docker run --gpus all)."
        }
        100 => "No device is visible: look at CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES, and at nvidia-smi -L.",
        101 => "CUDA_VISIBLE_DEVICES names a device that is not there: compare with nvidia-smi -L.",
        802 => "The NVSwitch fabric is not ready: start nvidia-fabricmanager in the driver's own version.",
        803 => {
            "The library and the kernel module are of different driver versions, as after an update without a reboot, or \
             in a container with a driver of its own: reboot, or reload the module, or take the library out of the image."
        }
        804 => {
            "The forward-compatibility package (cuda-compat) is found first, and this device does not support it: take \
             its folder out of LD_LIBRARY_PATH, or update the driver."
        }
        805..=809 => "The MPS control daemon does not answer correctly: check nvidia-cuda-mps-control and its log.",
        999 if !nodes("nvidia-uvm") => {
            "There is no /dev/nvidia-uvm: load the module nvidia_uvm (nvidia-modprobe -u -c 0), or give the container \
             that device."
        }
        999 => {
            "Often the module nvidia_uvm after suspend or an update (rmmod nvidia_uvm; modprobe nvidia_uvm), or a device \
             that fell off the bus: look for Xid lines in dmesg."
        }
        _ => "Look into the kernel's log (dmesg) and compare with nvidia-smi.",
    };
    findings.problem(
        CHECK,
        format!("cuInit failed with {} ({code})", names::result_name(code)),
        advice,
        path,
    );
}

/// Adds a note if a layer stands in place of NVIDIA's driver.
fn in_place_of_the_driver(findings: &mut Findings, path: &Path, elf: &Binary, behind: &[String]) {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let why = match (behind.first(), layers::project(&real)) {
        (Some(behind), _) => format!("it loads {behind}"),
        (None, Some(project)) => format!("it has the file name of {project}"),
        (None, None) if elf.exports("dlsym") => "it exports dlsym".to_owned(),
        (None, None) => return,
    };
    findings.note(
        "layer",
        format!("libcuda.so.1 is not NVIDIA's own: {why}"),
        "A layer stands in place of the driver. The library calls it as the next layer.",
        shown(&real),
    );
}

fn describe_device(findings: &mut Findings, device: &Device) {
    let mut about = format!(
        "device {}: {}, {}",
        device.ordinal,
        device.name,
        format::size(device.total_memory)
    );
    if let Some(free) = device.free_memory {
        about += &format!(", {} free", format::size(free));
    }
    findings.ok("device", about, device.uuid.clone().unwrap_or_default());
    occupied(findings, device);
    match device.compute_mode {
        0 => {}
        2 => {
            findings.problem(
                "device",
                format!("device {} is in compute mode \"prohibited\"", device.ordinal),
                "nvidia-smi -c DEFAULT allows contexts again.",
                "",
            );
        }
        _ => {
            findings.note(
                "device",
                format!(
                    "device {} serves one process at a time (exclusive compute mode)",
                    device.ordinal
                ),
                "A second process on this device fails; use nvidia-smi -c DEFAULT, or MPS.",
                "",
            );
        }
    }
    if let Some((function, code)) = &device.context_error {
        findings.problem(
            "device",
            format!(
                "device {}: {function} failed with {} ({code})",
                device.ordinal,
                names::result_name(*code)
            ),
            match code {
                2 => "There is no room for a context: nvidia-smi shows which processes hold the device's memory.",
                _ => "No job can use it: look at nvidia-smi and dmesg.",
            },
            "",
        );
    }
}

/// Says who else holds memory of the device.
fn occupied(findings: &mut Findings, device: &Device) {
    let own = device.context_bytes.unwrap_or(0);
    let used = device.free_memory.map(|free| device.total_memory.saturating_sub(free));
    let others = used.map_or(0, |used| used.saturating_sub(own));
    let told: u64 = device.others.iter().map(|held| held.bytes).sum();
    if device.others.is_empty() && (device.context_bytes.is_none() || others <= device.total_memory / 50) {
        return;
    }
    let mut holders: Vec<_> = device.others.iter().collect();
    holders.sort_by_key(|held| std::cmp::Reverse(held.bytes));
    let name = |pid: u32| match std::fs::read(format!("/proc/{pid}/cmdline")) {
        Ok(line) if !line.is_empty() => format!("{pid} {}", format::printable(&job_name_of(&line), 40)),
        _ => pid.to_string(),
    };
    let mut words: Vec<String> = holders
        .iter()
        .take(NAMED)
        .map(|held| format!("process {} has {}", name(held.process), format::size(held.bytes)))
        .collect();
    if holders.len() > NAMED {
        words.push(format!("{} processes have the rest", holders.len() - NAMED));
    }
    if told < others && others - told > device.total_memory / 50 {
        words.push(format!("NVML does not say who has {}", format::size(others - told)));
    }
    let text = format!(
        "device {}: others hold {} of {}: {}",
        device.ordinal,
        format::size(others.max(told)),
        format::size(device.total_memory),
        words.join(", ")
    );
    let advice = "A job gets only the rest. vramshim reconcile shows who has which bytes.";
    if others.max(told) >= device.total_memory / 2 {
        findings.warning("device", text, advice, "")
    } else {
        findings.note("device", text, advice, "")
    };
}

/// Says what the device has for mapping and sharing memory. `forecast` says what follows for the strategy.
fn abilities(findings: &mut Findings, device: &Device) {
    let ordinal = device.ordinal;
    match (&device.granule_error, device.granularity) {
        (_, Some(granule)) => {
            let found = format!(
                "device {ordinal}: a granule of {} was made and mapped",
                format::size(granule)
            );
            findings.ok(VMM, found, "");
        }
        (Some((function, code)), None) => {
            let found = format!(
                "device {ordinal} says it has virtual memory management, but {function} failed with {} ({code})",
                names::result_name(*code)
            );
            findings.note(VMM, found, "", "");
        }
        (None, None) if device.context_error.is_none() => {
            findings.note(
                VMM,
                format!("device {ordinal} has no virtual memory management"),
                "",
                "",
            );
        }
        _ => {}
    }
    if device.vmm && !device.descriptors {
        let found = format!("device {ordinal} cannot share memory by file descriptor");
        let advice = "Processes that share tensors (torch.multiprocessing) cannot under auto_growth: naive_best_fit or \
                      passthrough can.";
        findings.note(VMM, found, advice, "");
    }
    if !device.pools {
        let found = format!("device {ordinal} has no memory pools");
        findings.note(
            VMM,
            found,
            "cudaMallocAsync fails on this device: set no setting that uses it.",
            "",
        );
    }
}
