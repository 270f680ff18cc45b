//! What an allocator takes of a job's time, on the GPU that is there: each trace is played repeatedly with the program
//! `played.c`, by PyTorch's allocator, by `auto_growth` and by the driver alone, one process at a time. On the simulated
//! GPU the calls of the driver take the time of `src/prices/prices.toml`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use comfy_table::Table;
use flate2::read::MultiGzDecoder;
use serde_json::{Value, json};

use crate::contender::{CONTENDERS, Contender, Device, Places};
use crate::text::{self, Progress};

const MIB: u64 = 1 << 20;

/// The contenders unless the user names others. The first is what the others are compared with.
pub const NAMES: [&str; 4] = ["torch", "auto_growth_tensors", "auto_growth", "bare"];

const REPETITIONS: usize = 6;
/// The repetitions before this one, counted from 0, are those in which a job may still find its memory.
const LATER: usize = 3;

/// Those of the files that have the columns of RMM's log, with their names.
fn logs(files: &[PathBuf]) -> Vec<(String, &PathBuf)> {
    let name = |file: &PathBuf| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let logs = files.iter().map(|file| (name(file), file));
    logs.filter(|(name, _)| name.ends_with(".csv") || name.ends_with(".csv.gz"))
        .collect()
}

/// The text of a trace.
fn text_of(file: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let mut read = || {
        let mut opened = File::open(file)?;
        match file.extension() {
            Some(end) if end == "gz" => MultiGzDecoder::new(opened).read_to_end(&mut bytes),
            _ => opened.read_to_end(&mut bytes),
        }
    };
    read().map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|_| "is no text".to_owned())
}

pub struct Run {
    /// Of one repetition each: nanoseconds in allocations and frees together.
    nanoseconds: Vec<u64>,
    longest_ns: u64,
    requests: u64,
    peak_live: u64,
    /// What the allocator keeps at the end, by `nvidia-smi`; only on a GPU.
    kept: Option<u64>,
}

impl Run {
    fn whole_ns(&self) -> u64 {
        self.nanoseconds.iter().sum()
    }

    fn later_ns(&self) -> u64 {
        let later = &self.nanoseconds[LATER..];
        later.iter().sum::<u64>() / later.len() as u64
    }
}

struct Row {
    trace: String,
    contender: &'static str,
    run: Result<Run, String>,
}

pub struct Played {
    device: Device,
    noise: u64,
    rows: Vec<Row>,
}

pub struct Choice {
    pub device: Device,
    /// Percent by which sizes are changed.
    pub noise: u64,
    pub contenders: Vec<Contender>,
}

/// Plays those of the files that have the columns of RMM's log.
pub fn measure(files: &[PathBuf], choice: &Choice, places: &Places, progress: &Progress) -> Result<Played, String> {
    let scratch = tempfile::tempdir_in(&places.scratch).map_err(|error| error.to_string())?;
    let (trace, empty) = (scratch.path().join("trace"), scratch.path().join("empty"));
    std::fs::write(&empty, "Thread,Time,Action,Pointer,Size,Stream\n").map_err(|error| error.to_string())?;
    // What the driver holds for a context is not the allocator's.
    let bare = CONTENDERS
        .iter()
        .find(|one| one.name == "bare")
        .ok_or("no contender bare")?;
    let context = play(bare, choice, places, &empty)?.kept.unwrap_or(0);
    let mut rows = Vec::new();
    for (name, file) in logs(files) {
        let text = text_of(file).and_then(|text| std::fs::write(&trace, text).map_err(|error| error.to_string()));
        for contender in &choice.contenders {
            progress.show(&format!("playing {name}: {}", contender.name));
            let played = text.clone().and_then(|()| play(contender, choice, places, &trace));
            let run = played.map(|run| Run {
                kept: run.kept.map(|used| used.saturating_sub(context)),
                ..run
            });
            rows.push(Row {
                trace: name.clone(),
                contender: contender.name,
                run,
            });
        }
    }
    Ok(Played {
        device: choice.device,
        noise: choice.noise,
        rows,
    })
}

