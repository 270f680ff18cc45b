//! One turn: a worker on one device under one strategy, from its start to its end. This side starts the worker, hears its
//! outcome, and asks whether the device has its memory back.

use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use super::compare::{ask_nvml, compare_end, settle};
use super::outcome::{Fault, FaultKind, Order, Outcome};
use crate::analysis::host::Host;
use crate::launch::processes::{End, Group, interrupted, lines_of};

/// The driver may clear up after a process for a moment, so its figures are read as often before they are told.
const TRIES: usize = 16;
/// The time between two looks at the worker.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A process that is done or killed is gone after this time, unless the kernel's driver holds it.
const TIME_TO_DIE: Duration = Duration::from_secs(10);
/// The name of the file with what the worker wrote to standard error.
const STDERR: &str = "stderr";

/// What a turn needs.
pub struct Turn {
    /// Starts the worker, without its argument.
    pub command: Command,
    pub order: Order,
    /// The folder of the turn, for the journal and the output of the worker.
    pub folder: PathBuf,
    /// The command that plays the same again.
    pub again: String,
}

impl Turn {
    /// Plays the turn. The folder is removed if nothing broke.
    pub fn play(mut self) -> Outcome {
        let mut outcome = Outcome::default();
        let told = self.attend(&mut outcome);
        if let Some(fault) = outcome.fault.take().or(told.err()) {
            let (again, folder) = (self.again, self.folder.display().to_string());
            outcome.fault = Some(Fault { again, folder, ..fault });
        } else {
            // What stays behind is no fault of the driver.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
        outcome.strategy = self.order.strategy;
        outcome
    }

    fn attend(&mut self, outcome: &mut Outcome) -> Result<(), Fault> {
        std::fs::create_dir_all(&self.folder)?;
        self.command
            .arg(serde_json::to_string(&self.order).map_err(io::Error::from)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(self.folder.join(STDERR))?);
        let mut worker = Group::start(&mut self.command)?;
        let child = worker.child();
        let lines = child
            .stdout
            .take()
            .map(lines_of)
            .ok_or(io::ErrorKind::BrokenPipe)
            .map_err(io::Error::from)?;
        // Before its first line, the kernel may not have the variables of the process yet.
        drop(lines.recv_timeout(self.order.patience));
        let (pid, host) = (child.id(), Host::of(child.id()));
        let before = ask_nvml(&self.order, &host, pid);
        // The worker begins when its standard input ends.
        drop(child.stdin.take());
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
        match worker.wait(TIME_TO_DIE, |_| ())? {
            End::By(status) if status.success() && outcome.is_done => {}
            End::By(status) => return Err(self.died(status)),
            End::Interrupted => return Ok(()),
            End::TooLong => {
                let words = format!("the worker is done, but its process does not end within {TIME_TO_DIE:?}");
                return Err(Fault::new(FaultKind::Hangs, words));
            }
        }
        let why = settle(TRIES, || {
            let after = ask_nvml(&self.order, &host, pid);
            Ok((compare_end(self.order.bound, &before, &after), after))
        })?;
        outcome.why_not_compared.extend(why);
        Ok(())
    }

    fn died(&self, status: ExitStatus) -> Fault {
        let how = match status.signal() {
            Some(signal) => format!("the worker was ended by signal {signal}"),
            None => format!("the worker ended by itself ({status})"),
        };
        let text = std::fs::read(self.folder.join(STDERR)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().rfind(|line| !line.trim().is_empty());
        let said = last.map_or_else(String::new, |line| format!("; its last words: {}", line.trim()));
        Fault::new(FaultKind::Died, how + &said)
    }
}
