//! What the process tests share: the artefacts under test, C clients compiled on the way, jobs under the library on a
//! simulated GPU, and the comparison of what a job counted, what the simulator knows and what the library says.

pub mod layer;
pub mod member;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository")
}

/// A folder in Cargo's target folder for what tests build.
pub fn scratch(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("the path of this test");
    // target/PROFILE/deps/TEST
    let target = program.ancestors().nth(3).expect("a target folder");
    target.join("tmp").join(name)
}

fn folder(variable: &str, default: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| root().join(default), PathBuf::from)
}

fn existing(path: PathBuf) -> PathBuf {
    assert!(path.exists(), "{} is missing: run scripts/build first", path.display());
    path
}

pub fn library() -> PathBuf {
    existing(folder("VRAMSHIM_ARTIFACTS", "target/release").join("libvramshim.so"))
}

pub fn program() -> PathBuf {
    existing(folder("VRAMSHIM_ARTIFACTS", "target/release").join("vramshim"))
}

/// A library of the simulated GPU.
pub fn simulated(name: &str) -> PathBuf {
    existing(folder("VRAMSHIM_SIMGPU", "target/simgpu").join(name))
}

/// A program made from `tests/SOURCE`, compiled once a test binary. Arguments that name a library of the
/// simulated GPU (`libcuda.so.1`) link to it.
pub fn client(source: &str, name: &str, arguments: &[&str]) -> PathBuf {
    static MADE: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    // A test that failed to compile says so itself; the others may go on.
    let mut made = MADE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(path) = made.get(name) {
        return path.clone();
    }
    let folder = scratch("clients");
    std::fs::create_dir_all(&folder).expect("a folder for clients");
    let output = folder.join(name);
    // Another test binary may be running the same client: it is replaced whole.
    let fresh = folder.join(format!("{name}-{}", std::process::id()));
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.args([
        "-std=gnu11",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        "-D_GNU_SOURCE",
    ]);
    for folder in ["", "src/simgpu/include", "tests/support/clients"] {
        command.arg("-I").arg(root().join(folder));
    }
    command.arg("-o").arg(&fresh).arg(root().join("tests").join(source));
    for argument in arguments {
        match argument.starts_with("lib") {
            true => command.arg(simulated(argument)),
            false => command.arg(argument),
        };
    }
    let result = command.arg("-ldl").output().expect("a C compiler");
    assert!(
        result.status.success(),
        "{source}: {}",
        String::from_utf8_lossy(&result.stderr)
    );
    std::fs::rename(&fresh, &output).expect("a new client");
    made.insert(name.to_owned(), output.clone());
    output
}

/// How a policy is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Strategy {
    pub name: &'static str,
    pub environment: &'static [(&'static str, &'static str)],
}

pub const PASSTHROUGH: Strategy = Strategy {
    name: "passthrough",
    environment: &[],
};
pub const NAIVE_BEST_FIT: Strategy = Strategy {
    name: "naive_best_fit",
    environment: &[
        ("FLAGS_initial_gpu_memory_in_mb", "64"),
        ("FLAGS_reallocate_gpu_memory_in_mb", "16"),
    ],
};
/// As Paddle sizes it: one reservation of nearly all there is.
pub const NAIVE_BEST_FIT_OF_ALL: Strategy = Strategy {
    environment: &[],
    ..NAIVE_BEST_FIT
};
pub const AUTO_GROWTH: Strategy = Strategy {
    name: "auto_growth",
    environment: &[],
};
pub const AUTO_GROWTH_CHUNKS: Strategy = Strategy {
    name: "auto_growth",
    environment: &[("FLAGS_auto_growth_chunk_size_in_mb", "32")],
};
/// One of each, as they are where nobody sets them up.
pub const THREE: [Strategy; 3] = [PASSTHROUGH, NAIVE_BEST_FIT_OF_ALL, AUTO_GROWTH];
pub const STRATEGIES: [Strategy; 4] = [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH, AUTO_GROWTH_CHUNKS];

/// A command on a simulated GPU with the library in front of it, in a folder of its own.
pub struct Job {
    command: Command,
    preloads: Vec<PathBuf>,
    folder: TempDir,
    limit: Duration,
    input: Option<String>,
}

impl Job {
    pub fn new(program: impl AsRef<OsStr>) -> Job {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["VRAMSHIM_", "FLAGS_", "SIMGPU_", "LAYER_", "CUDA_", "LD_PRELOAD"]
                .iter()
                .any(|start| text.starts_with(start))
            {
                command.env_remove(&name);
            }
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let driver = simulated("libcuda.so.1");
        command
            .current_dir(folder.path())
            .env("LD_LIBRARY_PATH", driver.parent().unwrap());
        command.env("VRAMSHIM_DIR", folder.path().join("journals"));
        Job {
            command,
            preloads: vec![library()],
            folder,
            limit: Duration::from_secs(120),
            input: None,
        }
        .sim("4GiB", 2)
    }

