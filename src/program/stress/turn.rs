//! One turn: a worker on one device under one strategy, from its start to its end. This side starts the worker, watches
//! that it makes progress, asks NVML at its rest points, and compares the books.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use base::text::shown;

use super::calls::{self, Seen};
use super::checks::{Moment, Terms, Verdict, of_worker};
use super::fault::{Fault, Kind};
use super::message::{AGAIN, Counts, Done, GO_ON, Line, Order, Ready, Rest};
use super::prices::Price;
use crate::analysis::host::Host;
use crate::analysis::nvml::{self, Reading};
use crate::launch::processes::interrupted;
use crate::render::format::duration;

/// How often figures that differ are read again before they are told. Others may take memory at the same moment.
const TRIES: usize = 4;
/// The time between two readings.
const BETWEEN_TRIES: Duration = Duration::from_millis(250);
/// Others are taken to hold still if their memory moved by less than this.
const STILL_BYTES: u64 = 1 << 20;
/// The time between two looks at the worker.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A process that is killed is gone after this time, unless the kernel's driver holds it.
const TIME_TO_DIE: Duration = Duration::from_secs(10);
/// The name of the file with what the worker wrote to standard error.
const STDERR: &str = "stderr";

/// What a turn needs.
pub struct Turn {
    /// Starts the worker, without its argument.
    pub command: Command,
    pub order: Order,
    pub uuid: String,
    /// The folder of the turn, for the journal and the output of the worker.
    pub folder: PathBuf,
    pub bound: u64,
    pub alone: bool,
    /// How long a call, or anything else without progress, may take.
    pub patience: Duration,
}

/// What others may see of a turn while it goes on.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    pub round: u64,
    pub counts: Counts,
}

/// What came of a turn.
#[derive(Debug, Default)]
pub struct Outcome {
    pub ready: Ready,
    pub rounds: u64,
    pub counts: Counts,
    /// Rest points at which all books were compared.
    pub compared: u64,
    /// Rest points at which the device's figures could not be compared, and why.
    pub not_compared: u64,
    pub reasons: BTreeSet<String>,
    /// Of the device with the worker's context and nothing else, by `cuMemGetInfo`; the context is by NVML.
    pub free_at_idle: Option<u64>,
    pub context_bytes: Option<u64>,
    pub prices: Vec<Price>,
    pub fault: Option<Fault>,
    /// A signal ended the turn.
    pub was_interrupted: bool,
}

/// Why a turn ended before its time.
enum Stop {
    Fault(Fault),
    Interrupted,
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

fn not_started(what: &str, error: &dyn std::fmt::Display) -> Fault {
    Fault::new(Kind::NotStarted, format!("{what}: {error}"))
}

impl Turn {
    /// Plays the turn. The folder is removed if nothing broke.
    pub fn play(mut self, watched: &Mutex<Watched>) -> Outcome {
        let mut outcome = Outcome::default();
        match self.attend(&mut outcome, watched) {
            Ok(()) => {}
            Err(Stop::Fault(fault)) => outcome.fault = Some(fault),
            Err(Stop::Interrupted) => outcome.was_interrupted = true,
        }
        if outcome.fault.is_none() {
            // What stays behind is no fault of the driver.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
        outcome
    }

    fn attend(&mut self, outcome: &mut Outcome, watched: &Mutex<Watched>) -> Result<(), Stop> {
        let mut worker = self.start()?;
        let attended = self.listen(&mut worker, outcome, watched);
        let ended = worker.end(attended.is_ok());
        attended?;
        match ended {
            Some(status) if status.success() => {}
            Some(status) => return Err(self.died(status, &calls::read(&self.order.calls)).into()),
            None => {
                let words = format!(
                    "the worker is done, but its process does not end within {}",
                    duration(TIME_TO_DIE.as_nanos() as u64)
                );
                return Err(Fault::new(Kind::Hangs, words).into());
            }
        }
        if let (Some(before), Some(host)) = (&worker.before, &worker.host) {
            self.check_given_back(&self.terms(worker.child.id()), host, before, outcome)?;
        }
        Ok(())
    }

    fn terms(&self, pid: u32) -> Terms {
        Terms {
            pid,
            bound: self.bound,
            alone: self.alone,
        }
    }

    fn start(&mut self) -> Result<Worker, Fault> {
        let folder = |error| not_started(&shown(&self.folder), &error);
        std::fs::create_dir_all(&self.folder).map_err(folder)?;
        let stderr = File::create(self.folder.join(STDERR)).map_err(folder)?;
        let order = serde_json::to_string(&self.order).map_err(|error| not_started("the order", &error))?;
        self.command
            .arg(order)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            // Ctrl-C goes to this program alone, which then ends the worker.
            .process_group(0);
        // SAFETY: the closure makes one system call, which is allowed between fork and exec. The kernel kills the worker
        // when the thread that starts it ends.
        unsafe {
            self.command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = self
            .command
            .spawn()
            .map_err(|error| not_started("the worker", &error))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Fault::new(Kind::NotStarted, "the worker has no pipes".to_owned()));
        };
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Worker {
            child,
            input,
            lines,
            progress: Vec::new(),
            seen: Vec::new(),
            last_line: Instant::now(),
            before: None,
            host: None,
        })
    }

