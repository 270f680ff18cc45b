//! `vramshim serve`: metrics of all jobs of a node for Prometheus, read from the journals.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::text::shown;
use clap::Args;

use crate::analysis::held::now_ns;
use crate::failure::Failure;
use crate::journals;
use crate::output::Output;
use crate::say::say;
use crate::serve::{Address, End, Node, Options, Server, TokenFile, serve, text};

const EXAMPLES: &str = "\
Examples:
  vramshim serve --dir /var/log/vramshim            # port 9087 of 127.0.0.1
  vramshim serve --dir D --listen unix:/run/vramshim.sock
  vramshim serve --dir D --listen 0.0.0.0:9087 --token-file TOKEN
  vramshim serve --dir D --accounts /dev/shm/vramshim-1000
  vramshim serve --dir D --once                     # print the metrics
  vramshim serve --dir D --textfile vramshim.prom --every 15s

The journals are read at each request, and only what is new in them. Nothing runs in the jobs. Each user of the machine can \
ask at a loopback address without a token; a Unix socket is for its user alone. Its answer says what each metric means; the repository has alert rules \
and a dashboard.

Exit codes: 0 done or ended by SIGINT or SIGTERM, 1 failed, 2 wrong usage.";

/// Prometheus' list of ports gives 9100 to 9999 to exporters, and all of these are taken. This one is just below.
const DEFAULT_ADDRESS: &str = "127.0.0.1:9087";
/// How long a request may read journals. Prometheus waits for 10 seconds.
const READING_TIME: Duration = Duration::from_secs(2);

/// `--once` shows each process, however long ago it ended.
const FOR_EVER: Duration = Duration::from_secs(100 * 366 * 86400);

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Serve {
    /// Folder with journals in it, or in its own folders, such as one for each pod; they may come and go. Can be given
    /// several times [default: VRAMSHIM_DIR, or the working folder and the folders vramshim-* in it]
    #[arg(long, value_name = "FOLDER")]
    dir: Vec<PathBuf>,

    /// Folder of accounts (VRAMSHIM_ACCOUNTS of the jobs), for the used bytes and the limit of each group; can be given several
    /// times
    #[arg(long, value_name = "FOLDER")]
    accounts: Vec<PathBuf>,

    /// Where to listen: an IP address and a port, or unix: and a path
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADDRESS)]
    listen: Address,

    /// File with the token, of at least 16 characters, that each request must show (Authorization: Bearer TOKEN); its mode must
    /// be 0600 or less. It is read again when it changes
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Answer other machines without a token
    #[arg(long, conflicts_with = "token_file")]
    no_token: bool,

    /// Print the metrics and exit
    #[arg(long, conflicts_with_all = ["listen", "token_file", "no_token", "textfile"])]
    once: bool,

    /// Write the metrics to this file *.prom, for the textfile collector of node_exporter, and exit
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "token_file", "no_token"])]
    textfile: Option<PathBuf>,

    /// Write --textfile again and again, with this time between two writes, such as 500ms, 15s or 5min
    #[arg(long, value_name = "TIME", requires = "textfile", value_parser = super::time)]
    every: Option<Duration>,

    /// How long the series of an ended process stay, such as 30s, 5min or 2h; --once shows each process
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = super::time)]
    keep_ended: Duration,
}

impl Serve {
    pub fn start(self) -> Result<(), Failure> {
        // So no other file is replaced.
        if let Some(path) = self
            .textfile
            .as_ref()
            .filter(|path| path.extension() != Some(OsStr::new("prom")))
        {
            let path = shown(path);
            return Err(Failure::refused(format!(
                "{path}: --textfile needs a name that ends in .prom"
            )));
        }
        if self.once || (self.textfile.is_some() && self.every.is_none()) {
            return self.print_once();
        }
        let end = End::at_signals().map_err(|error| Failure::failed(format!("no signals: {error}")))?;
        self.check_folders()?;
        let node = self.node(now_ns(), Some(READING_TIME));
        match (&self.textfile, self.every) {
            (Some(path), Some(every)) => write_on(node, path, every, end),
            _ => self.listen(node, end),
        }
    }

    fn node(&self, since_ns: u64, budget: Option<Duration>) -> Node {
        let dirs = self.dir.clone();
        Node::new(Options {
            folders: Box::new(move || match dirs.as_slice() {
                [] => journals::usual_folders(),
                dirs => dirs.to_vec(),
            }),
            with_inner: !self.dir.is_empty(),
            keep: if self.once { FOR_EVER } else { self.keep_ended },
            since_ns,
            accounts: self.accounts.clone(),
            budget,
        })
    }

    /// A single run counts all that the journals have.
    fn print_once(&self) -> Result<(), Failure> {
        let mut node = self.node(0, None);
        node.collect();
        match &self.textfile {
            Some(path) => write_file(path, &node)?,
            None => {
                let text = text(&node);
                let written = io::stdout().lock().write_all(text.as_bytes());
                written.map_err(Failure::unwritten)?;
            }
        }
        match node.folders.failed() + node.accounts.folders_failed {
            0 => Ok(()),
            count => Err(Failure::failed(format!("{count} of the folders cannot be read"))),
        }
    }

    /// A folder that is missing may come once the first job starts. What is no folder never becomes one.
    fn check_folders(&self) -> Result<(), Failure> {
        for (option, folders) in [("--dir", &self.dir), ("--accounts", &self.accounts)] {
            for folder in folders {
                let told = |why: &str| format!("{option} {}: {why}", shown(folder));
                match folder.metadata() {
                    Ok(found) if found.is_dir() => {}
                    Ok(_) => return Err(Failure::refused(told("is no folder"))),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        say!("{}", told("there is no such folder yet; serve waits for it"));
                    }
                    Err(error) => return Err(Failure::refused(told(&format!("cannot be read: {error}")))),
                }
            }
        }
        Ok(())
    }

    fn listen(&self, node: Node, end: End) -> Result<(), Failure> {
        if self.token_file.is_none() && !self.no_token && !self.listen.is_local() {
            return Err(Failure::refused(format!(
                "{}: other machines reach this address: give --token-file FILE, or --no-token to answer each client",
                self.listen
            )));
        }
        let token = self.token_file.as_deref().map(TokenFile::read).transpose();
        let token = token.map_err(Failure::refused)?;
        let ready = |address: &Address| match address {
            Address::Tcp(_) => say!("the metrics are at {address}/metrics"),
            Address::Unix(_) => say!("the metrics are at {address}, path /metrics"),
        };
        let server = Server {
            node: node.into(),
            token,
        };
        serve(server, &self.listen, end, ready).map_err(Failure::failed)
    }
}

/// Replaces the file at once: a reader finds the old text or the new one.
fn write_file(path: &Path, node: &Node) -> Result<(), Failure> {
    let write = || -> io::Result<()> {
        let mut out = Output::create(path, true)?;
        out.write_all(text(node).as_bytes())?;
        out.finish_for_all()
    };
    write().map_err(|error| Failure::failed(format!("the metrics cannot be written: {error}")))
}

fn write_on(mut node: Node, path: &Path, every: Duration, mut end: End) -> Result<(), Failure> {
    let mut told = false;
    loop {
        node.collect();
        // A full disk may have room again at the next time.
        let written = write_file(path, &node);
        if let Err(failure) = &written
            && !told
        {
            say!("{}", failure.message());
        }
        told = written.is_err();
        match end.came_within(every) {
            Ok(false) => {}
            Ok(true) => return Ok(()),
            Err(error) => return Err(Failure::failed(format!("no signals: {error}"))),
        }
    }
}
