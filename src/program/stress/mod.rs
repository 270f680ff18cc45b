//! `vramshim stress`: workers make the driver work under each strategy, and their books are compared.
//!
//! A `worker` is a process under the library. It takes memory, writes patterns and reads them back, and gives the memory
//! back. At rest points it asks the ledger, the driver and NVML, and `compare` compares them with its own count. This side
//! starts a worker, hears its `outcome`, and asks whether the device has its memory back. `baseline` compares two runs.

pub mod baseline;
mod compare;
pub mod outcome;
mod worker;

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use self::compare::{ask_nvml, compare_end, settle};
use self::outcome::{Fault, FaultKind, Order, Outcome};
use crate::analysis::host::Host;
use crate::launch::processes::{End, Group, interrupted, lines_of};
pub use worker::run as work;

/// The driver may clear up after a process for a moment, so its figures are read as often before they are told.
const TRIES: usize = 16;
/// The time between two looks at the worker.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A process that is done or killed is gone after this time, unless the kernel's driver holds it.
const TIME_TO_DIE: Duration = Duration::from_secs(10);

/// Plays a turn: `command` starts the worker, without its argument. The `folder` gets the journal and the output of the
/// worker, and is removed if nothing broke. `again` is the command that plays the same again.
pub fn play(command: &mut Command, order: &Order, folder: &Path, again: String) -> Outcome {
    let mut outcome = Outcome::default();
    let told = attend(command, order, folder, &mut outcome);
    outcome.strategy = order.strategy.clone();
    if let Some(fault) = outcome.fault.take().or(told.err()) {
        let folder = folder.display().to_string();
        outcome.fault = Some(Fault { again, folder, ..fault });
    } else {
        // What stays behind is no fault of the driver.
        let _ = std::fs::remove_dir_all(folder);
    }
    outcome
}

fn attend(command: &mut Command, order: &Order, folder: &Path, outcome: &mut Outcome) -> Result<(), Fault> {
    std::fs::create_dir_all(folder)?;
    command
        .arg(serde_json::to_string(order).map_err(io::Error::from)?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(File::create(folder.join("stderr"))?);
    let mut worker = Group::start(command)?;
    let pid = worker.child().id();
    let (stdin, stdout) = (worker.child().stdin.take(), worker.child().stdout.take());
    let lines = stdout.map(lines_of).ok_or(io::Error::from(io::ErrorKind::BrokenPipe))?;
    // Before its first line, the kernel may not have the variables of the process yet.
    drop(lines.recv_timeout(order.patience));
    let host = Host::of(pid);
    let before = ask_nvml(order, &host, pid);
    // The worker begins when its standard input ends.
    drop(stdin);
    loop {
        match lines.recv_timeout(LOOK_EVERY) {
            // A library or driver may write to standard output, too.
            Ok(line) => *outcome = serde_json::from_str(&line).unwrap_or_else(|_| std::mem::take(outcome)),
            Err(RecvTimeoutError::Timeout) if interrupted().is_none() => {}
            Err(_) => break,
        }
    }
    if interrupted().is_some() || outcome.fault.is_some() {
        return Ok(());
    }
    let (kind, words) = match worker.wait(TIME_TO_DIE, || ())? {
        End::By(status) if status.success() && outcome.is_done => {
            let why = settle(TRIES, || {
                let after = ask_nvml(order, &host, pid);
                Ok((compare_end(order.bound, &before, &after), after))
            })?;
            outcome.why_not_compared.extend(why);
            return Ok(());
        }
        End::Interrupted => return Ok(()),
        End::By(status) => (
            FaultKind::Died,
            format!("the worker ended with {status}; the file stderr has its last words"),
        ),
        End::TooLong => (
            FaultKind::Hangs,
            format!("the worker is done, but does not end within {TIME_TO_DIE:?}"),
        ),
    };
    Err(Fault::new(kind, words))
}
