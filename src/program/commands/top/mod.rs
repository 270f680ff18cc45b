//! `vramshim top`: shows all devices, and all processes under the library, of this machine.
//!
//! `machine` keeps the processes and their ledgers up to date, and `rows` makes the rows of the tables from them. For
//! `--once`, `json` or this file prints the tables. Otherwise `terminal` runs the `screen`, which draws the tables at
//! each update.

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
  vramshim top                                  # every process that this user may examine
  vramshim top 4711 vramshim-train              # one process, and those with journals in a folder
  vramshim top --once                           # one table
  vramshim top --once --json | jq '.devices[].reserved'

Keys: up and down (or k and j) choose a process, Enter opens it (classes, APIs, largest allocations), Esc goes back; left and \
right choose the column to sort by, r reverses the order; p pauses; q quits.

A process is seen through its journal, from its first use of CUDA on. A process without a journal (VRAMSHIM_JOURNAL_MAX=0) is \
not seen, and processes of other users are seen by root only. Devices are identified by UUID, so processes that number a \
device differently are added up. Rates are per second since the last update; utilisation is peak allocated / peak reserved.

Exit codes: 0 done, 1 if an argument names nothing that can be read, 2 wrong usage or no terminal.";

/// How long `--once` continues to read after the size that the journals had at the start.
const CATCH_UP_TIME: Duration = Duration::from_secs(2);

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Top {
    /// Show only these processes, or the processes that write journals (.vraj) in these folders [default: all of this
    /// machine]
    #[arg(value_name = "FOLDER|FILE|PID")]
    only: Vec<OsString>,

    /// Print one table and exit
    #[arg(long)]
    once: bool,

    /// With --once: print JSON instead of the table, sizes in bytes
    #[arg(long, requires = "once")]
    json: bool,

    /// Time between two updates, 100ms to 1h
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

/// Reads every journal to its present end, or for `CATCH_UP_TIME` beyond the end that it had at the start.
fn read_all(machine: &mut Machine) {
    machine.discover();
    let mut bar: Option<indicatif::ProgressBar> = None;
    let (_, goal) = machine.progress();
    let mut last = None;
    while !machine.follow(Duration::from_millis(100)) {
        let (done, total) = machine.progress();
        // A process may write its journal faster than it can be read.
        if done > goal && last.get_or_insert_with(Instant::now).elapsed() > CATCH_UP_TIME {
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
