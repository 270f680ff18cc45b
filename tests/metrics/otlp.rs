//! `vramshim serve --otlp` pushes what `/metrics` says, and no receiver ends it.
//!
//! The messages are read here as the program declares them. `scripts/ci/metrics` pushes to a receiver that others wrote.

#[allow(dead_code)] // The program uses the rest.
#[path = "../../src/program/serve/otlp/messages.rs"]
mod messages;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use messages::{Data, ExportMetricsServiceRequest, KeyValue, Number, NumberDataPoint};
use prost::Message;
use support::program;

use super::dies;
use super::server::{Text, ask};

/// The receiver, and `serve` that pushes to it and listens at a Unix socket.
struct Pushed {
    listener: TcpListener,
    child: Child,
    folder: tempfile::TempDir,
}

/// One request of a push.
struct Received {
    head: String,
    message: ExportMetricsServiceRequest,
}

impl Pushed {
    fn start(journals: &Path, more: &[&str]) -> Pushed {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let said = std::fs::File::create(folder.path().join("said")).unwrap();
        let socket = format!("unix:{}", folder.path().join("socket").display());
        let child = Command::new(program())
            .args(["serve", "--listen", &socket, "--every", "200ms", "--dir"])
            .arg(journals)
            .args([
                "--otlp",
                &format!("http://{}/v1/metrics?key=hidden", listener.local_addr().unwrap()),
            ])
            .args(more)
            .env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20dTpw")
            .env("OTEL_RESOURCE_ATTRIBUTES", "k8s.node.name=node1")
            .stderr(said)
            .stdout(Stdio::null())
            .spawn()
            .expect("serve");
        Pushed {
            listener,
            child,
            folder,
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("said")).unwrap()
    }

    /// What `serve` said of pushes that were not taken.
    fn complaints(&self) -> Vec<String> {
        let said = self.said();
        let pushes = said.lines().filter(|line| line.contains("push to"));
        pushes.map(str::to_owned).collect()
    }