    pub fn strategy(self, strategy: Strategy) -> Job {
        let job = self.env("VRAMSHIM_STRATEGY", strategy.name);
        strategy
            .environment
            .iter()
            .fold(job, |job, (name, value)| job.env(name, value))
    }

    pub fn sim(self, memory: &str, devices: u32) -> Job {
        self.env("SIMGPU_MEMORY", memory)
            .env("SIMGPU_DEVICES", devices.to_string())
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Job {
        self.command.env(name, value);
        self
    }

    pub fn without(mut self, name: &str) -> Job {
        self.command.env_remove(name);
        self
    }

    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Job {
        self.command.args(arguments);
        self
    }

    /// Without the library in front.
    pub fn alone(mut self) -> Job {
        self.preloads.retain(|path| *path != library());
        self
    }

    /// With another library behind ours.
    pub fn preload(mut self, path: PathBuf) -> Job {
        self.preloads.push(path);
        self
    }

    /// With another library in front of ours.
    pub fn preload_in_front(mut self, path: PathBuf) -> Job {
        self.preloads.insert(0, path);
        self
    }

    pub fn input(mut self, text: &str) -> Job {
        self.input = Some(text.to_owned());
        self
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Starts it with pipes for stdin, stdout and stderr; the folder goes when the caller drops it.
    pub fn start(mut self) -> (Child, TempDir) {
        if !self.preloads.is_empty() {
            let paths: Vec<&OsStr> = self.preloads.iter().map(|path| path.as_os_str()).collect();
            self.command.env("LD_PRELOAD", paths.join(OsStr::new(":")));
        }
        self.command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        (self.command.spawn().expect("a start"), self.folder)
    }

    /// Runs it to its end. A hang is a failure, not a wait.
    pub fn run(mut self) -> Finished {
        let (limit, input) = (self.limit, self.input.take());
        let name = format!("{:?}", self.command);
        let (mut child, folder) = self.start();
        let mut stdin = child.stdin.take().unwrap();
        if let Some(text) = input {
            stdin.write_all(text.as_bytes()).expect("its input");
        }
        drop(stdin);
        let stdout = drain(child.stdout.take().unwrap());
        let stderr = drain(child.stderr.take().unwrap());
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child") {
                break status;
            }
            if Instant::now() > end {
                child.kill().ok();
                panic!("{name} did not end within {limit:?}");
            }
            std::thread::sleep(Duration::from_millis(3));
        };
        Finished {
            status,
            stdout: stdout.join().unwrap(),
            stderr: stderr.join().unwrap(),
            folder,
            name,
        }
    }
}

fn drain(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("its output");
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub folder: TempDir,
    name: String,
}

impl Finished {
    /// Ends the test unless the job exited with 0.
    pub fn ok(self) -> Finished {
        assert!(self.status.success(), "{}: {}\n{}", self.name, self.status, self.stderr);
        self
    }

    /// The lines of JSON on stdout.
    pub fn json(&self) -> Vec<Value> {
        self.stdout
            .lines()
            .filter(|line| line.starts_with('{'))
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect()
    }

    pub fn journals(&self) -> Vec<PathBuf> {
        journals_in(&self.folder.path().join("journals"))
    }

    /// What `vramshim inspect --json` says of the one process that kept a journal.
    pub fn inspect(&self) -> Value {
        let mut jobs = self.inspect_all();
        assert_eq!(jobs.len(), 1, "{}: one journal", self.name);
        jobs.remove(0)
    }

    pub fn inspect_all(&self) -> Vec<Value> {
        inspect(&self.folder.path().join("journals"))
    }

    /// The library's own lines on stderr: glog's form, a letter for the severity, what is said.
    pub fn said(&self) -> Vec<(char, String)> {
        self.stderr.lines().filter_map(glog).collect()
    }
}

pub fn journals_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension() == Some(OsStr::new("vraj")));
    paths.sort();
    paths
}

/// `vramshim inspect --json` of a folder or file.
pub fn inspect(path: &Path) -> Vec<Value> {
    let output = Command::new(program())
        .arg("inspect")
        .arg("--json")
        .arg(path)
        .output()
        .expect("inspect");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "inspect {}: {}\n{errors}",
        path.display(),
        output.status
    );
    let page: Value = serde_json::from_slice(&output.stdout).expect("JSON of inspect");
    page["jobs"].as_array().expect("jobs").clone()
}

/// `I0715 14:25:17.112233 12345 start.rs:88] words` as ('I', "words"), where a line is exactly of that form.
pub fn glog(line: &str) -> Option<(char, String)> {
    let (head, words) = line.split_once("] ")?;
    let parts: Vec<&str> = head.split(' ').collect();
    let [date, time, thread, place] = parts[..] else {
        return None;
    };
    let severity = date.chars().next().filter(|letter| "DIWE".contains(*letter))?;
    let shaped = |text: &str, shape: &str| {
        text.len() == shape.len()
            && text.chars().zip(shape.chars()).all(|(letter, like)| match like {
                'd' => letter.is_ascii_digit(),
                like => letter == like,
            })
    };
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (file, line_number) = place.rsplit_once(':')?;
    let whole = shaped(&date[1..], "dddd")
        && shaped(time, "dd:dd:dd.dddddd")
        && number(thread)
        && number(line_number)
        && !file.is_empty();
    whole.then(|| (severity, words.to_owned()))
}