    /// Hears the worker until its last line.
    fn listen(&self, worker: &mut Worker, outcome: &mut Outcome, watched: &Mutex<Watched>) -> Result<(), Stop> {
        let mut start: Option<Moment> = None;
        loop {
            match self.next_line(worker)? {
                Line::Ready(ready) => {
                    outcome.ready = ready;
                    let host = Host::of(worker.child.id());
                    worker.before = Some(self.ask_nvml(&host));
                    worker.host = Some(host);
                    worker.answer(GO_ON);
                }
                Line::Rest(rest) => {
                    outcome.rounds = rest.round;
                    outcome.counts = rest.counts;
                    if let Ok(mut watched) = watched.lock() {
                        *watched = Watched {
                            round: rest.round,
                            counts: rest.counts,
                        };
                    }
                    match &start {
                        None => {
                            let moment = self.look(worker, rest);
                            outcome.free_at_idle = Some(moment.rest.free);
                            outcome.context_bytes = of_worker(&moment.nvml, worker.child.id());
                            self.terms(0).ledger(&moment.rest, &moment.rest)?;
                            start = Some(moment);
                        }
                        Some(start) => self.compare(worker, start, rest, outcome)?,
                    }
                    worker.answer(GO_ON);
                }
                Line::Fault(fault) => return Err(fault.into()),
                Line::Done(Done { counts, prices }) => {
                    outcome.counts = counts;
                    outcome.prices = prices;
                    return Ok(());
                }
            }
        }
    }

