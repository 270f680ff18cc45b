//! The worker: a process under the library that makes the driver work.
//!
//! A turn has rounds. Within a round threads work (`rounds`); then they rest, and the books are compared while blocks are
//! live, and again when all were freed. `cuda` has the calls, and `device` the blocks and what the threads share.

mod cuda;
mod device;
mod random;
mod rounds;

use std::ffi::c_int;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use base::sync::lock;

use self::cuda::{Cuda, Hand, InProgress};
use self::device::{Block, Kind, Site};
use self::random::Random;
use self::rounds::Part;
use super::compare::{Rest, Terms, compare_ledger, settle};
use super::outcome::{Fault, FaultKind, Order, Outcome};
use super::prices::Prices;
use crate::analysis::host::Host;
use crate::driver::{Library, Properties, call};
use crate::failure::Failure;
use crate::render::format::duration;

/// Threads of a round.
const THREADS: usize = 4;
/// How often figures that differ are read before they are told.
const TRIES: usize = 4;
/// The time between two looks for calls that take too long.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// `CU_STREAM_NON_BLOCKING` (cuda.h)
const NON_BLOCKING: u32 = 1;
/// What each kind of memory is tried with before the first comparison, so that what a driver loads at the first use is
/// there already.
const FIRST_BYTES: u64 = 4 << 20;

/// Does what the order says, and prints its outcome.
pub fn run(order: &str) -> Result<(), Failure> {
    let order: Order = serde_json::from_str(order).map_err(Failure::refused)?;
    // The starter asks NVML first.
    drop(std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    let strategy = order.strategy.clone();
    let mut outcome = Outcome {
        strategy,
        ..Outcome::default()
    };
    let done = Worker::begin(order, &mut outcome).and_then(|mut worker| worker.work(&mut outcome));
    outcome.is_done = done.is_ok();
    outcome.fault = done.err();
    tell(&outcome);
    if outcome.fault.is_some() {
        // The end of the process frees all memory. A destructor could hang in a driver that has failed.
        std::process::exit(1);
    }
    Ok(())
}

/// Prints a line. If no process reads it, the worker ends.
fn tell(outcome: &Outcome) {
    let mut out = std::io::stdout().lock();
    let told = serde_json::to_vec(outcome).map_err(Into::into).and_then(|mut line| {
        line.push(b'\n');
        out.write_all(&line).and_then(|()| out.flush())
    });
    if told.is_err() {
        std::process::exit(1);
    }
}

fn not_started(words: impl Into<String>) -> Fault {
    Fault::new(FaultKind::NotStarted, words)
}

/// Ends the worker if a call takes longer than `patience`.
fn watch(calls: Vec<InProgress>, patience: Duration, mut outcome: Outcome) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(LOOK_EVERY);
            let late = calls
                .iter()
                .filter_map(|call| *lock(call))
                .find(|(.., begun)| begun.elapsed() >= patience);
            if let Some((name, bytes, _)) = late {
                let words = format!("{name} did not return within {}", duration(patience.as_nanos() as u64));
                outcome.fault = Some(Fault::new(FaultKind::Hangs, words).in_call(name, bytes));
                tell(&outcome);
                // SAFETY: the call ends the process, and no destructor waits for the driver.
                unsafe { libc::_exit(1) };
            }
        }
    });
}

struct Worker {
    site: Site,
    host: Host,
    /// The hand of the first thread, and those of the threads of a round with their streams.
    first: Hand,
    hands: Vec<(Hand, usize)>,
    /// The first rest point.
    start: Option<Rest>,
}

impl Worker {
    /// Makes a context and streams, and uses each kind of memory once.
    fn begin(order: Order, outcome: &mut Outcome) -> Result<Worker, Fault> {
        let (mut first, hands) = (
            Hand::default(),
            (0..THREADS).map(|_| Hand::default()).collect::<Vec<_>>(),
        );
        let calls = hands
            .iter()
            .chain([&first])
            .map(|hand| hand.in_progress.clone())
            .collect();
        watch(calls, order.patience, outcome.clone());
        let driver = Library::open(c"libcuda.so.1").map_err(|error| not_started(error.to_string()))?;
        let (cuda, ours, device) = (Cuda::find(&driver), Library::of_this_process(), order.device);
        if ours.address(c"vramshim_stats").is_null() {
            return Err(not_started("the library is not loaded in the worker"));
        }
        cuda.init(&mut first, 0, 0)?;
        let mut kinds = Vec::new();
        for kind in Kind::ALL {
            let mut is_there: c_int = 1;
            if let Some(which) = kind.attribute() {
                cuda.attribute(&mut first, 0, &mut is_there, which, device)?;
            }
            if is_there == 0 {
                outcome.left_out.push(kind.call().to_owned());
            } else {
                kinds.push(kind);
            }
        }
        let mut context = 0;
        cuda.retain(&mut first, 0, &mut context, device)?;
        cuda.set_current(&mut first, 0, context)?;
        let mut site = Site {
            cuda,
            ours,
            kinds,
            granule: 0,
            context,
            order,
            live_bytes: 0.into(),
            ranges: Mutex::default(),
            blocks: 0.into(),
            bytes_checked: 0.into(),
            refused: 0.into(),
            is_over: false.into(),
        };
        if site.kinds.contains(&Kind::Mapped) {
            let (mut granule, properties) = (0, Properties::on(site.location()));
            site.cuda.granularity(&mut first, 0, &mut granule, &properties, 0)?;
            site.granule = granule as u64;
        }
        let with_stream = |mut hand: Hand| {
            let mut stream = 0;
            site.cuda.stream(&mut hand, 0, &mut stream, NON_BLOCKING)?;
            Ok::<_, Fault>((hand, stream))
        };
        let hands = hands.into_iter().map(with_stream).collect::<Result<Vec<_>, _>>()?;
        let mut worker = Worker {
            site,
            host: Host::of(std::process::id()),
            hands,
            first,
            start: None,
        };
        let mut blocks = Vec::new();
        for kind in worker.site.kinds.clone() {
            let mut part = worker.first_part(0);
            if let Some(block) = part.take(kind, FIRST_BYTES.min(part.site.largest()))? {
                part.fill(&block)?;
                blocks.push(block);
            }
        }
        worker.clear(blocks)?;
        worker.rest(true, outcome)?;
        // What was loaded meanwhile is no price.
        worker.first.prices = Prices::default();
        Ok(worker)
    }

