//! `vramshim ctl`: asks and tells a running job, which one need not have started.
//!
//! `connection` reaches the job, `dump` copies its journal. The copy is made here and not in the job, so that no thread of
//! the job waits for the disk.

mod connection;
mod dump;
mod in_root;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use base::cuda::MAX_DEVICES;
use base::text::{printable, shown};
use base::units::size;
use clap::{Args, Subcommand};
use config::Change;
use serde_json::Value;

use self::connection::JournalOf;
use super::print;
use crate::analysis::watch::Watched;
use crate::failure::Failure;
use crate::number::at_least;

/// The longest text of a job that is shown, in characters.
const LONGEST_TEXT: usize = 4096;
/// The journal of the process is read for so long.
const LONGEST_READ: Duration = Duration::from_secs(2);

// Each paragraph is one line, because clap wraps lines to the width of the terminal.
const EXAMPLES: &str = "\
Examples:
  vramshim run --control -- python train.py                # or VRAMSHIM_CONTROL=1 in the job's environment
  vramshim ctl 4711 stats
  vramshim ctl 4711 stats device.0.allocated device.0.reserved
  vramshim ctl 4711 trim --device 0
  vramshim ctl 4711 dump now.vraj && vramshim inspect now.vraj
  vramshim ctl 4711 set stacks python

The job must have been started with --control, and must have used a GPU. Its user and root may ask. The job looks ten times a \
second whether somebody asks; while it gives memory back, an answer may take longer.

Exit codes: 0 done, 1 if the job does not answer or an answer cannot be had, 2 if the request was refused (a setting that \
cannot be changed, an unknown figure, a dump onto the job's own journal) or wrong usage.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Ctl {
    /// The process to ask, by its process id here
    #[arg(value_name = "PID", value_parser = at_least(1u32, u32::MAX))]
    pid: u32,

    /// Print JSON
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    order: Order,
}

#[derive(Subcommand)]
enum Order {
    /// Show the figures of the job's memory, by name
    Stats {
        /// Figures to show, such as device.0.allocated [default: all]
        #[arg(value_name = "NAME")]
        names: Vec<String>,
    },
    /// Let the job give memory back that holds nothing
    Trim {
        /// This device alone, by the job's number [default: all devices of the job]
        #[arg(long, value_name = "N", value_parser = at_least(0u32, u32::MAX))]
        device: Option<u32>,
    },
    /// Write a copy of the job's journal as it is now, for inspect, why, report and export
    Dump {
        /// The file to write, which must end in .vraj; an earlier copy of that kind is replaced, another file only with
        /// --force, and never what the job itself writes
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// Replace files that exist
        #[arg(long)]
        force: bool,
    },
    /// Change a setting of the running job
    Set {
        /// stacks, stack_depth or idle_release
        name: String,

        /// As the setting's variable takes it (vramshim variables)
        value: String,
    },
}

impl Ctl {
    pub fn tell(self) -> Result<(), Failure> {
        let Ctl { pid, json, order } = self;
        match order {
            Order::Stats { names } => {
                let mut answer = ask(pid, "stats")?;
                add_held(pid, &mut answer);
                stats(answer, &names, json)
            }
            Order::Trim { device } => {
                let line = device.map_or("trim".to_owned(), |device| format!("trim {device}"));
                let devices = ask(pid, &line)?["devices"].take();
                print(json.then_some(&devices), |page| {
                    for one in devices.as_array().into_iter().flatten() {
                        let bytes = size(one["given_back"].as_u64().unwrap_or(0));
                        page.line(format!(
                            "device {}: {bytes} given back",
                            short(&one["device"].to_string())
                        ));
                    }
                })
            }
            Order::Dump { file, force } => {
                let dumped = dump::dump(pid, &file, force)?;
                print(json.then_some(&dumped), |page| {
                    let (file, bytes) = (shown(&file), size(dumped["bytes"].as_u64().unwrap_or(0)));
                    let lacks = dumped["pytorch"]
                        .as_str()
                        .map_or(String::new(), |why| format!("; {why}"));
                    page.line(format!("{file}: {} records, {bytes}{lacks}", dumped["records"]));
                })
            }
            Order::Set { name, value } => {
                // A wrong name or value is told without the job. One with a blank would be two words there.
                Change::parse(&name, &value)
                    .map_err(|why| Failure::refused(format!("{} {:?}: {why}", short(&name), short(&value))))?;
                let value = value.replace(char::is_whitespace, "");
                let answer = ask(pid, &format!("set {name} {value}"))?;
                print(json.then_some(answer), |page| {
                    page.line(format!("process {pid}: {name} is {value} from now on"));
                })
            }
        }
    }
}