    /// Waits for a line, and watches that the worker makes progress.
    fn next_line(&self, worker: &mut Worker) -> Result<Line, Stop> {
        loop {
            if interrupted().is_some() {
                return Err(Stop::Interrupted);
            }
            match worker.lines.recv_timeout(LOOK_EVERY) {
                Ok(text) => {
                    worker.last_line = Instant::now();
                    match serde_json::from_str(&text) {
                        Ok(line) => return Ok(line),
                        // A library or driver may write to standard output.
                        Err(_) => continue,
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.watch(worker)?,
                Err(RecvTimeoutError::Disconnected) => {
                    let seen = calls::read(&self.order.calls);
                    let fault = match worker.wait(TIME_TO_DIE) {
                        Some(status) => self.died(status, &seen),
                        None => Fault::new(Kind::Hangs, "the worker closed its output and does not end".to_owned()),
                    };
                    return Err(fault.into());
                }
            }
        }
    }

    /// Looks for calls that take too long, and for a worker that makes no calls at all.
    fn watch(&self, worker: &mut Worker) -> Result<(), Fault> {
        let now = Instant::now();
        let seen = calls::read(&self.order.calls);
        worker.progress.resize(seen.len(), now);
        for (at, entry) in seen.iter().enumerate() {
            if worker.seen.get(at) != Some(entry) {
                worker.progress[at] = now;
            } else if entry.is_busy && now - worker.progress[at] >= self.patience {
                let words = format!("{} did not return within {}", entry.name, self.patience_in_words());
                return Err(Fault::new(Kind::Hangs, words).in_call(&entry.name, entry.bytes));
            }
        }
        worker.seen = seen;
        let latest = worker.progress.iter().copied().max();
        let latest = latest.map_or(worker.last_line, |latest| latest.max(worker.last_line));
        if now - latest >= self.patience {
            let words = format!("the worker made no call of the driver for {}", self.patience_in_words());
            return Err(Fault::new(Kind::Hangs, words));
        }
        Ok(())
    }

    fn patience_in_words(&self) -> String {
        duration(self.patience.as_nanos() as u64)
    }

    fn died(&self, status: ExitStatus, seen: &[Seen]) -> Fault {
        let busy: Vec<&Seen> = seen.iter().filter(|entry| entry.is_busy).collect();
        let names: Vec<&str> = busy.iter().map(|entry| entry.name.as_str()).collect();
        let doing = match names.is_empty() {
            true => "outside the driver's calls".to_owned(),
            false => format!("in {}", names.join(", ")),
        };
        let how = match status.signal() {
            Some(signal) => format!("the worker was ended by signal {signal} {doing}"),
            None => format!("the worker ended by itself ({status}) {doing}"),
        };
        let text = std::fs::read(self.folder.join(STDERR)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().rfind(|line| !line.trim().is_empty());
        let said = last.map_or_else(String::new, |line| format!("; its last words: {}", line.trim()));
        let fault = Fault::new(Kind::Died, how + &said);
        // With several calls in progress, nothing tells which of them ended the worker.
        match busy[..] {
            [entry] => fault.in_call(&entry.name, entry.bytes),
            _ => fault,
        }
    }

    fn ask_nvml(&self, host: &Host) -> Result<Reading, String> {
        let answers =
            nvml::ask(host, std::slice::from_ref(&self.uuid), self.patience).map_err(|why| why.to_string())?;
        answers
            .into_iter()
            .next()
            .ok_or_else(|| "NVML gave no answer".to_owned())?
            .map_err(|why| why.to_string())
    }

    fn look(&self, worker: &Worker, rest: Rest) -> Moment {
        let host = worker.host.clone().unwrap_or(Host::Machine);
        Moment {
            rest,
            nvml: self.ask_nvml(&host),
        }
    }

    /// Compares the books at a rest point. Figures that differ are read again, because others may take memory meanwhile.
    fn compare(&self, worker: &mut Worker, start: &Moment, rest: Rest, outcome: &mut Outcome) -> Result<(), Stop> {
        let terms = self.terms(worker.child.id());
        terms.ledger(&start.rest, &rest)?;
        let mut moment = self.look(worker, rest);
        let mut of_others = BTreeSet::new();
        for tries in 1.. {
            let fault = match terms.device(start, &moment) {
                Verdict::Agree => {
                    outcome.compared += 1;
                    return Ok(());
                }
                Verdict::Unknown(why) => {
                    outcome.not_compared += 1;
                    outcome.reasons.insert(why);
                    return Ok(());
                }
                Verdict::Apart(fault) => fault,
            };
            of_others.insert(terms.of_others(&moment.nvml));
            if tries == TRIES {
                if are_still(&of_others) {
                    return Err(fault.into());
                }
                outcome.not_compared += 1;
                outcome
                    .reasons
                    .insert("other processes took or freed memory at the same time".to_owned());
                return Ok(());
            }
            std::thread::sleep(BETWEEN_TRIES);
            worker.answer(AGAIN);
            moment = match self.next_line(worker)? {
                Line::Rest(rest) => self.look(worker, rest),
                Line::Fault(fault) => return Err(fault.into()),
                _ => continue,
            };
        }
        Ok(())
    }

    fn check_given_back(
        &self,
        terms: &Terms,
        host: &Host,
        before: &Result<Reading, String>,
        outcome: &mut Outcome,
    ) -> Result<(), Stop> {
        let mut of_others = BTreeSet::from([terms.of_others(before)]);
        for tries in 1.. {
            let after = self.ask_nvml(host);
            match terms.given_back(before, &after) {
                Verdict::Agree => break,
                Verdict::Unknown(why) => {
                    outcome.reasons.insert(why);
                    break;
                }
                Verdict::Apart(fault) => {
                    of_others.insert(terms.of_others(&after));
                    // The driver may clear up after a process for a moment.
                    if tries == 4 * TRIES {
                        return match are_still(&of_others) {
                            true => Err(fault.into()),
                            false => {
                                outcome
                                    .reasons
                                    .insert("other processes took or freed memory at the same time".into());
                                Ok(())
                            }
                        };
                    }
                    std::thread::sleep(BETWEEN_TRIES);
                }
            }
        }
        Ok(())
    }
}

/// Whether the memory of others stayed as it was in all readings.
fn are_still(of_others: &BTreeSet<Option<u64>>) -> bool {
    let (least, most) = (
        of_others.first().copied().flatten(),
        of_others.last().copied().flatten(),
    );
    match (least, most) {
        (Some(least), Some(most)) => most - least < STILL_BYTES,
        // Nothing is known of others: NVML's figures of the worker, and of the device, differ all the same.
        _ => of_others.len() <= 1,
    }
}

struct Worker {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// When the entry of each thread last changed, and what it was.
    progress: Vec<Instant>,
    seen: Vec<Seen>,
    last_line: Instant,
    /// What NVML said before the worker had a context.
    before: Option<Result<Reading, String>>,
    host: Option<Host>,
}

impl Worker {
    /// A worker that has died is noticed when its next line does not come.
    fn answer(&mut self, word: &str) {
        let _ = writeln!(self.input, "{word}").and_then(|()| self.input.flush());
        self.last_line = Instant::now();
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                _ => return None,
            }
        }
    }

    /// Waits for a worker that is done, and kills any other. `None` if it does not end.
    fn end(&mut self, is_done: bool) -> Option<ExitStatus> {
        let ended = match is_done {
            true => self.wait(TIME_TO_DIE),
            false => None,
        };
        if ended.is_some() {
            return ended;
        }
        let _ = self.child.kill();
        let killed = self.wait(TIME_TO_DIE);
        match is_done {
            // It had to be killed.
            true => None,
            false => killed,
        }
    }
}
