//! What the process tests share: the paths of the files under test, the C clients, and jobs that run under the library
//! on a simulated GPU. `totals` compares what a job counted with the simulator's table and the library's ledger.

mod disk;
pub mod layer;
pub mod made;
pub mod member;
mod printed;
pub mod random;
mod totals;
pub mod traces;
pub mod training;

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

pub use disk::{mounted, small_disk};
pub use printed::{Fields, Printed, Runs, assert_fields, assert_says, vramshim, vramshim_with};
pub use totals::{
    Totals, assert_agree, assert_all_agree, assert_ended_well, assert_journal_agrees, assert_requested, assert_whole,
    checkpoints, live, reserved, totals,
};

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
pub const OUT_OF_MEMORY: i32 = 2;

/// Tests of one expression each: `name => expression;`.
#[macro_export]
macro_rules! tests {
    ($($(#[$note:meta])* $name:ident => $body:expr;)+) => {$(
        $(#[$note])*
        #[test]
        fn $name() {
            $body;
        }
    )+};
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository")
}

/// A folder inside Cargo's target folder for files that the tests build.
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

fn folder_of_artifacts() -> PathBuf {
    folder("VRAMSHIM_ARTIFACTS", "target/release")
}

pub fn library() -> PathBuf {
    existing(folder_of_artifacts().join("libvramshim.so"))
}

pub fn program() -> PathBuf {
    existing(folder_of_artifacts().join("vramshim"))
}

pub fn simulated(name: &str) -> PathBuf {
    existing(folder("VRAMSHIM_SIMGPU", "target/simgpu").join(name))
}

/// The text of every C file and header: a client may include any of them.
fn hash_of_sources() -> u64 {
    static HASH: OnceLock<u64> = OnceLock::new();
    fn add(folder: &Path, hasher: &mut DefaultHasher) {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                add(&path, hasher);
            } else if path
                .extension()
                .is_some_and(|kind| ["c", "cpp", "h"].iter().any(|source| kind == *source))
            {
                std::fs::read(&path).expect("a source").hash(hasher);
            }
        }
    }
    *HASH.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        for folder in ["tests", "src/simgpu/include"] {
            add(&root().join(folder), &mut hasher);
        }
        std::fs::read(root().join("shim.h")).expect("shim.h").hash(&mut hasher);
        hasher.finish()
    })
}

/// Compiles `tests/SOURCE` to a program or library of this name, unless an earlier run did so. The arguments go to the
/// compiler; an argument that begins with `lib` names a library of the simulated GPU to link with.
pub fn client(source: &str, name: &str, arguments: &[&str]) -> PathBuf {
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.args("-std=gnu11 -O1 -g -Wall -Wextra -Werror -pthread -D_GNU_SOURCE".split(' '));
    for folder in ["", "src/simgpu/include", "tests/support/clients"] {
        command.arg("-I").arg(root().join(folder));
    }
    command.arg(root().join("tests").join(source));
    for argument in arguments {
        if argument.starts_with("lib") {
            command.arg(simulated(argument));
        } else {
            command.arg(argument);
        }
    }
    command.arg("-ldl").arg("-o");
    let mut hasher = DefaultHasher::new();
    (hash_of_sources(), format!("{command:?}")).hash(&mut hasher);
    let folder = scratch("clients").join(format!("{:016x}", hasher.finish()));
    let output = folder.join(name);
    if output.exists() {
        return output;
    }
    std::fs::create_dir_all(&folder).expect("a folder for the client");
    // Another test may compile the same client at this moment, so the finished file is renamed into its place.
    let fresh = tempfile::NamedTempFile::new_in(&folder)
        .expect("a file")
        .into_temp_path();
    let result = command.arg(&fresh).output().expect("a C compiler");
    assert!(
        result.status.success(),
        "{source}: {}",
        String::from_utf8_lossy(&result.stderr)
    );
    fresh.persist(&output).expect("a new client");
    output
}

/// A strategy with the settings that a test gives it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Strategy {
    pub name: &'static str,
    pub environment: &'static [(&'static str, &'static str)],
}

impl Strategy {
    /// The same strategy with these settings alone.
    pub const fn with(self, environment: &'static [(&'static str, &'static str)]) -> Strategy {
        Strategy { environment, ..self }
    }
}

const fn named(name: &'static str) -> Strategy {
    Strategy { name, environment: &[] }
}

pub const PASSTHROUGH: Strategy = named("passthrough");
/// `naive_best_fit` with its default size: one segment of nearly all memory.
pub const NAIVE_BEST_FIT_OF_ALL: Strategy = named("naive_best_fit");
pub const NAIVE_BEST_FIT: Strategy = NAIVE_BEST_FIT_OF_ALL.with(&[
    ("FLAGS_initial_gpu_memory_in_mb", "64"),
    ("FLAGS_reallocate_gpu_memory_in_mb", "16"),
]);
pub const AUTO_GROWTH: Strategy = named("auto_growth");
pub const AUTO_GROWTH_CHUNKS: Strategy = AUTO_GROWTH.with(&[("FLAGS_auto_growth_chunk_size_in_mb", "32")]);
/// Without virtual memory management `auto_growth` uses chunks.
pub const AUTO_GROWTH_WITHOUT_VMM: Strategy = AUTO_GROWTH.with(&[("SIMGPU_VMM", "0")]);
/// The options of `vramshim inspect` that look at a journal most closely.
pub const CLOSE_LOOK: [&str; 4] = ["--top", "stack", "--leaks", "--growth"];

