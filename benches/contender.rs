//! What is measured: each contender is a process of `pair.c` that waits for its turn.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Larger than a million blocks of mean size, 512 KiB each.
const SIMULATED_MEMORY: &str = "1TiB";

/// Settings of the caller's that would change what is measured.
const FOREIGN: [&str; 14] = [
    "CUDA_VISIBLE_DEVICES",
    "FLAGS_allocator_strategy",
    "FLAGS_auto_growth_chunk_size_in_mb",
    "FLAGS_fraction_of_gpu_memory_to_use",
    "FLAGS_free_idle_chunk",
    "FLAGS_free_when_no_cache_hit",
    "FLAGS_initial_gpu_memory_in_mb",
    "FLAGS_reallocate_gpu_memory_in_mb",
    "LD_PRELOAD",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "VRAMSHIM_JOURNAL_MAX",
    "VRAMSHIM_STRATEGY",
    "SIMGPU_LATENCY",
];

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Device {
    Simulated,
    Gpu,
}

impl Device {
    pub fn key(self) -> &'static str {
        match self {
            Device::Simulated => "simulated",
            Device::Gpu => "gpu",
        }
    }
}

/// Where the pieces lie that `scripts/bench` built.
pub struct Places {
    /// Of `vramshim` and of what this folder builds.
    pub release: PathBuf,
    /// Of `pair`, `torch.so`, `rmm.so`.
    pub programs: PathBuf,
    pub simgpu: PathBuf,
    /// For journals and what the processes say.
    pub scratch: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The library under this strategy, journal on.
    Library,
    /// The driver's functions with nothing in front; what `pair` calls them.
    Driver(&'static str),
    /// A library that `pair` loads, over the CUDA runtime.
    Runtime(&'static str),
    /// mimalloc, on host memory.
    Host,
}

#[derive(Clone, Copy)]
pub struct Contender {
    pub name: &'static str,
    pub what: &'static str,
    pub kind: Kind,
}

pub const CONTENDERS: [Contender; 8] = [
    Contender {
        name: "naive_best_fit",
        what: "vramshim",
        kind: Kind::Library,
    },
    Contender {
        name: "auto_growth",
        what: "vramshim",
        kind: Kind::Library,
    },
    Contender {
        name: "passthrough",
        what: "vramshim",
        kind: Kind::Library,
    },
    Contender {
        name: "bare",
        what: "cuMemAlloc, no library",
        kind: Kind::Driver("driver"),
    },
    Contender {
        name: "async",
        what: "cuMemAllocAsync, no library",
        kind: Kind::Driver("async"),
    },
    Contender {
        name: "torch",
        what: "PyTorch's caching allocator",
        kind: Kind::Runtime("torch.so"),
    },
    Contender {
        name: "rmm",
        what: "RMM's pool",
        kind: Kind::Runtime("rmm.so"),
    },
    Contender {
        name: "mimalloc",
        what: "host memory: the floor",
        kind: Kind::Host,
    },
];

impl Contender {
    /// Whether it is measured on this device unless named: the simulator's stream-ordered pools are nobody's.
    pub fn belongs(&self, device: Device) -> bool {
        match self.name {
            "async" | "rmm" => device == Device::Gpu,
            "mimalloc" => device == Device::Simulated,
            _ => true,
        }
    }

    fn command(&self, places: &Places, device: Device, load: &Load, journals: &Path) -> Command {
        let pair = places.programs.join("pair");
        let mut command = match self.kind {
            Kind::Library => {
                let mut command = Command::new(places.release.join("vramshim"));
                command.args(["run", "--quiet", "--strategy", self.name, "--dir"]);
                command.arg(journals);
                if device == Device::Simulated {
                    command.args(["--sim", SIMULATED_MEMORY]);
                }
                command.arg("--").arg(&pair);
                command
            }
            _ => Command::new(&pair),
        };
        match self.kind {
            Kind::Library => command.arg("driver"),
            Kind::Driver(name) => command.arg(name),
            Kind::Runtime(file) => command.arg(places.programs.join(file)),
            Kind::Host => command.arg(places.release.join("libbench_mimalloc.so")),
        };
        command.args([load.live, load.threads, load.round.milliseconds, load.round.pairs].map(|n| n.to_string()));
        for name in FOREIGN {
            command.env_remove(name);
        }
        if self.kind == Kind::Host {
            // No allocator of GPU memory gives idle memory back by itself.
            command.env("MIMALLOC_PURGE_DELAY", "-1");
        }
        // vramshim points the job at the simulator itself.
        if device == Device::Simulated && self.kind != Kind::Library {
            let mut path = places.simgpu.clone().into_os_string();
            if let Some(before) = std::env::var_os("LD_LIBRARY_PATH").filter(|before| !before.is_empty()) {
                path.push(":");
                path.push(before);
            }
            command
                .env("LD_LIBRARY_PATH", path)
                .env("SIMGPU_MEMORY", SIMULATED_MEMORY);
            if let Kind::Runtime(_) = self.kind {
                // Preloaded, because PyTorch carries run paths that win over the variable.
                command.env("LD_PRELOAD", stand_in_runtimes(&places.simgpu));
            }
        }
        command
    }
}

fn stand_in_runtimes(simgpu: &Path) -> OsString {
    let paths: Vec<OsString> = ["libcudart.so.12", "libcudart.so.13"]
        .iter()
        .map(|name| simgpu.join(name))
        .filter(|path| path.exists())
        .map(PathBuf::into_os_string)
        .collect();
    paths.join(":".as_ref())
}

/// The most that one round takes of a thread.
#[derive(Clone, Copy)]
pub struct Round {
    pub milliseconds: u64,
    pub pairs: u64,
}

#[derive(Clone, Copy)]
pub struct Load {
    pub live: u64,
    pub threads: u64,
    pub round: Round,
}

/// Nanoseconds a pair, all threads' pairs taken together.
#[derive(Clone, Copy)]
pub struct Sample {
    pub wall: f64,
    pub processor: f64,
}

/// A process that holds its blocks and waits.
pub struct Running {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    folder: PathBuf,
}

impl Running {
    /// Starts the process and waits until its blocks are there.
    pub fn start(contender: &Contender, places: &Places, device: Device, load: &Load) -> Result<Running, String> {
        let folder = places
            .scratch
            .join(format!("{}-{}-{}", contender.name, load.live, load.threads));
        let failed = |error: std::io::Error| error.to_string();
        fs::create_dir_all(&folder).map_err(failed)?;
        let complaints = File::create(folder.join("stderr")).map_err(failed)?;
        let mut child = contender
            .command(places, device, load, &folder.join("journals"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(complaints)
            .spawn()
            .map_err(failed)?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut running = Running {
            child,
            input,
            output,
            folder,
        };
        let line = running.line()?;
        match line.as_str() {
            "ready" => Ok(running),
            _ => Err(format!("unexpected line {line:?}")),
        }
    }

    /// One round.
    pub fn round(&mut self) -> Result<Sample, String> {
        let asked = match &mut self.input {
            Some(input) => input.write_all(b"go\n").and_then(|()| input.flush()),
            None => return Err("ended".to_owned()),
        };
        // A process that is gone says why in its last line.
        let line = self.line()?;
        asked.map_err(|error| error.to_string())?;
        let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [pairs, wall, processor] if pairs > 0.0 => Ok(Sample {
                wall: wall / pairs,
                processor: processor / pairs,
            }),
            _ => Err(format!("unexpected line {line:?}")),
        }
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).map_err(|error| error.to_string())?;
        if read == 0 {
            self.input = None;
            let status = self.child.wait().map_err(|error| error.to_string())?;
            return Err(self.with_complaint(status.to_string()));
        }
        let line = line.trim_end();
        match line.strip_prefix("refused ") {
            Some(why) => Err(self.with_complaint(why.to_owned())),
            None => Ok(line.to_owned()),
        }
    }

    /// With the last thing that the process said on stderr.
    fn with_complaint(&self, why: String) -> String {
        let said = fs::read_to_string(self.folder.join("stderr")).unwrap_or_default();
        match said.lines().rev().find(|line| !line.trim().is_empty()) {
            Some(last) => format!("{why} ({})", last.trim()),
            None => why,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The end of its input ends the process; it may already be gone.
        self.input = None;
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