    fn scrape(&self) -> Text {
        let path: PathBuf = self.folder.path().join("socket");
        let socket = UnixStream::connect(path).expect("serve listens");
        let (status, _, body) = ask(socket, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(status, 200, "{body}");
        Text::of(&body)
    }

    /// Takes the next push, and answers it so.
    fn answer(&self, answer: &[u8]) -> Received {
        self.listener.set_nonblocking(true).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let socket = loop {
            match self.listener.accept() {
                Ok((socket, _)) => break socket,
                Err(_) => assert!(Instant::now() < until, "no push: {}", self.said()),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut reader = BufReader::new(&socket);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
        }
        let length = head
            .lines()
            .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.expect("a length")];
        reader.read_exact(&mut body).unwrap();
        let mut unpacked = Vec::new();
        GzDecoder::new(&body[..]).read_to_end(&mut unpacked).expect("gzip");
        (&socket).write_all(answer).unwrap();
        let message = ExportMetricsServiceRequest::decode(&unpacked[..]).expect("a message");
        Received { head, message }
    }
}

impl Drop for Pushed {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

const TAKEN: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nfull";

fn pairs(attributes: &[KeyValue]) -> Vec<(String, String)> {
    let value = |one: &KeyValue| one.value.clone().and_then(|value| value.string_value).expect("text");
    let mut pairs: Vec<_> = attributes.iter().map(|one| (one.key.clone(), value(one))).collect();
    pairs.sort();
    pairs
}

/// Name, labels and value of each series.
type Series = Vec<(String, Vec<(String, String)>, f64)>;

/// The figures about `serve` itself change from one moment to the next.
fn is_of_jobs(name: &str) -> bool {
    !name.starts_with("vramshim_serve_")
}

fn sorted(mut series: Series) -> Series {
    series.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
    series
}

fn pushed(message: &ExportMetricsServiceRequest) -> Series {
    let mut series = Series::new();
    for metric in &message.resource_metrics[0].scope_metrics[0].metrics {
        assert!(!metric.description.is_empty(), "{}", metric.name);
        let points: &[NumberDataPoint] = match metric.data.as_ref().expect("data") {
            Data::Gauge(gauge) => {
                assert!(!metric.name.ends_with("_total"), "{}", metric.name);
                &gauge.data_points
            }
            Data::Sum(sum) => {
                assert!(metric.name.ends_with("_total"), "{}", metric.name);
                assert!(sum.is_monotonic && sum.aggregation_temporality == messages::CUMULATIVE);
                &sum.data_points
            }
        };
        assert_eq!(
            metric.unit == "By",
            metric.name.contains("_bytes"),
            "{}: {}",
            metric.name,
            metric.unit
        );
        for point in points.iter().filter(|_| is_of_jobs(&metric.name)) {
            let value = match point.value.expect("a value") {
                Number::Real(value) => value,
                Number::Whole(value) => value as f64,
            };
            series.push((metric.name.clone(), pairs(&point.attributes), value));
        }
    }
    sorted(series)
}

/// What `/metrics` says, with the label `job` as a push names it.
fn scraped(text: Text) -> Series {
    let of_jobs = text.0.into_iter().filter(|(name, ..)| is_of_jobs(name));
    let renamed = of_jobs.map(|(name, labels, value)| {
        let mut labels: Vec<_> = (labels.into_iter())
            .map(|(label, value)| {
                (
                    if label == "job" {
                        "exported_job".to_owned()
                    } else {
                        label
                    },
                    value,
                )
            })
            .collect();
        labels.sort();
        (name, labels, value)
    });
    sorted(renamed.collect())
}

#[test]
fn a_push_says_what_a_scrape_says() {
    let journals = tempfile::tempdir().unwrap();
    // A push that is not answered for 10 seconds is given up, so the job runs before the first one.
    dies(journals.path());
    let pushed_to = Pushed::start(journals.path(), &["--otlp-header", "X-Scope-OrgID=team"]);
    pushed_to.answer(TAKEN);
    let Received { head, message } = pushed_to.answer(TAKEN);
    assert!(head.starts_with("POST /v1/metrics?key=hidden HTTP/1.1\r\n"), "{head}");
    let head = head.to_lowercase();
    for line in [
        "content-type: application/x-protobuf",
        "content-encoding: gzip",
        "authorization: basic dtpw",
        "x-scope-orgid: team",
    ] {
        assert!(head.lines().any(|one| one == line), "{line} is not in {head}");
    }
    let resource = pairs(&message.resource_metrics[0].resource.as_ref().unwrap().attributes);
    for name in ["service.name", "service.version", "service.instance.id", "host.name"] {
        assert!(
            resource.iter().any(|(one, value)| one == name && !value.is_empty()),
            "{resource:?}"
        );
    }
    assert!(resource.contains(&("k8s.node.name".to_owned(), "node1".to_owned())));
    let (pushed, scraped) = (pushed(&message), scraped(pushed_to.scrape()));
    assert_eq!(pushed, scraped);
    let has = |name: &str| {
        pushed.iter().any(|(one, labels, value)| {
            one == name && *value > 0.0 && labels.contains(&("exported_job".to_owned(), "deaths".to_owned()))
        })
    };
    assert!(
        has("vramshim_allocation_failures_total") && has("vramshim_device_memory_bytes"),
        "{pushed:?}"
    );
    assert_eq!(pushed_to.complaints(), Vec::<String>::new());
    assert!(!pushed_to.said().contains("hidden"), "{}", pushed_to.said());
}

#[test]
fn no_receiver_ends_serve_and_each_trouble_is_told_once() {
    let journals = tempfile::tempdir().unwrap();
    let mut pushed = Pushed::start(journals.path(), &[]);
    for answer in [BUSY, BUSY, b"no HTTP at all\r\n\r\n", TAKEN] {
        pushed.answer(answer);
    }
    pushed.answer(TAKEN);
    let told = pushed.complaints();
    let [busy, broken, again] = &told[..] else {
        panic!("{told:?}");
    };
    assert!(
        busy.contains("not taken") && busy.ends_with("503 Service Unavailable: full"),
        "{busy}"
    );
    assert!(broken.contains("not taken") && broken.contains("broke"), "{broken}");
    assert!(again.ends_with("the metrics are taken again"), "{again}");
    assert_eq!(pushed.scrape().value("paddle_gpu_malloc_failed_total", &[]), Some(0.0));
    // Nobody listens any more, and SIGTERM ends `serve` as ever.
    pushed.listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !pushed.said().contains("no connection: ") {
        assert!(Instant::now() < until, "{}", pushed.said());
        std::thread::sleep(Duration::from_millis(20));
    }
    pushed.scrape();
    // SAFETY: the child was started here and has not been waited for.
    unsafe { libc::kill(pushed.child.id() as i32, libc::SIGTERM) };
    assert_eq!(pushed.child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_cannot_be_used_is_refused_at_the_start() {
    for (options, expected) in [
        (&["--otlp", "https://collector:4318"][..], "https is not supported"),
        (&["--otlp", "collector:4318"][..], "give http://HOST:PORT/PATH"),
        (
            &["--otlp", "http://c", "--otlp-header", "secret"][..],
            "--otlp-header: give NAME=VALUE",
        ),
        (&["--otlp-header", "a=b"][..], "--otlp"),
        (&["--every", "15s"][..], "--otlp"),
        (&["--otlp", "http://c", "--once"][..], "cannot be used with"),
        (
            &["--otlp", "http://c", "--textfile", "t.prom"][..],
            "cannot be used with",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = Command::new(program())
            .arg("serve")
            .args(options)
            .arg("--dir")
            .arg(folder.path())
            .output();
        let output = output.expect("serve");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        assert!(said.contains(expected), "{options:?}: {said}");
    }
}