/// Bytes by device and class; what is zero is left out.
pub type Totals = BTreeMap<(i64, String), u64>;

pub fn totals(rows: &Value, bytes: impl Fn(&Value) -> &Value) -> Totals {
    let rows = rows.as_array().unwrap_or_else(|| panic!("no rows: {rows}"));
    rows.iter()
        .map(|row| {
            let key = (
                row["device"].as_i64().unwrap(),
                row["class"].as_str().unwrap().to_owned(),
            );
            (key, bytes(row).as_u64().unwrap_or_else(|| panic!("no bytes: {row}")))
        })
        .filter(|(_, bytes)| *bytes > 0)
        .collect()
}

/// What the simulator knows to be reserved, in the classes that the job asked in: `auto_growth` serves linear memory from
/// physical memory that it maps itself, so what a device has of that beyond the job's own is linear.
pub fn reserved(checkpoint: &Value) -> Totals {
    let own = totals(&checkpoint["own"], |row| &row["requested"]);
    let mut truth = totals(&checkpoint["truth"]["totals"], |row| &row["reserved"]);
    let name = |device: i64, class: &str| (device, class.to_owned());
    for device in 0..32 {
        let mut excess = |class: &str| {
            let held = truth.get_mut(&name(device, class))?;
            let jobs = own.get(&name(device, class)).copied().unwrap_or(0);
            Some(
                std::mem::replace(held, jobs)
                    .checked_sub(jobs)
                    .expect("no less than the job's own"),
            )
        };
        let mapped = excess("vmm").unwrap_or(0);
        excess("address_range");
        *truth.entry(name(device, "linear")).or_default() += mapped;
    }
    truth.retain(|_, bytes| *bytes > 0);
    truth
}

/// One checkpoint of a client: requested is what the job itself counted, reserved is the simulator's table, byte for
/// byte, class by class, device by device. Under passthrough the simulator's requested is the job's as well.
pub fn assert_agree(checkpoint: &Value, strategy: Strategy, context: &str) {
    let (own, truth, account) = (
        &checkpoint["own"],
        &checkpoint["truth"]["totals"],
        &checkpoint["account"]["totals"],
    );
    let own = totals(own, |row| &row["requested"]);
    assert_eq!(
        totals(account, |row| &row["requested"]["current"]),
        own,
        "requested, {context}"
    );
    assert_eq!(
        totals(account, |row| &row["reserved"]["current"]),
        reserved(checkpoint),
        "reserved, {context}"
    );
    if strategy.name == "passthrough" {
        assert_eq!(
            totals(truth, |row| &row["requested"]),
            own,
            "the client's own count, {context}"
        );
    }
}

/// The journal of the ended job tells the numbers of its last checkpoint.
pub fn assert_journal_agrees(job: &Value, last: &Value, context: &str) {
    for (kind, wanted) in [
        ("requested", totals(&last["own"], |row| &row["requested"])),
        ("reserved", reserved(last)),
    ] {
        let mut told = Totals::new();
        for device in job["devices"].as_array().unwrap().iter().chain([&job["host_memory"]]) {
            for class in device["classes"].as_array().unwrap() {
                let key = (
                    device["device"].as_i64().unwrap(),
                    class["class"].as_str().unwrap().to_owned(),
                );
                told.insert(key, class[kind]["current"].as_u64().unwrap());
            }
            let sum = wanted.iter().filter(|((on, class), _)| {
                Some(*on) == device["device"].as_i64() && !matches!(class.as_str(), "imported" | "address_range")
            });
            let sum: u64 = sum.map(|(_, bytes)| bytes).sum();
            assert_eq!(
                device[kind]["current"], sum,
                "{kind} of device {}, {context}",
                device["device"]
            );
        }
        told.retain(|_, bytes| *bytes > 0);
        assert_eq!(told, wanted, "{kind} in the journal, {context}");
    }
}

/// A list of live allocations as a multiset of what identifies them for a user.
pub fn live(list: &Value) -> BTreeMap<(String, u64, i64), u32> {
    let mut set = BTreeMap::new();
    for one in list.as_array().expect("a live list") {
        let api = one["api"].as_str().unwrap().to_owned();
        *set.entry((api, one["size"].as_u64().unwrap(), one["device"].as_i64().unwrap()))
            .or_default() += 1;
    }
    set
}

/// Tells the person who reads the test's output that something was not there to be tested.
pub fn left_out(what: &str) {
    println!("left out: {what}");
}

pub fn in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

pub fn text(path: &Path) -> OsString {
    path.as_os_str().to_owned()
}
