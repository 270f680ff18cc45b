//! `vramshim serve`: metrics of all jobs of a node for Prometheus, read from the journals.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::text::shown;
use clap::{ArgGroup, Args};
use config::parse_duration;

use crate::failure::Failure;
use crate::journals;
use crate::number::at_least;
use crate::output::Output;
use crate::say::say;
use crate::serve::otlp::{self, Receiver};
use crate::serve::{Address, End, Node, Options, Pages, Server, TokenFile, from_open_metrics, now_ns, serve, text};

const EXAMPLES: &str = "\
Examples:
  vramshim serve --dir /var/log/vramshim            # http://127.0.0.1:9087/metrics
  vramshim serve --each /var/log/vramshim/pods      # the journals in each folder of this folder
  vramshim serve --dir D --listen unix:/run/vramshim.sock
  vramshim serve --dir D --listen 0.0.0.0:9087 --token-file /etc/vramshim/token
  vramshim serve --dir D --pages                    # processes and reports, too: http://127.0.0.1:9087/
  vramshim serve --dir D --accounts /dev/shm/vramshim-1000
  vramshim serve --dir D --once                     # print the metrics
  vramshim serve --dir D --textfile /var/lib/node_exporter/vramshim.prom --every 15s
  vramshim serve --dir D --otlp http://localhost:4318/v1/metrics     # and push them, too

The journals are read at each request, and only what is new in them. Nothing runs in the jobs. Each user of the machine can \
ask at a loopback address without a token; a Unix socket is for its user alone. Where pages are served, / lists the \
processes by job, with a page for the ranks of a job, a report of each process and a live page of those that run. docs/metrics.md lists the metrics, alert \
rules and a dashboard.

Exit codes: 0 done or ended by SIGINT or SIGTERM, 1 failed, 2 wrong usage.";

/// Prometheus' list of ports gives 9100 to 9999 to exporters, and all of these are taken. This one is just below.
const DEFAULT_ADDRESS: &str = "127.0.0.1:9087";
/// How long a request may read journals. Prometheus waits for 10 seconds.
const READING_TIME: Duration = Duration::from_secs(2);

/// How often the metrics are pushed: as often as Prometheus usually asks.
const PUSHED_EVERY: Duration = Duration::from_secs(15);

/// What a file of metrics begins with.
const METRICS_BEGIN: &[u8] = b"# ";

/// `--once` shows each process, however long ago it ended.
const FOR_EVER: Duration = Duration::from_secs(100 * 366 * 86400);

#[derive(Args)]
#[command(after_help = EXAMPLES, group(ArgGroup::new("repeated").args(["textfile", "otlp"])))]
pub struct Serve {
    /// Folder of journals; can be given several times [default: VRAMSHIM_DIR, or the working folder and the folders
    /// vramshim-* in it]
    #[arg(long, value_name = "FOLDER")]
    dir: Vec<PathBuf>,

    /// Folder whose own folders hold journals, such as one for each pod; can be given several times. They may come and go
    #[arg(long, value_name = "FOLDER")]
    each: Vec<PathBuf>,

    /// Folder of accounts (VRAMSHIM_ACCOUNTS of the jobs), for the used bytes and the limit of each group; can be given several
    /// times
    #[arg(long, value_name = "FOLDER")]
    accounts: Vec<PathBuf>,

