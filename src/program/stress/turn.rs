//! One turn: a worker on one device under one strategy, from its start to its end. This side starts the worker, hears its
//! outcome, and asks whether the device has its memory back.

use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use super::compare::{Asked, Terms, settle};
use super::outcome::{Fault, FaultKind, Order, Outcome};
use crate::analysis::host::Host;
use crate::analysis::nvml;
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
        let strategy = self.order.strategy.clone();
        let mut outcome = Outcome {
            strategy,
            ..Outcome::default()
        };
        let told = self.attend(&mut outcome);
        let fault = outcome.fault.take().or(told.err());
        outcome.fault = fault.map(|fault| Fault {
            again: self.again.into(),
            folder: self.folder.display().to_string().into(),
            ..fault
        });
        if outcome.fault.is_none() {
            // What stays behind is no fault of the driver.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
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
        let (pid, host) = (child.id(), host_of(child));
        let before = self.order.ask_nvml(&host);
        let lines = child
            .stdout
            .take()
            .map(lines_of)
            .ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
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
        let terms = Terms {
            pid,
            bound: self.order.bound,
        };
        let why = settle(TRIES, || {
            let after = self.order.ask_nvml(&host);
            Ok((terms.given_back(&before, &after), terms.of_others(&after)))
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

/// The host of a process that was just started. For a moment the kernel has no variables of it yet.
fn host_of(child: &Child) -> Host {
    let environ = format!("/proc/{}/environ", child.id());
    let deadline = Instant::now() + Duration::from_secs(1);
    while std::fs::read(&environ).is_ok_and(|text| text.is_empty()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    Host::of(child.id())
}

impl Order {
    /// What NVML says of the device.
    pub fn ask_nvml(&self, host: &Host) -> Asked {
        let all = nvml::ask(host, std::slice::from_ref(&self.uuid), self.patience)?;
        nvml::reading_of(&all, &self.uuid)
    }
}
