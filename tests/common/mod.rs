//! Runs real processes under the built library: `target/release` (or `VRAMSHIM_ARTIFACTS`) is what is tested, over the
//! simulated GPU of `target/simgpu` (or `VRAMSHIM_SIMGPU`). Missing artefacts fail a test; nothing is skipped.
#![allow(dead_code)] // each test file uses its part

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(120);

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn artefact(variable: &str, default: &str, file: &str) -> PathBuf {
    let folder = std::env::var_os(variable).map_or_else(|| root().join(default), PathBuf::from);
    let path = folder.join(file);
    assert!(path.exists(), "{} is not there: run scripts/build first", path.display());
    path
}

pub fn library() -> PathBuf {
    artefact("VRAMSHIM_ARTIFACTS", "target/release", "libvramshim.so")
}

pub fn program() -> PathBuf {
    artefact("VRAMSHIM_ARTIFACTS", "target/release", "vramshim")
}

pub fn simgpu(file: &str) -> PathBuf {
    artefact("VRAMSHIM_SIMGPU", "target/simgpu", file)
}

pub fn simgpu_folder() -> PathBuf {
    simgpu("libcuda.so.1").parent().unwrap().to_owned()
}

/// A folder that goes when the test ends.
pub fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("vramshim-test").tempdir().unwrap()
}

/// Compiles a C client of `tests/clients`; `arguments` follow the source on the command line.
pub fn compile(folder: &Path, source: &str, arguments: &[&str]) -> PathBuf {
    let out = folder.join(Path::new(source).file_stem().unwrap());
    compile_to(&out, source, arguments);
    out
}

pub fn compile_to(out: &Path, source: &str, arguments: &[&str]) {
    let clients = root().join("tests/clients");
    let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(out)
        .arg(clients.join(source))
        .args([OsStr::new("-I"), root().join("tests/simgpu").as_os_str(), OsStr::new("-I"), root().as_os_str()])
        .args([OsStr::new("-L"), simgpu_folder().as_os_str()])
        .args(arguments)
        .arg("-ldl")
        .output()
        .expect("cc runs");
    assert!(output.status.success(), "{source}:\n{}", String::from_utf8_lossy(&output.stderr));
}

/// A process to run over the simulated GPU, under the library unless told otherwise.
pub struct Job {
    command: Command,
    preload: Vec<PathBuf>,
    directory: PathBuf,
}

impl Job {
    /// Journals go to `directory`, which is also where the process runs.
    pub fn new(program: impl AsRef<OsStr>, directory: &Path) -> Job {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["VRAMSHIM_", "SIMGPU_", "FLAGS_", "CUDA_", "LD_PRELOAD"].iter().any(|start| text.starts_with(start)) {
                command.env_remove(&name);
            }
        }
        command
            .current_dir(directory)
            .env("LD_LIBRARY_PATH", simgpu_folder())
            .env("VRAMSHIM_DIR", directory.join("journals"))
            .env("SIMGPU_DEVICES", "2")
            .stdin(Stdio::null());
        Job { command, preload: vec![library()], directory: directory.to_owned() }
    }

    pub fn without_library(mut self) -> Self {
        self.preload.clear();
        self
    }

    /// Preloaded behind (or, where the library was taken out, instead of) ours.
    pub fn preload(mut self, path: PathBuf) -> Self {
        self.preload.push(path);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn env_remove(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub fn strategy(self, strategy: &str) -> Self {
        self.env("VRAMSHIM_STRATEGY", strategy)
    }

    /// The command as it will be run.
    pub fn into_command(mut self) -> Command {
        let list: Vec<OsString> = self.preload.iter().map(|path| path.clone().into_os_string()).collect();
        if !list.is_empty() {
            self.command.env("LD_PRELOAD", list.join(OsStr::new(":")));
        }
        self.command
    }

    pub fn output(self) -> Output {
        let mut command = self.into_command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(command.spawn().unwrap())
    }

    /// Runs, demands success, returns standard output.
    pub fn run(self) -> String {
        let output = self.output();
        assert!(
            output.status.success(),
            "{:?}\nstdout:\n{}\nstderr:\n{}",
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    pub fn journals(&self) -> PathBuf {
        self.directory.join("journals")
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits for a process, with its output; one that hangs is killed and fails the test.
pub fn finish(mut child: Child) -> Output {
    let read = |stream: Option<Box<dyn Read + Send>>| {
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut stream) = stream {
                let _ = stream.read_to_end(&mut bytes);
            }
            let _ = send.send(bytes);
        });
        receive
    };
    let stdout = read(child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    let stderr = read(child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    let status = wait(&mut child);
    let rest = Duration::from_secs(10);
    Output {
        status,
        stdout: stdout.recv_timeout(rest).unwrap_or_default(),
        stderr: stderr.recv_timeout(rest).unwrap_or_default(),
    }
}

pub fn wait(child: &mut Child) -> ExitStatus {
    let started = std::time::Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > TIMEOUT {
            let _ = child.kill();
            panic!("process {} hung", child.id());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// `vramshim inspect --json` of a journal or folder.
pub fn inspect(path: &Path) -> Value {
    let output = Command::new(program()).arg("inspect").arg("--json").arg(path).output().unwrap();
    assert!(output.status.success(), "inspect: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("inspect prints JSON")
}

/// The one job of a folder of journals.
pub fn only_job(path: &Path) -> Value {
    let jobs = inspect(path)["jobs"].as_array().unwrap().clone();
    assert_eq!(jobs.len(), 1, "one journal in {}", path.display());
    jobs.into_iter().next().unwrap()
}

/// Bytes by (device, class).
pub type Sums = BTreeMap<(i64, String), u64>;

/// `[{"device","class",..}]` as sums, read by `bytes`; entries of zero are left out.
pub fn sums(list: &Value, bytes: impl Fn(&Value) -> u64) -> Sums {
    let entries = list.as_array().expect("a list of totals");
    let keyed = entries
        .iter()
        .map(|one| ((one["device"].as_i64().unwrap(), one["class"].as_str().unwrap().to_owned()), bytes(one)));
    keyed.filter(|(_, bytes)| *bytes > 0).collect()
}

/// One checkpoint of a client: what it asked for is what the account says was requested, and what the simulator holds
/// is what the account says is reserved, class by class and device by device.
pub fn assert_agree(line: &Value, context: &str) {
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{context}: {value} is no count of bytes"));
    let own = sums(&line["own"], |one| number(&one["requested"]));
    let requested = sums(&line["account"]["totals"], |one| number(&one["requested"]["current"]));
    assert_eq!(own, requested, "{context}: requested");
    if !line["truth"].is_null() {
        let truth = sums(&line["truth"]["totals"], |one| number(&one["reserved"]));
        let reserved = sums(&line["account"]["totals"], |one| number(&one["reserved"]["current"]));
        assert_eq!(truth, reserved, "{context}: reserved");
    }
}

/// Every checkpoint of a client's output; at least `least` of them, and one that is not empty.
pub fn assert_checkpoints(output: &str, least: usize, context: &str) -> Vec<Value> {
    let lines: Vec<Value> = output
        .lines()
        .filter(|line| line.starts_with("{\"own\""))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|problem| panic!("{context}: {problem}: {line}")))
        .collect();
    assert!(lines.len() >= least, "{context}: {} checkpoints", lines.len());
    assert!(lines.iter().any(|line| !line["own"].as_array().unwrap().is_empty()), "{context}: nothing was counted");
    for (number, line) in lines.iter().enumerate() {
        assert_agree(line, &format!("{context}, checkpoint {number}"));
    }
    lines
}