fn play(contender: &Contender, choice: &Choice, places: &Places, trace: &Path) -> Result<Run, String> {
    let failed = |error: std::io::Error| error.to_string();
    let journals = tempfile::tempdir_in(&places.scratch).map_err(failed)?;
    let complaints = tempfile::NamedTempFile::new_in(&places.scratch).map_err(failed)?;
    let numbers = [REPETITIONS as u64, choice.noise];
    let mut child = contender
        .command(places, choice.device, "played", "140GiB", &numbers, journals.path())
        .arg(trace)
        .env("SIMGPU_LATENCY", "prices")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(complaints.reopen().map_err(failed)?)
        .spawn()
        .map_err(failed)?;
    let mut lines = Vec::new();
    let output = child.stdout.take().ok_or("no output")?;
    for line in BufReader::new(output).lines().take(REPETITIONS) {
        lines.push(line.map_err(failed)?);
    }
    let kept = (choice.device == Device::Gpu).then(used_bytes).flatten();
    drop(child.stdin.take());
    let ended = child.wait_with_output().map_err(failed)?;
    let rows: Vec<Vec<u64>> = lines
        .iter()
        .map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect())
        .collect();
    let is_whole = rows.len() == REPETITIONS && rows.iter().all(|row| row.len() == 5);
    if !ended.status.success() || !is_whole {
        let said = std::fs::read_to_string(complaints.path()).unwrap_or_default();
        return Err(format!("{} {}", lines.last().map_or("", String::as_str), said.trim()));
    }
    let most = |column: usize| rows.iter().map(|row| row[column]).max().unwrap_or(0);
    Ok(Run {
        nanoseconds: rows.iter().map(|row| row[1] + row[2]).collect(),
        longest_ns: most(3),
        requests: most(0),
        peak_live: most(4),
        kept,
    })
}

/// The memory that is in use on the first GPU. The driver tells it, whatever the library answers its own process.
fn used_bytes() -> Option<u64> {
    let arguments = ["--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"];
    let output = Command::new("nvidia-smi").args(arguments).output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout);
    Some(said.trim().parse::<u64>().ok()? * MIB)
}

impl Played {
    /// The whole time of a row relative to that of the first contender with the same trace.
    fn ratio(&self, row: &Row) -> Option<f64> {
        let first = self
            .rows
            .iter()
            .find(|one| one.trace == row.trace && one.contender == NAMES[0])?;
        let (run, first) = (row.run.as_ref().ok()?, first.run.as_ref().ok()?);
        Some(run.whole_ns() as f64 / first.whole_ns().max(1) as f64)
    }

    pub fn print(&self) {
        let device = match self.device {
            Device::Gpu => "this machine's GPU",
            Device::Simulated => "the simulated GPU, whose calls take the time of src/prices/prices.toml",
        };
        println!(
            "Played: each trace is played {REPETITIONS} times on {device}; sizes change by up to {} %",
            self.noise
        );
        println!(
            "ms = time inside allocations and frees; later = from repetition {} on, for one; kept = memory at the end, by \
             nvidia-smi\n",
            LATER + 1
        );
        let mut table = Table::new();
        let heads = [
            "trace",
            "contender",
            "requests",
            "ms, first",
            "ms, later",
            "ms, all",
            "relative to torch",
            "longest call, us",
            "peak live",
            "kept",
            "peak live / kept",
        ];
        text::prepare(&mut table, heads.map(str::to_owned).into_iter());
        for row in &self.rows {
            let Ok(run) = &row.run else { continue };
            let ms = |nanoseconds: u64| format!("{:.1}", nanoseconds as f64 / 1e6);
            // The driver keeps nothing.
            let kept = run.kept.filter(|&kept| kept > 0 && row.contender != "bare");
            table.add_row([
                row.trace.clone(),
                row.contender.to_owned(),
                text::count(run.requests),
                ms(run.nanoseconds[0]),
                ms(run.later_ns()),
                ms(run.whole_ns()),
                self.ratio(row).map_or("-".to_owned(), |ratio| format!("{ratio:.2}x")),
                text::count(run.longest_ns / 1000),
                text::size(run.peak_live),
                kept.map_or("-".to_owned(), text::size),
                kept.map_or("-".to_owned(), |kept| {
                    format!("{:.3}", run.peak_live as f64 / kept as f64)
                }),
            ]);
        }
        text::align(&mut table, 2);
        println!("{table}");
        for row in &self.rows {
            if let Err(why) = &row.run {
                println!("  no number for {}, {}: {why}", row.contender, row.trace);
            }
        }
    }

    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| match &row.run {
            Ok(run) => json!({
                "trace": row.trace, "contender": row.contender, "device": self.device.key(), "noise": self.noise,
                "requests": run.requests, "nanoseconds": run.nanoseconds, "longest_ns": run.longest_ns,
                "peak_live": run.peak_live, "kept": run.kept, "versus_torch": self.ratio(row),
            }),
            Err(why) => json!({ "trace": row.trace, "contender": row.contender, "why": why.trim() }),
        });
        rows.collect()
    }
}