    /// The work of the first thread, with random numbers of its own.
    fn first_part(&mut self, part: u64) -> Part<'_> {
        Part {
            random: Random::new(self.site.order.seed, &[part]),
            site: &self.site,
            hand: &mut self.first,
            stream: self.hands.first().map_or(0, |(_, stream)| *stream),
        }
    }

    fn work(&mut self, outcome: &mut Outcome) -> Result<(), Fault> {
        let end = Instant::now() + Duration::from_millis(self.site.order.time_ms);
        while outcome.rounds < 2 || Instant::now() < end {
            outcome.rounds += 1;
            let left = self.play(outcome.rounds)?;
            self.rest(false, outcome)?;
            self.clear(left)?;
            self.rest(true, outcome)?;
        }
        let mut prices = std::mem::take(&mut self.first.prices);
        for (hand, stream) in &mut self.hands {
            prices.add(std::mem::take(&mut hand.prices));
            self.site.cuda.end_stream(&mut self.first, 0, *stream)?;
        }
        outcome.prices = prices.list();
        Ok(self
            .site
            .cuda
            .release_context(&mut self.first, 0, self.site.order.device)?)
    }

    /// Plays a round. Returns the blocks that live on.
    fn play(&mut self, round: u64) -> Result<Vec<Block>, Fault> {
        let (site, shared) = (&self.site, Mutex::new(Vec::new()));
        // The first fault is told: what follows may be its consequence.
        let (mut left, fault) = (Vec::new(), Mutex::new(None));
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for ((hand, stream), thread) in self.hands.iter_mut().zip(1..) {
                let random = Random::new(site.order.seed, &[round, thread]);
                let stream = *stream;
                let part = Part {
                    site,
                    hand,
                    random,
                    stream,
                };
                let (shared, fault) = (&shared, &fault);
                threads.push(scope.spawn(move || {
                    part.play(shared).unwrap_or_else(|met| {
                        lock(fault).get_or_insert(met);
                        site.is_over.store(true, Relaxed);
                        Vec::new()
                    })
                }));
            }
            threads
                .into_iter()
                .for_each(|thread| left.extend(thread.join().unwrap_or_default()));
        });
        left.append(&mut lock(&shared));
        let met = lock(&fault).take();
        met.map_or(Ok(left), Err)
    }

    /// Checks and frees blocks, and gives back what library and driver keep.
    fn clear(&mut self, blocks: Vec<Block>) -> Result<(), Fault> {
        // Blocks of other streams may have work in progress.
        self.site.cuda.wait(&mut self.first, 0)?;
        let mut part = self.first_part(blocks.len() as u64);
        for block in blocks {
            part.check(&block)?;
            part.give_back(block)?;
        }
        let (site, first, device) = (&self.site, &mut self.first, self.site.order.device);
        site.cuda.wait(first, 0)?;
        if site.kinds.contains(&Kind::Async) {
            let mut pool = 0;
            site.cuda.default_pool(first, 0, &mut pool, device)?;
            site.cuda.trim_pool(first, 0, pool, 0)?;
        }
        call!(site.ours, vramshim_trim(device => c_int));
        Ok(())
    }

    /// Compares the books, and tells the outcome so far.
    fn rest(&mut self, is_empty: bool, outcome: &mut Outcome) -> Result<(), Fault> {
        let (site, first, host) = (&self.site, &mut self.first, &self.host);
        let terms = Terms {
            pid: std::process::id(),
            bound: site.order.bound,
        };
        let mut look = || site.look(first, host, is_empty);
        let rest = look()?;
        let start = self.start.get_or_insert_with(|| {
            outcome.free_at_idle_bytes = Some(rest.free);
            outcome.context_bytes = terms.of_worker(&rest.nvml);
            rest.clone()
        });
        compare_ledger(start, &rest)?;
        if outcome.rounds > 0 {
            let mut next = Some(rest);
            let why = settle(TRIES, || {
                let rest = next.take().map_or_else(&mut look, Ok)?;
                Ok((terms.device(start, &rest), terms.of_others(&rest.nvml)))
            })?;
            outcome.compared += u64::from(why.is_none());
            outcome.not_compared += u64::from(why.is_some());
            outcome.why_not_compared.extend(why);
        }
        outcome.calls = self.first.calls + self.hands.iter().map(|(hand, _)| hand.calls).sum::<u64>();
        outcome.blocks = site.blocks.load(Relaxed);
        outcome.bytes_checked = site.bytes_checked.load(Relaxed);
        outcome.refused = site.refused.load(Relaxed);
        tell(outcome);
        Ok(())
    }
}