    /// Where to listen: an IP address and a port, or unix: and a path
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADDRESS)]
    listen: Address,

    /// File with the token, of at least 16 characters, that each request must show (Authorization: Bearer TOKEN, or as password in a browser); its mode must be 0600 or less. It is read again when it changes
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Answer other machines without a token
    #[arg(long, conflicts_with = "token_file")]
    no_token: bool,

    /// Show the processes and their reports also without a token: each user who reaches the address reads command lines and
    /// stacks. With --token-file, or at a Unix socket, they are shown anyway
    #[arg(long)]
    pages: bool,

    /// Print the metrics and exit
    #[arg(long, conflicts_with_all = ["listen", "token_file", "no_token", "pages", "textfile", "otlp"])]
    once: bool,

    /// Write the metrics to this file, for the textfile collector of node_exporter, and exit. A file of another name
    /// than *.prom is replaced only if it has metrics
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "token_file", "no_token", "pages"])]
    textfile: Option<PathBuf>,

    /// Also push the metrics to this receiver of OpenTelemetry (OTLP over HTTP), again and again [without URL:
    /// OTEL_EXPORTER_OTLP_METRICS_ENDPOINT, or OTEL_EXPORTER_OTLP_ENDPOINT and /v1/metrics, or
    /// http://localhost:4318/v1/metrics]
    #[arg(long, value_name = "URL", num_args = 0..=1)]
    otlp: Option<Option<String>>,

    /// A header of each push, such as Authorization; can be given several times. Other users see the command line: give a
    /// password in OTEL_EXPORTER_OTLP_HEADERS
    #[arg(long, value_name = "NAME=VALUE", requires = "otlp")]
    otlp_header: Vec<String>,

    /// Time between two writes of --textfile or two pushes of --otlp, such as 500ms, 15s or 5min [default: --textfile writes
    /// once, --otlp pushes every 15s]
    #[arg(long, value_name = "TIME", requires = "repeated", value_parser = time)]
    every: Option<Duration>,

    /// How long the series of an ended process stay, such as 30s, 5min or 2h; --once shows each process
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = time)]
    keep_ended: Duration,

    /// The most processes with series of their own; the others are summed
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = at_least(0usize, usize::MAX))]
    most_processes: usize,
}

fn time(text: &str) -> Result<Duration, String> {
    let given = parse_duration(text).filter(|given| *given >= Duration::from_millis(100));
    given.ok_or_else(|| "give a time with a unit, at least 100ms, such as 15s or 5min".to_owned())
}

impl Serve {
    pub fn start(self) -> Result<(), Failure> {
        self.check_textfile()?;
        let runs_on = !self.once && (self.textfile.is_none() || self.every.is_some());
        // A single run counts all that the journals have.
        let node = |since_ns, budget| {
            let (dirs, each) = (self.dir.clone(), self.each.clone());
            Node::new(Options {
                folders: Box::new(move || match dirs.is_empty() && each.is_empty() {
                    true => journals::usual_folders(),
                    false => dirs
                        .iter()
                        .cloned()
                        .chain(each.iter().flat_map(|one| folders_of(one)))
                        .collect(),
                }),
                keep: if self.once { FOR_EVER } else { self.keep_ended },
                most_processes: self.most_processes,
                since_ns,
                accounts: self.accounts.clone(),
                budget,
            })
        };
        if !runs_on {
            let mut node = node(0, None);
            node.collect();
            let failed = node.own.folders_failed + node.accounts.folders_failed;
            let text = text(&Arc::new(Mutex::new(node)));
            match &self.textfile {
                Some(path) => write_file(path, &text)?,
                None => io::stdout()
                    .lock()
                    .write_all(text.as_bytes())
                    .map_err(Failure::unwritten)?,
            }
            return match failed {
                0 => Ok(()),
                count => Err(Failure::failed(format!("{count} of the folders cannot be read"))),
            };
        }
        let end = End::at_signals().map_err(|error| Failure::failed(format!("no signals: {error}")))?;
        self.check_folders()?;
        let node = node(now_ns(), Some(READING_TIME));
        match (&self.textfile, self.every) {
            (Some(path), Some(every)) => write_on(node, path, every, end),
            _ => self.listen(node, end),
        }
    }

    /// Metrics are not written onto a file that has something else.
    fn check_textfile(&self) -> Result<(), Failure> {
        let Some(path) = &self.textfile else { return Ok(()) };
        if path.exists() && !path.is_file() {
            return Err(Failure::refused(format!(
                "{}: is no plain file: --textfile needs one",
                shown(path)
            )));
        }
        // The collector reads files *.prom alone, so such a file is one of metrics.
        if path.extension() == Some(OsStr::new("prom")) {
            return Ok(());
        }
        let mut head = Vec::new();
        let read = File::open(path).and_then(|file| file.take(METRICS_BEGIN.len() as u64).read_to_end(&mut head));
        match read.is_ok() && !head.is_empty() && head != METRICS_BEGIN {
            true => Err(Failure::refused(format!(
                "{}: exists already and has no metrics: give --textfile a name that ends in .prom",
                shown(path)
            ))),
            false => Ok(()),
        }
    }

