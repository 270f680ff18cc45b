//! `vramshim top`: shows all devices, and all processes under the library, of this machine.
//!
//! `machine` keeps the processes and their ledgers up to date and asks NVML; `devices` and `rows` make the rows of the
//! tables from them, and `render/table` says which columns fit. With `--once` or `--json`, and on a dumb terminal, `json` or
//! `text` prints them. Otherwise `terminal` runs the `screen`, which draws the tables at each update.

mod devices;
mod events;
mod json;
mod machine;
mod rows;
mod screen;
mod terminal;
mod text;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Args;

use crate::escaped;
use crate::failure::Failure;
use crate::render::format::is_dumb;
use crate::say::say;
use machine::Machine;

const EXAMPLES: &str = "\
Examples:
  vramshim top                            # every process
  vramshim top 4711 vramshim-train        # one, and those of a folder
  vramshim top --once                     # one table
  vramshim top --once --json | jq '.devices[].free'     # where does it fit?
  vramshim top --json --interval 5s >> top.jsonl

Keys: left and right choose the column to sort by (marked with *), r reverses the order (marked with ^); / filters by any \
column, Esc shows all; up, down and the page keys (or k and j) scroll; e shows all failures and marks, Esc goes back; q quits. \
`vramshim inspect` shows one process in full, also while it runs.

A process is seen from its first use of CUDA on, one of another user by root only. NVML lists what else is on the devices: \
\"other\" is not under the library, \"no journal\" is, but its journal is off or cannot be read, \"host's pid\" is not visible here. \
NVML tells gpu (its number), nvml, others, free and busy; dev is the job's own number. host is the resident memory of the \
process. live is what the job has in use, cached what is obtained and free, as in PyTorch's cache; of other frameworks' caches \
it is not known what is used inside, and live is at most the figure.

On a terminal that cannot draw (TERM=dumb) a table is printed at each update. NO_COLOR turns colours and bold type off.

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

    /// Print JSON, sizes in bytes: a line at each update, or one object with --once
    #[arg(long)]
    json: bool,

    /// Time between two updates, such as 500ms, 2s or 1min
    #[arg(long, value_name = "TIME", default_value = "1s", conflicts_with = "once", value_parser = super::time)]
    interval: Duration,
}

impl Top {
    pub fn show(self) -> Result<(), Failure> {
        let printed = self.once || self.json || is_dumb();
        if !printed && !io::stdout().is_terminal() {
            return Err(Failure::refused(
                "standard output is no terminal: use `vramshim top --once` for one table, or `--json` for JSON",
            ));
        }
        let mut machine = Machine::new(&self.only)?;
        match printed {
            true => self.print_on(&mut machine),
            false => terminal::run(machine, self.interval),
        }
    }

    /// Prints once, or at each update until a signal ends the program.
    fn print_on(&self, machine: &mut Machine) -> Result<(), Failure> {
        let mut next = Instant::now();
        loop {
            read_all(machine);
            if self.once {
                machine.finish();
            } else {
                machine.refresh();
            }
            machine.ask();
            self.print(machine)?;
            if self.once {
                return Ok(());
            }
            // Updates that were missed, because this program was stopped for example, are left out.
            next = (next + self.interval).max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    fn print(&self, machine: &mut Machine) -> Result<(), Failure> {
        for problem in machine.take_problems() {
            say!("{problem}");
        }
        let mut out = io::BufWriter::new(io::stdout().lock());
        match (self.json, self.once) {
            (true, true) => escaped::pretty(&mut out, &json::page(machine)),
            (true, false) => escaped::line(&mut out, &json::page(machine)),
            (false, _) => out.write_all(text::text(machine, self.once).as_bytes()),
        }
        .and_then(|()| out.flush())
        .map_err(Failure::unwritten)
    }
}

/// Reads every journal to its present end, or for `CATCH_UP_TIME` beyond the end that it had at the start.
fn read_all(machine: &mut Machine) {
    machine.discover();
    let (_, goal) = machine.progress();
    let mut last = None;
    while !machine.follow(Duration::from_millis(100)) {
        // A process may write its journal faster than it can be read.
        let is_beyond = machine.progress().0 > goal;
        if is_beyond && last.get_or_insert_with(Instant::now).elapsed() > CATCH_UP_TIME {
            break;
        }
    }
}
