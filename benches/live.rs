//! The calls that reach the driver when a job repeats itself under `auto_growth`. Plays every trace repeatedly, with
//! the client `tests/support/clients/play.c` under the library, and prints one row for each trace. The simulated GPU
//! counts the calls.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use comfy_table::Table;
use flate2::read::MultiGzDecoder;
use serde_json::{Value, json};

use crate::contender::Places;
use crate::text::{self, Progress};

pub const REPETITIONS: usize = 6;
/// The repetitions before this one, counted from 0, are those in which a job may still find its memory.
pub const LATER: usize = 3;

struct Row {
    name: String,
    /// What the client printed for each repetition, or the reason why the trace was not played.
    repetitions: Result<Vec<Value>, String>,
}

pub struct Live {
    rows: Vec<Row>,
}

/// Those of the files that have the columns of RMM's log, with their names.
pub fn logs(files: &[PathBuf]) -> Vec<(String, &PathBuf)> {
    let name = |file: &PathBuf| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let logs = files.iter().map(|file| (name(file), file));
    logs.filter(|(name, _)| name.ends_with(".csv") || name.ends_with(".csv.gz"))
        .collect()
}

/// Plays those of the files that have the columns of RMM's log.
pub fn measure(files: &[PathBuf], places: &Places, progress: &Progress) -> Live {
    let logs = logs(files);
    let count = logs.len();
    let rows = logs.into_iter().enumerate().map(|(index, (name, file))| {
        progress.show(&format!("playing trace {} of {count}: {name}", index + 1));
        let repetitions = text_of(file).and_then(|text| play(&text, places));
        Row { name, repetitions }
    });
    Live { rows: rows.collect() }
}

/// The text of a trace.
pub fn text_of(file: &Path) -> Result<String, String> {
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

fn play(trace: &str, places: &Places) -> Result<Vec<Value>, String> {
    let failed = |error: std::io::Error| error.to_string();
    let journals = tempfile::tempdir_in(&places.scratch).map_err(failed)?;
    let mut command = Command::new(places.release.join("vramshim"));
    command
        .args(["run", "--quiet", "--strategy", "auto_growth", "--sim", "80GiB", "--dir"])
        .arg(journals.path())
        .arg("--")
        .arg(places.programs.join("play"))
        .args(["--repeat", &REPETITIONS.to_string()])
        .env("SIMGPU_COUNTS", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for name in crate::contender::FOREIGN {
        command.env_remove(name);
    }
    let mut child = command.spawn().map_err(failed)?;
    // The client reads the whole trace before it writes. If it has ended, its message says why.
    let _ = child.stdin.take().map(|mut input| input.write_all(trace.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rev().find(|line| !line.trim().is_empty());
        return Err(last.map_or_else(|| output.status.to_string(), str::to_owned));
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    lines
        .lines()
        .map(|line| serde_json::from_str(line).map_err(|error| error.to_string()))
        .collect()
}

fn sum(repetitions: &[Value], path: &str) -> u64 {
    repetitions.iter().filter_map(|page| page.pointer(path)?.as_u64()).sum()
}

fn most(repetitions: &[Value], path: &str) -> u64 {
    let numbers = repetitions.iter().filter_map(|page| page.pointer(path)?.as_u64());
    numbers.max().unwrap_or(0)
}

fn ratio(above: u64, below: u64) -> f64 {
    above as f64 / below.max(1) as f64
}

/// The figures of one trace.
struct Figures {
    requests: u64,
    peak_live: u64,
    utilisation: f64,
    first_changes: u64,
    /// For each 1,000 requests.
    later_changes: f64,
    waits_in_allocations: u64,
    waits_in_frees: u64,
    events: f64,
}

impl Figures {
    fn of(repetitions: &[Value]) -> Figures {
        let (first, later) = (&repetitions[..1], &repetitions[LATER..]);
        let peak_live = most(repetitions, "/peak_live");
        let events = sum(repetitions, "/allocations/events") + sum(repetitions, "/frees/events");
        Figures {
            requests: sum(first, "/requests"),
            peak_live,
            utilisation: ratio(peak_live, most(repetitions, "/peak_reserved")),
            first_changes: sum(first, "/changes"),
            later_changes: 1000.0 * ratio(sum(later, "/changes"), sum(later, "/requests")),
            waits_in_allocations: sum(repetitions, "/allocations/waits"),
            waits_in_frees: sum(repetitions, "/frees/waits"),
            events: ratio(events, sum(repetitions, "/requests")),
        }
    }
}

impl Row {
    fn figures(&self) -> Option<Figures> {
        let repetitions = self.repetitions.as_ref().ok()?;
        (repetitions.len() == REPETITIONS).then(|| Figures::of(repetitions))
    }
}

impl Live {
    pub fn print(&self) {
        println!("Live: each trace is played {REPETITIONS} times under auto_growth, through the allocator for PyTorch");
        println!(
            "calls = driver calls that change memory; later = from repetition {} on; a request is an allocation\n",
            LATER + 1
        );
        let mut table = Table::new();
        let heads = [
            "trace",
            "requests",
            "peak live",
            "utilisation",
            "calls, first",
            "later, for 1,000 requests",
            "waits in allocations",
            "in frees",
            "event calls a request",
        ];
        text::prepare(&mut table, heads.map(str::to_owned).into_iter());
        for row in &self.rows {
            let Some(figures) = row.figures() else { continue };
            table.add_row([
                row.name.clone(),
                text::count(figures.requests),
                text::size(figures.peak_live),
                format!("{:.3}", figures.utilisation),
                text::count(figures.first_changes),
                text::significant(figures.later_changes),
                text::count(figures.waits_in_allocations),
                text::count(figures.waits_in_frees),
                text::significant(figures.events),
            ]);
        }
        text::align(&mut table, 1);
        println!("{table}");
        for row in &self.rows {
            if let Err(why) = &row.repetitions {
                println!("  {}: {why}", row.name);
            }
        }
    }

    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| match &row.repetitions {
            Ok(repetitions) => json!({ "trace": row.name, "repetitions": repetitions }),
            Err(why) => json!({ "trace": row.name, "why": why }),
        });
        rows.collect()
    }
}
