//! `vramshim top --json` without `--once`: a line of JSON at each update. And the tables at each update, on a terminal that
//! cannot draw.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use support::{Fields, PASSTHROUGH, Runs, assert_fields, program};

use crate::top::paced::Paced;

struct Stream {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Stream {
    fn start(arguments: &[&str], term: &str) -> Stream {
        let mut command = Command::new(program());
        command.arg("top").args(arguments).env("TERM", term);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("vramshim top");
        Stream {
            lines: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.lines.read_line(&mut line).expect("its output") > 0, "top ended");
        line
    }

    fn page(&mut self) -> Value {
        serde_json::from_str(&self.line()).expect("each line is an object")
    }

    /// Reads pages until one of them is as wanted.
    fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..200 {
            let page = self.page();
            if wanted(&page) {
                return page;
            }
        }
        panic!("{what} never came");
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn each_line_is_the_state_and_what_happened_since_the_line_before() {
    let mut job = Paced::start(PASSTHROUGH, 1, 1);
    job.tell("50");
    let pid = job.pid();
    let mut stream = Stream::start(&["--json", "--interval", "100ms", &pid.to_string()], "xterm");
    let first = stream.page();
    assert_eq!(first["processes"][0]["pid"], pid);
    assert_eq!(first["events"], json!([]));
    job.tell("mark");
    job.tell("fail");
    let mut events: Vec<Value> = Vec::new();
    let mut last = first["time_unix_ns"].number();
    while events.len() < 2 {
        let page = stream.page();
        let now = page["time_unix_ns"].number();
        assert!(now > last, "{now} after {last}");
        last = now;
        events.extend(page["events"].list().iter().cloned());
    }
    assert_eq!(events.len(), 2, "{events:?}");
    let (mark, failure) = (&events[0], &events[1]);
    assert_fields(mark, json!({"kind": "mark", "text": "epoch 1", "pid": pid}), "");
    let wanted = json!({"kind": "failure", "api": "cuMemAlloc", "requested": 1u64 << 45,
        "result": "CUDA_ERROR_OUT_OF_MEMORY"});
    assert_fields(failure, wanted, "");
    assert!(mark["time_unix_ns"].as_u64() < failure["time_unix_ns"].as_u64());
    // Nothing is told twice.
    assert_eq!(stream.page()["events"], json!([]));
    let answer = job.tell("300");
    let page = stream.until("the new figures", |page| {
        page["processes"][0]["devices"][0]["requested"] == answer.stats[0]["requested"]
    });
    assert_eq!(page["processes"][0]["devices"][0]["failed_calls"], 1);
    job.kill();
    stream.until("the end", |page| page["processes"] == json!([]));
}

#[test]
fn a_reader_that_goes_away_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"set -o pipefail; "$0" top --json --interval 100ms "$1" | head -n 1"#;
    let mut shell = Command::new("bash");
    let output = shell.args(["-c", script]).arg(program()).arg(folder.path()).printed();
    assert_eq!(output.code, Some(128 + libc::SIGPIPE), "{output:?}");
}

#[test]
fn a_dumb_terminal_gets_a_table_at_each_update() {
    let mut job = Paced::start(PASSTHROUGH, 2, 1);
    job.tell("50");
    let pid = job.pid().to_string();
    let mut stream = Stream::start(&["--interval", "100ms", &pid], "dumb");
    let mut text = String::new();
    while text.matches("cached").count() < 4 {
        text += &stream.line();
    }
    assert!(text.contains("nvml") && text.contains(&pid), "{text}");
    assert!(text.is_ascii() && !text.contains('\x1b'), "{text}");
}
