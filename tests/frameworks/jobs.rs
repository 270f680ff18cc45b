//! Jobs of PyTorch that fork from a process which has imported it: the import takes longer than most of these jobs.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use support::{Finished, Job, program};

use super::script;
use super::switch::with_options;

const LIMIT: Duration = Duration::from_secs(600);

/// The process that forks; `jobs.py` says how. It ends with its stdin, so with the tests.
pub struct Parent(Mutex<Child>);

impl Parent {
    /// Starts the process. The job is a Python with what all forks have in common.
    pub fn start(job: Job) -> Parent {
        let (mut child, _folder) = job.args([script("jobs.py")]).start();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        if line != "ready\n" {
            child.stderr.take().unwrap().read_to_string(&mut line).unwrap();
            panic!("no PyTorch: {line}");
        }
        Parent(Mutex::new(child))
    }

    /// Runs a job to its end, with more variables. The arguments are those of Python: a script, or `-c` and code.
    pub fn run(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Finished {
        let folder = tempfile::tempdir().unwrap();
        let inside = |name: &str| folder.path().join(name);
        let mut arguments = arguments.to_vec();
        let code = inside("code.py");
        if arguments[0] == "-c" {
            std::fs::write(&code, arguments[1]).unwrap();
            arguments.splice(..2, code.to_str());
        }
        let mut variables = json!({"VRAMSHIM_DIR": inside("journals"), "SIMGPU_STATE": inside("state")});
        for (name, value) in environment {
            variables[name] = Value::from(*value);
        }
        let order = json!({
            "arguments": arguments, "environment": variables, "folder": folder.path(), "seconds": LIMIT.as_secs(),
        });
        let send = |child: &mut Child| writeln!(child.stdin.as_ref().unwrap(), "{order}");
        send(&mut self.0.lock().unwrap()).expect("the process that forks");
        while !inside("status").exists() {
            let ended = self.0.lock().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the process that forks ended: {ended:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        let read = |name: &str| String::from_utf8_lossy(&std::fs::read(inside(name)).unwrap()).into_owned();
        let status = ExitStatus::from_raw(read("status").parse().unwrap());
        let (stdout, stderr, name) = (read("out"), read("err"), format!("{environment:?} {arguments:?}"));
        Finished {
            status,
            stdout,
            stderr,
            folder,
            name,
        }
    }
}

/// Runs a job under `vramshim run --sim 2xMEMORY --torch MODE --strategy STRATEGY`.
pub fn forked(mode: &str, strategy: &str, memory: &str, arguments: &[&str]) -> Finished {
    forked_with(mode, &[("VRAMSHIM_STRATEGY", strategy)], memory, arguments)
}

/// Like `forked`, with variables instead of a strategy.
pub fn forked_with(mode: &str, environment: &[(&str, &str)], memory: &str, arguments: &[&str]) -> Finished {
    static PARENTS: [OnceLock<Parent>; 3] = [const { OnceLock::new() }; 3];
    let modes = ["off", "record", "allocator"];
    let number = modes.iter().position(|one| *one == mode).expect("a mode");
    let parent = PARENTS[number].get_or_init(|| {
        let options = ["--torch", mode, "--strategy", "passthrough"];
        Parent::start(with_options(&options, "8GiB", &[]).env("VRAMSHIM_PROGRAM", program()))
    });
    parent.run(&[&[("SIMGPU_MEMORY", memory)], environment].concat(), arguments)
}
