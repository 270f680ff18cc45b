//! The contenders: the allocators that are measured. Each contender runs in processes of `pair.c` or
//! `grow.c`. A process of `pair.c` allocates its live blocks, then runs one round for each line on its stdin.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The memory of the simulated device for `pair.c`: enough for a million live blocks, whose mean size is 512 KiB.
const MEMORY_OF_PAIRS: &str = "1TiB";

/// Variables that are removed from the environment, because they would change the result.
pub const FOREIGN: [&str; 14] = [
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

/// The folders with the files that `scripts/bench` built, and one for temporary files.
pub struct Places {
    /// Holds `vramshim`, `libvramshim.so` and the libraries of this crate.
    pub release: PathBuf,
    /// Holds `pair`, `torch.so` and `rmm.so`.
    pub programs: PathBuf,
    pub simgpu: PathBuf,
    /// For the journals and the stderr of each process.
    pub scratch: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// cuMemAlloc under the library with this strategy, with a journal.
    Library(&'static str),
    /// `vramshim_torch_alloc` of the library with this strategy, with a journal.
    Tensors(&'static str),
    /// The driver's functions without the library. The text is the argument CONTENDER of `pair`.
    Driver(&'static str),
    /// A library that `pair` loads and that calls the CUDA runtime. The text is its file name.
    Runtime(&'static str),
    /// mimalloc, which allocates host memory.
    Host,
}

#[derive(Clone, Copy)]
pub struct Contender {
    pub name: &'static str,
    pub what: &'static str,
    pub kind: Kind,
}

pub const CONTENDERS: [Contender; 10] = [
    Contender {
        name: "naive_best_fit_tensors",
        what: "vramshim_torch_alloc: in stream order, as torch",
        kind: Kind::Tensors("naive_best_fit"),
    },
    Contender {
        name: "auto_growth_tensors",
        what: "vramshim_torch_alloc: in stream order, as torch",
        kind: Kind::Tensors("auto_growth"),
    },
    Contender {
        name: "naive_best_fit",
        what: "cuMemAlloc under the library: each free waits, as bare",
        kind: Kind::Library("naive_best_fit"),
    },
    Contender {
        name: "auto_growth",
        what: "cuMemAlloc under the library: each free waits, as bare",
        kind: Kind::Library("auto_growth"),
    },
    Contender {
        name: "passthrough",
        what: "cuMemAlloc under the library: each free waits, as bare",
        kind: Kind::Library("passthrough"),
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
    /// Whether the contender is measured on this device if the user names no contenders. `async` is left out on the
    /// simulated GPU, because the speed of simulated stream-ordered pools says nothing about a driver's. `rmm` is left
    /// out there because its library carries a CUDA runtime of its own.
    pub fn belongs(&self, device: Device) -> bool {
        match self.name {
            "async" | "rmm" => device == Device::Gpu,
            "mimalloc" => device == Device::Simulated,
            _ => true,
        }
    }

    /// The strategy of a contender that runs under the library.
    pub fn strategy(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Library(strategy) | Kind::Tensors(strategy) => Some(strategy),
            _ => None,
        }
    }

    /// Runs a program of the bench for this contender with these arguments.
    pub fn command(
        &self,
        places: &Places,
        device: Device,
        program: &str,
        simulated_memory: &str,
        arguments: &[u64],
        journals: &Path,
    ) -> Command {
        let program = places.programs.join(program);
        let mut command = match self.strategy() {
            Some(strategy) => {
                let mut command = Command::new(places.release.join("vramshim"));
                command.args(["run", "--quiet", "--strategy", strategy, "--dir"]);
                command.arg(journals);
                if device == Device::Simulated {
                    command.args(["--sim", simulated_memory]);
                }
                command.arg("--").arg(&program);
                command
            }
            None => Command::new(&program),
        };
        match self.kind {
            Kind::Library(_) => command.arg("driver"),
            Kind::Tensors(_) => command.arg("tensors"),
            Kind::Driver(name) => command.arg(name),
            Kind::Runtime(file) => command.arg(places.programs.join(file)),
            Kind::Host => command.arg(places.release.join("libbench_mimalloc.so")),
        };
        command.args(arguments.iter().map(u64::to_string));
        for name in FOREIGN {
            command.env_remove(name);
        }
        if self.kind == Kind::Host {
            // The other allocators keep idle memory, so mimalloc must not return any to the system.
            command.env("MIMALLOC_PURGE_DELAY", "-1");
        }
        // For the library, `vramshim run --sim` sets these variables.
        if device == Device::Simulated && self.strategy().is_none() {
            let mut path = places.simgpu.clone().into_os_string();
            if let Some(before) = std::env::var_os("LD_LIBRARY_PATH").filter(|before| !before.is_empty()) {
                path.push(":");
                path.push(before);
            }
            command
                .env("LD_LIBRARY_PATH", path)
                .env("SIMGPU_MEMORY", simulated_memory);
            if let Kind::Runtime(_) = self.kind {
                // PyTorch's libraries carry an RPATH, which wins over LD_LIBRARY_PATH but not over LD_PRELOAD.
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

/// The limits of a round. Each thread stops at the limit that it reaches first.
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

/// Nanoseconds a pair: the wall time, or the processor time of all threads, divided by the pairs of all threads.
#[derive(Clone, Copy)]
pub struct Sample {
    pub wall: f64,
    pub processor: f64,
}

/// A process that holds its live blocks and waits for the next round.
pub struct Running {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    folder: PathBuf,
}

impl Running {
    /// Starts the process and waits until it has allocated its live blocks.
    pub fn start(contender: &Contender, places: &Places, device: Device, load: &Load) -> Result<Running, String> {
        let folder = places
            .scratch
            .join(format!("{}-{}-{}", contender.name, load.live, load.threads));
        let failed = |error: std::io::Error| error.to_string();
        fs::create_dir_all(&folder).map_err(failed)?;
        let complaints = File::create(folder.join("stderr")).map_err(failed)?;
        let mut child = contender
            .command(
                places,
                device,
                "pair",
                MEMORY_OF_PAIRS,
                &[load.live, load.threads, load.round.milliseconds, load.round.pairs],
                &folder.join("journals"),
            )
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

    /// Runs one round.
    pub fn round(&mut self) -> Result<Sample, String> {
        let asked = match &mut self.input {
            Some(input) => input.write_all(b"go\n").and_then(|()| input.flush()),
            None => return Err("ended".to_owned()),
        };
        // The answer is read even if the write failed: a process that ended gives the reason in its last line.
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

    /// `why`, followed by the last line that the process wrote to stderr.
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
        // A process that still runs ends when its input is closed.
        self.input = None;
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
