//! Jobs of PyTorch that fork from a process which has imported it: the import takes longer than most of these jobs.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use support::Finished;

use super::path;
use super::switch::with_options;

const LIMIT: Duration = Duration::from_secs(600);

/// Starts the process that forks; `jobs.py` says how. It ends with its stdin, so with the tests.
fn parent(mode: &str) -> Child {
    let options = ["--torch", mode, "--strategy", "passthrough"];
    let (mut child, _folder) = with_options(&options, "8GiB", &[&path("jobs.py")]).start();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    if line != "ready\n" {
        child.stderr.take().unwrap().read_to_string(&mut line).unwrap();
        panic!("no PyTorch: {line}");
    }
    child
}

/// Runs a job under `vramshim run --sim 2xMEMORY --torch MODE --strategy STRATEGY`.
pub fn forked(mode: &str, strategy: &str, memory: &str, arguments: &[&str]) -> Finished {
    forked_with(mode, &[("VRAMSHIM_STRATEGY", strategy)], memory, arguments)
}

/// Like `forked`, with variables instead of a strategy. The arguments are those of Python: a script, or `-c` and code.
pub fn forked_with(mode: &str, environment: &[(&str, &str)], memory: &str, arguments: &[&str]) -> Finished {
    static PARENTS: [OnceLock<Mutex<Child>>; 4] = [const { OnceLock::new() }; 4];
    let mut modes = ["off", "state", "record", "allocator"].iter();
    let number = modes.position(|one| *one == mode);
    let parent = PARENTS[number.expect("a mode")].get_or_init(|| Mutex::new(parent(mode)));
    let folder = tempfile::tempdir().unwrap();
    let inside = |name: &str| folder.path().join(name);
    let name = format!("{mode} {environment:?} {arguments:?}");
    let mut arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    if arguments[0] == "-c" {
        std::fs::write(inside("code.py"), arguments.remove(1)).unwrap();
        arguments[0] = inside("code.py").to_string_lossy().into_owned();
    }
    let mut variables = json!({
        "VRAMSHIM_DIR": inside("journals"), "SIMGPU_STATE": inside("state"), "SIMGPU_MEMORY": memory,
    });
    for (name, value) in environment {
        variables[name] = Value::from(*value);
    }
    let order = json!({
        "arguments": arguments, "environment": variables, "folder": folder.path(), "seconds": LIMIT.as_secs(),
    });
    let sent = writeln!(parent.lock().unwrap().stdin.as_ref().unwrap(), "{order}");
    sent.expect("the process that forks");
    while !inside("status").exists() {
        let ended = parent.lock().unwrap().try_wait().unwrap();
        assert!(ended.is_none(), "the process that forks ended: {ended:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let read = |name: &str| String::from_utf8_lossy(&std::fs::read(inside(name)).unwrap()).into_owned();
    let status = ExitStatus::from_raw(read("status").parse().unwrap());
    let (stdout, stderr) = (read("out"), read("err"));
    Finished {
        status,
        stdout,
        stderr,
        folder,
        name,
    }
}
