//! A running `vramshim serve`, and the text that it answers with.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use support::{assert_says, program};

pub struct Served {
    pub child: Child,
    /// Host and port.
    pub address: String,
    /// What it said before it listened.
    pub said: String,
}

impl Served {
    /// Starts it at a port that the kernel chooses.
    pub fn start(folder: &Path, more: &[&str]) -> Served {
        let mut command = Command::new(program());
        command.args(["serve", "--listen", "127.0.0.1:0", "--dir"]).arg(folder);
        Served::of(command.args(more))
    }

    /// Starts this command.
    pub fn of(command: &mut Command) -> Served {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("serve");
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let (mut line, mut before) = (String::new(), String::new());
        while !line.contains("http://") {
            before += &line;
            line.clear();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended: {before}");
        }
        let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let address = address
            .unwrap_or_else(|| panic!("no address: {line}"))
            .trim()
            .to_owned();
        // What it says later must not fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Served {
            child,
            address,
            said: before,
        }
    }

    pub fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(&self.address).expect("a connection");
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket
    }

    /// The answer to a request: its status, headers and body.
    pub fn ask(&self, request: &str) -> (u16, String, String) {
        ask(self.connect(), request)
    }

    pub fn scrape(&self) -> Text {
        let (status, head, body) = self.ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(status, 200, "{head}");
        assert_says(&head.to_lowercase(), "content-type: text/plain; version=0.0.4");
        Text::of(&body)
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub fn ask(mut socket: impl Read + Write, request: &str) -> (u16, String, String) {
    // The server may answer and close before it has read all.
    let _ = socket.write_all(request.as_bytes());
    let mut bytes = Vec::new();
    let _ = socket.read_to_end(&mut bytes);
    let answer = String::from_utf8(bytes).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or(0);
    (status, head.to_owned(), body.to_owned())
}

/// Names and values of labels.
type Labels = Vec<(String, String)>;

/// Name, labels and value of each sample.
pub struct Text(pub Vec<(String, Labels, f64)>);

impl Text {
    pub fn of(text: &str) -> Text {
        let mut samples = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels = parse_labels(labels);
            let sample = (name.to_owned(), labels, value);
            let is_new = samples
                .iter()
                .all(|(other, set, _)| (other, set) != (&sample.0, &sample.1));
            assert!(is_new, "a series is there twice: {line}");
            samples.push(sample);
        }
        Text(samples)
    }

    fn matching(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        let has = |set: &[(String, String)]| {
            labels
                .iter()
                .all(|(name, value)| set.iter().any(|(one, text)| one == name && text == value))
        };
        let found = self.0.iter().filter(|(one, set, _)| one == name && has(set));
        found.map(|(_, _, value)| *value).collect()
    }

    /// The value of the only series with these labels; `None` if there is none.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let found = self.matching(name, labels);
        assert!(found.len() < 2, "{name} {labels:?}: {found:?}");
        found.first().copied()
    }

    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.matching(name, labels).iter().sum()
    }
}

/// The labels behind the opening brace. Their escapes are those of JSON.
fn parse_labels(text: &str) -> Labels {
    let (mut labels, mut rest) = (Labels::new(), text);
    while let Some((name, after)) = rest.split_once('=') {
        let mut values = serde_json::Deserializer::from_str(after).into_iter::<String>();
        let value = values.next().expect("a value");
        let value = value.unwrap_or_else(|error| panic!("{error}: {text}"));
        labels.push((name.trim_start_matches(',').to_owned(), value));
        rest = &after[values.byte_offset()..];
    }
    assert_eq!(rest, "}", "{text}");
    labels
}