    /// A folder that is missing may come once the first job starts. What is no folder never becomes one.
    fn check_folders(&self) -> Result<(), Failure> {
        let options = [
            ("--dir", &self.dir),
            ("--each", &self.each),
            ("--accounts", &self.accounts),
        ];
        let given = options
            .iter()
            .flat_map(|(option, folders)| folders.iter().map(move |folder| (option, folder)));
        for (option, folder) in given {
            let refused = |why: &str| Failure::refused(format!("{option} {}: {why}", shown(folder)));
            match folder.metadata() {
                Ok(found) if found.is_dir() => {}
                Ok(_) => return Err(refused("is no folder")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    say!(
                        "{option} {}: there is no such folder yet; serve waits for it",
                        shown(folder)
                    );
                }
                Err(error) => return Err(refused(&format!("cannot be read: {error}"))),
            }
        }
        Ok(())
    }

    fn listen(&self, node: Node, end: End) -> Result<(), Failure> {
        let token = match &self.token_file {
            Some(path) => Some(TokenFile::read(path).map_err(Failure::refused)?),
            None if !self.no_token && !self.listen.is_local() => {
                return Err(Failure::refused(format!(
                    "{}: other machines reach this address: give --token-file FILE, or --no-token to answer everybody",
                    self.listen
                )));
            }
            None => None,
        };
        let receiver = match &self.otlp {
            Some(url) => {
                let variable = |name: &str| std::env::var(name).ok();
                Some(Receiver::new(url.as_deref(), &self.otlp_header, variable).map_err(Failure::refused)?)
            }
            None => None,
        };
        let pages = match (&self.listen, &token, self.pages) {
            (Address::Unix(_), _, _) | (_, Some(_), _) => Pages::All,
            (_, None, true) if self.listen.is_local() => Pages::OfThisHost,
            (_, None, true) => Pages::All,
            (_, None, false) => Pages::None,
        };
        let server = Server::new(node, token, pages);
        let node = server.node.clone();
        let ready = |address: &Address| {
            let path = match address {
                Address::Tcp(_) => "/metrics",
                Address::Unix(_) => ", path /metrics",
            };
            say!("the metrics are at {address}{path}");
            if let Some(receiver) = receiver {
                say!("the metrics are pushed to {receiver}");
                otlp::start(node, receiver, self.every.unwrap_or(PUSHED_EVERY));
            }
        };
        serve(server, &self.listen, end, ready).map_err(Failure::failed)
    }
}

/// The folders in a folder. A folder that cannot be read stands for itself, so that it is told as one.
fn folders_of(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return vec![folder.to_owned()];
    };
    // The type is that of the entry, so no link leads elsewhere.
    let is_folder = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let entries = entries.flatten().filter(is_folder);
    entries.map(|entry| entry.path()).collect()
}

/// Replaces the file at once: a reader finds the old text or the new one.
fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    let write = || -> io::Result<()> {
        let mut out = Output::create(path, true)?;
        out.write_all(from_open_metrics(text).as_bytes())?;
        out.finish()
    };
    write().map_err(|error| Failure::failed(format!("the metrics cannot be written: {error}")))
}

fn write_on(node: Node, path: &Path, every: Duration, mut end: End) -> Result<(), Failure> {
    let node = Arc::new(Mutex::new(node));
    let mut told = false;
    loop {
        node.lock().unwrap_or_else(PoisonError::into_inner).collect();
        // A full disk may have room again at the next time.
        match write_file(path, &text(&node)) {
            Ok(()) => told = false,
            Err(failure) if !told => {
                told = true;
                say!("{}", failure.message());
            }
            Err(_) => {}
        }
        match end.came_within(every) {
            Ok(false) => {}
            Ok(true) => return Ok(()),
            Err(error) => return Err(Failure::failed(format!("no signals: {error}"))),
        }
    }
}