/// What the user typed, as a message may repeat it.
fn short(given: &str) -> String {
    printable(given, 200)
}

fn ask(pid: u32, line: &str) -> Result<Value, Failure> {
    let answer = connection::ask(pid, line)?;
    if answer["ok"] == true {
        return Ok(answer);
    }
    let why = answer["error"].as_str().unwrap_or("it does not say why");
    Err(Failure::refused(format!(
        "process {pid} refused: {}",
        printable(why, LONGEST_TEXT)
    )))
}

fn stats(mut answer: Value, names: &[String], json: bool) -> Result<(), Failure> {
    if let Some(object) = answer.as_object_mut() {
        object.remove("ok");
    }
    let figures = answer["stats"].as_object().cloned().unwrap_or_default();
    if let Some(unknown) = names.iter().find(|name| !figures.contains_key(name.as_str())) {
        return Err(Failure::refused(format!(
            "the job has no figure {}; vramshim ctl PID stats lists all that it has",
            short(unknown)
        )));
    }
    let is_wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    let wanted: serde_json::Map<String, Value> = figures.into_iter().filter(|(name, _)| is_wanted(name)).collect();
    let rows = wanted.iter().map(|(name, value)| row(name, value)).collect();
    answer["stats"] = Value::Object(wanted);
    let why = answer["not_known"].as_str().map(str::to_owned);
    print(json.then_some(answer), |page| {
        page.table("figure|>value|", rows);
        if let Some(why) = why {
            page.line(format!("Live bytes: {}", printable(&why, LONGEST_TEXT)));
        }
    })
}

/// Adds what is live and what is cached on each device, as `top` tells it. The job itself does not know what is used inside
/// PyTorch's cache, nor when PyTorch told.
fn add_held(pid: u32, answer: &mut Value) {
    let journal = dump::journal_of(pid).and_then(|(path, _)| JournalOf::of(pid, &path));
    // It keeps the path right.
    let Ok(place) = journal else { return };
    let Ok(mut watched) = Watched::open(&place.path, Some(pid)) else {
        return;
    };
    let begin = Instant::now();
    while matches!(watched.follow(), Ok(false)) && begin.elapsed() < LONGEST_READ {}
    if !watched.is_read {
        answer["not_known"] = "the journal is long: vramshim top tells".into();
        return;
    }
    let Some(figures) = answer["stats"].as_object_mut() else {
        return;
    };
    let mut not_known = None;
    for device in 0..MAX_DEVICES as i16 {
        let of = |figure: &str| format!("device.{device}.{figure}");
        let number = |figure: &str| figures.get(&of(figure))?.as_u64();
        if number("allocated").is_none() {
            continue;
        }
        let held = watched.held(device);
        let used = held.pytorch.map(|inside| inside.used);
        for (figure, bytes) in [
            ("live_bytes", held.live),
            ("cached_bytes", held.cached),
            ("used_in_pytorch_cache", used),
        ] {
            figures.extend(bytes.map(|bytes| (of(figure), bytes.into())));
        }
        not_known = not_known.or(held.not_known);
    }
    answer["not_known"] = not_known.into();
}

/// A figure with its value, and for bytes its size in words.
fn row(name: &str, value: &Value) -> Vec<String> {
    let figure = name.rsplit('.').next().unwrap_or_default();
    let is_number = matches!(
        figure,
        "pid" | "events_lost" | "live" | "live_peak" | "failures" | "limit_is_of_group"
    );
    let words = match value.as_u64() {
        Some(u64::MAX) => "no limit".to_owned(),
        Some(bytes) if !is_number && bytes > 0 => size(bytes),
        _ => String::new(),
    };
    vec![
        printable(name, LONGEST_TEXT),
        printable(&value.to_string(), LONGEST_TEXT),
        words,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_a_job_turns_a_row_round_or_is_long() {
        let value = Value::from("a\u{202e}b\u{200b}".repeat(10_000));
        let row = row("figure\u{2066}", &value).concat();
        assert!(
            !row.chars().any(base::text::is_hidden) && row.len() < 20_000,
            "{}",
            row.len()
        );
        assert!(short(&"x".repeat(100_000)).len() < 300);
    }
}
