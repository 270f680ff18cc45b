//! `vramshim top`: all devices and processes under the library on this machine, as they are now.
//!
//! `machine` keeps up with the processes, `rows` says what there is to tell of them; `json` and the table here print it
//! once, `screen` draws it and `terminal` keeps the drawing going until it is told to stop.

mod json;
mod machine;
mod rows;
mod screen;
mod terminal;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Args;
use config::parse_duration;

use crate::failure::Failure;
use crate::render::progress;
use crate::render::table::table;
use machine::Machine;
use rows::{Column, DeviceRow, Row};

const EXAMPLES: &str = "\
Examples:
  vramshim top                                  # every process that we may look at
  vramshim top 4711 vramshim-train              # one process, and those with journals in a folder
  vramshim top --once                           # one table
  vramshim top --once --json | jq '.devices[].reserved'

Keys: arrows or j, k choose a process, Enter opens it (classes, APIs, largest allocations), Esc goes back; left and right \
choose the column to sort by, r reverses; p pauses; q quits.

A process is seen from its first use of CUDA on, through its journal: one that keeps none (VRAMSHIM_JOURNAL_MAX=0) is not. \
Nor are other users' processes, unless root asks. A device is known by its UUID, so that processes that number it \
differently are added up. Rates are those since the last look; utilisation is peak allocated / peak reserved.";

/// How long processes are read along with that go on writing.
const CHASE: Duration = Duration::from_secs(2);

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Top {
    /// Show only these processes, or those that write journals (.vraj) there [default: all of this machine]
    #[arg(value_name = "FOLDER|FILE|PID")]
    only: Vec<OsString>,

    /// Print one table and exit
    #[arg(long)]
    once: bool,

    /// Print JSON instead of the table, sizes in bytes
    #[arg(long, requires = "once")]
    json: bool,

    /// Time from one look to the next, 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "1s", conflicts_with = "once", value_parser = interval)]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let bare = text.parse::<f64>().is_ok();
    let given = parse_duration(&if bare { format!("{text}s") } else { text.to_owned() });
    given
        .filter(|given| (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(given))
        .ok_or_else(|| "give a time from 100ms to 1h, such as 500ms, 2s or 1min".to_owned())
}

impl Top {
    pub fn show(self) -> Result<(), Failure> {
        let terminal = io::stdout().is_terminal();
        if !self.once && !terminal {
            return Err(Failure::refused(
                "standard output is no terminal: use `vramshim top --once` for one table, or `--once --json` for JSON",
            ));
        }
        let mut machine = Machine::new(&self.only).map_err(Failure::failed)?;
        if !self.once {
            return terminal::run(machine, self.interval);
        }
        read_all(&mut machine);
        for problem in machine.problems() {
            eprintln!("vramshim: {problem}");
        }
        let mut out = io::BufWriter::new(io::stdout().lock());
        match self.json {
            true => json::write(&mut out, &machine),
            false => print(&mut out, &machine),
        }
        .and_then(|()| out.flush())
        .map_err(Failure::unwritten)
    }
}

/// Reads every journal to its end as it is now.
fn read_all(machine: &mut Machine) {
    machine.discover();
    let mut bar: Option<indicatif::ProgressBar> = None;
    let (_, goal) = machine.progress();
    let mut last = None;
    while !machine.follow(Duration::from_millis(100)) {
        let (done, total) = machine.progress();
        // A process may write faster than it can be read.
        if done > goal && last.get_or_insert_with(Instant::now).elapsed() > CHASE {
            break;
        }
        if bar.is_none() && total - done > progress::WORTH_A_BAR_BYTES {
            bar = Some(progress::reading(total, "journals"));
        }
        if let Some(bar) = &bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    machine.finish();
}

fn print(out: &mut impl Write, machine: &Machine) -> io::Result<()> {
    let mut rows = rows::of(machine);
    Column::Pid.sort(&mut rows, false);
    if rows.is_empty() {
        return writeln!(out, "{}", machine.nothing_to_show());
    }
    let devices = rows::devices(machine);
    if !devices.is_empty() {
        let titles = DeviceRow::TITLES;
        let numbers: Vec<usize> = (2..titles.len()).collect();
        table(out, &titles, &numbers, devices.iter().map(|row| row.texts()).collect())?;
        writeln!(out)?;
    }
    let columns: Vec<Column> = (Column::ALL.iter().copied())
        .filter(|column| !column.is_a_rate())
        .collect();
    let titles: Vec<&str> = columns.iter().map(|column| column.title()).collect();
    let numbers: Vec<usize> = (0..columns.len()).filter(|&place| columns[place].is_number()).collect();
    let text = |row: &Row| columns.iter().map(|column| column.text(row)).collect();
    table(out, &titles, &numbers, rows.iter().map(text).collect())
}