pub const THREE: [Strategy; 3] = [PASSTHROUGH, NAIVE_BEST_FIT_OF_ALL, AUTO_GROWTH];
pub const STRATEGIES: [Strategy; 4] = [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH, AUTO_GROWTH_CHUNKS];

/// A command under the library on a simulated GPU, in a temporary folder of its own.
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
        // What the developer's own doctor has stored must not change a test.
        command.env("XDG_STATE_HOME", folder.path().join("state"));
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
        self.env("VRAMSHIM_STRATEGY", strategy.name).envs(strategy.environment)
    }

    pub fn sim(self, memory: &str, devices: u32) -> Job {
        self.env("SIMGPU_MEMORY", memory)
            .env("SIMGPU_DEVICES", devices.to_string())
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Job {
        self.command.env(name, value);
        self
    }

    pub fn envs(mut self, variables: &[(&str, &str)]) -> Job {
        self.command.envs(variables.iter().copied());
        self
    }

    /// On a simulated host of its own, which the processes that the job starts share.
    pub fn on_one_host(self) -> Job {
        let state = self.folder().join("state-of-the-host");
        self.env("SIMGPU_STATE", state)
    }

    pub fn without(mut self, name: &str) -> Job {
        self.command.env_remove(name);
        self
    }

    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Job {
        self.command.args(arguments);
        self
    }

    pub fn alone(mut self) -> Job {
        self.preloads.retain(|path| *path != library());
        self
    }

    /// Preloads another library after `libvramshim.so`.
    pub fn preload(mut self, path: PathBuf) -> Job {
        self.preloads.push(path);
        self
    }

    /// Preloads another library before `libvramshim.so`.
    pub fn preload_in_front(mut self, path: PathBuf) -> Job {
        self.preloads.insert(0, path);
        self
    }

    /// The longest time that `run` waits for the end.
    pub fn limit(mut self, limit: Duration) -> Job {
        self.limit = limit;
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

    /// Starts the command with pipes for stdin, stdout and stderr. The folder is removed when the caller drops it.
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

    /// Runs the command to its end. Panics if it takes longer than the limit.
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

/// Runs a job that runs out of memory. The library waits for NVML's figures only for some milliseconds and then explains
/// the failure without them. If that happened, the job is run again, twice at most.
pub fn run_to_shortage(run: impl Fn() -> Finished) -> Finished {
    let lacks_figures = |line: &str| line.contains(" = this process ") && !line.contains(" + others ");
    let mut finished = run();
    for _ in 0..2 {
        if !finished.stderr.lines().any(lacks_figures) {
            break;
        }
        println!("run again, because NVML answered too late: {}", finished.stderr);
        finished = run();
    }
    finished
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
    /// What ran, for messages.
    pub name: String,
}

impl Finished {
    pub fn ok(self) -> Finished {
        assert!(self.status.success(), "{}: {}\n{}", self.name, self.status, self.stderr);
        self
    }

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

    /// What a command of `vramshim` says of the journals.
    pub fn told(&self, arguments: &[&str]) -> Printed {
        vramshim_with(arguments, [self.folder.path().join("journals")])
    }

    /// The output of `vramshim inspect --json` for the only process that wrote a journal.
    pub fn inspect(&self) -> Value {
        let mut jobs = self.inspect_all();
        assert_eq!(jobs.len(), 1, "{}: one journal", self.name);
        jobs.remove(0)
    }

    pub fn inspect_all(&self) -> Vec<Value> {
        inspect(&self.folder.path().join("journals"))
    }

    /// The library's lines on stderr: the letter of the severity and the message.
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

/// The jobs that `vramshim inspect --json` prints for a folder or file.
pub fn inspect(path: &Path) -> Vec<Value> {
    vramshim_with(&["inspect", "--json"], [path]).ok().json()["jobs"]
        .list()
        .clone()
}

/// Splits `I0715 14:25:17.112233 12345 start.rs:88] words` into ('I', "words"). `None` if the line has another form.
pub fn glog(line: &str) -> Option<(char, String)> {
    let (head, words) = line.split_once("] ")?;
    let severity = head.chars().next().filter(|letter| "DIWE".contains(*letter))?;
    let zero = |letter: char| if letter.is_ascii_digit() { '0' } else { letter };
    let shape: String = head[1..].chars().map(zero).collect();
    let (thread, place) = shape.strip_prefix("0000 00:00:00.000000 ")?.split_once(' ')?;
    let (file, number) = place.rsplit_once(':')?;
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|digit| digit == '0');
    let is_whole = is_number(thread) && is_number(number) && !file.is_empty() && !file.contains(' ');
    is_whole.then(|| (severity, words.to_owned()))
}

pub fn left_out(what: &str) {
    println!("left out: {what}");
}

pub fn in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}
