//! `vramshim doctor --book`: compares the book of the next layer with the library's ledger, road by road.
//!
//! A layer for GPU sharing keeps a book of what a job holds, and answers `cuMemGetInfo` from it. A child under the library
//! takes memory by each road and gives it back (`probe::roads`). A layer that does not count a road lets a job have more
//! than its share there; one that does not take memory off its book leaves less and less.

use std::io::{self, Write};
use std::time::Duration;

use config::table;
use serde::Serialize;

use super::ask;
use super::driver;
use super::probe::{Book, Books, GivenBack, Road, Row, Steps, Taken, Verdict, What};
use crate::analysis::names;
use crate::failure::Failure;
use crate::launch::environment::Environment;
use crate::launch::processes::End;
use crate::render::format::{self, difference, printable, size, strong};
use crate::render::table::table;

/// Settings of the job that would stand between the child and the next layer's answers.
const NOT_FOR_THE_CHILD: [&str; 5] = [
    table::POD_LIMIT.name,
    table::LIMIT.name,
    table::PADDLES_LIMIT.name,
    table::ACCOUNTS.name,
    table::IDLE_RELEASE.name,
];

#[derive(Serialize)]
struct Page<'a> {
    /// The file of the layer that answers; `null` if the driver answers itself.
    layer: Option<&'a str>,
    strategy: &'static str,
    agrees: bool,
    devices: &'a [Book],
}

/// Asks the child, shows what it found, and says by the exit code whether the books agree.
pub fn examine(environment: &Environment, limit: Duration, as_json: bool) -> Result<(), Failure> {
    let no_answer = |why: &str| Failure::new(super::NO_ANSWER, why);
    let known = driver::ask_driver(environment, limit).map_err(|failure| no_answer(failure.message()))?;
    let mut child = ask::command(What::Roads, environment, &environment.preloads());
    for name in NOT_FOR_THE_CHILD {
        child.env_remove(name);
    }
    child.env(table::JOURNAL_MAX.name, "0").env(table::LOG.name, "error");
    let answer = ask::ask_by(&mut child, limit).map_err(Failure::failed)?;
    let mut books: Books = answer.last_state();
    match (&answer.end, &books.error) {
        (End::By(_), Some(error)) => return Err(no_answer(&format!("{error}; `vramshim doctor` says more"))),
        (End::By(_), None) if books.done => {}
        _ => {
            return Err(no_answer(&answer.failure(
                "the process that asked",
                &books.doing,
                limit,
            )));
        }
    }
    for (book, device) in books.devices.iter_mut().zip(&known.devices) {
        if device.limit_of_layer.is_some()
            && !device.granule_counted
            && let Some(mapped) = book.roads.iter_mut().find(|row| row.road == Road::Mapped)
            && let Verdict::Compared { taken, .. } = &mut mapped.verdict
            && *taken == Taken::Counted
        {
            *taken = Taken::NotRefused;
        }
    }
    let (config, _) = config::Config::read(|name| environment.get(name));
    let mut rows = books.devices.iter().flat_map(|device| &device.roads);
    let page = Page {
        layer: driver::layer_of(&known),
        strategy: config.strategy.name(),
        agrees: rows.all(|row| row.verdict.agrees()),
        devices: &books.devices,
    };
    let shown = if as_json {
        super::report::json(&page)
    } else {
        show(&page)
    };
    shown.map_err(Failure::unwritten)?;
    if page.agrees {
        Ok(())
    } else {
        Err(Failure::answer(super::DIFFERS))
    }
}

fn show(page: &Page) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let bold = format::styled();
    match page.layer {
        Some(layer) => writeln!(out, "The next layer is {}.", printable(layer, 1000))?,
        None => writeln!(
            out,
            "No layer is in front of the driver: the driver's own figures are compared."
        )?,
    }
    writeln!(
        out,
        "Each road took memory under {}, and gave it back. Columns: what the used bytes by cuMemGetInfo, and the \
         reserved bytes of the ledger, grew by.",
        page.strategy
    )?;
    for device in page.devices {
        let heading = format!("device {}: {}", device.ordinal, size(device.total));
        writeln!(out, "\n{}", strong(&heading, bold))?;
        let titles = ["road", "asked", "layer", "ledger", "layer after", "ledger after", ""];
        let rows = device.roads.iter().map(cells).collect();
        table(&mut out, &titles, &[1, 2, 3, 4, 5], rows)?;
        if device.total != device.device_total {
            writeln!(
                out,
                "  cuMemGetInfo says that the device has {}, cuDeviceTotalMem {}.",
                size(device.total),
                size(device.device_total)
            )?;
        }
    }
    let roads = || page.devices.iter().flat_map(|device| &device.roads);
    let apart = roads().filter(|road| !road.verdict.agrees()).count();
    let not_shown = roads().any(|road| road.verdict == Verdict::NotShown);
    let last = match apart {
        _ if not_shown => {
            "The layer tells the same free memory whatever was taken, so its book cannot be compared.".to_owned()
        }
        0 => "The books agree on each road.".to_owned(),
        1 => "The books do not agree on 1 road.".to_owned(),
        _ => format!("The books do not agree on {apart} roads."),
    };
    writeln!(out, "\n{}", strong(&last, bold))?;
    out.flush()
}

fn cells(row: &Row) -> Vec<String> {
    let Steps { layer, ledger } = row.steps;
    let mut cells = vec![row.function.clone(), size(row.bytes)];
    match row.verdict {
        Verdict::NoSuchRoad { .. } => cells.extend(["-"; 4].map(str::to_owned)),
        _ => cells.extend([layer[0], ledger[0], layer[1], ledger[1]].map(difference)),
    }
    cells.push(words(row));
    cells
}

fn words(row: &Row) -> String {
    let Steps { layer, ledger } = row.steps;
    let apart = |step: usize| size(layer[step].abs_diff(ledger[step]));
    match &row.verdict {
        Verdict::NotShown => "not shown".into(),
        Verdict::Unsteady => "not known: the figures change, because others use the device".into(),
        Verdict::NoSuchRoad {
            failed: (function, code),
        } => format!(
            "not there: {function} failed with {} ({code})",
            names::result_name(*code)
        ),
        Verdict::Compared { taken, given_back } => {
            let taken = match taken {
                Taken::Counted => "counted".to_owned(),
                Taken::NotCounted => format!("not counted: a job gets {} beyond the layer's limit", apart(0)),
                Taken::NotRefused => "shown, and not refused: a job gets as much as the device has".to_owned(),
                Taken::CountedTwice => format!("counted twice: {} too much", apart(0)),
                Taken::CountedOtherwise => format!("counted otherwise: {} apart", apart(0)),
            };
            match given_back {
                GivenBack::All => taken,
                GivenBack::NotAll => format!("{taken}; {} not given back", apart(1)),
                GivenBack::TooMuch => format!("{taken}; {} too much given back", apart(1)),
            }
        }
    }
}
