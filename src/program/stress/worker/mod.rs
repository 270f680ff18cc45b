//! The worker: a process under the library that makes the driver work.
//!
//! A turn has rounds. Within a round threads work (`rounds`); then they rest, and the books are compared while blocks are
//! live, and again when all were freed. `cuda` has the calls, and `device` the threads, their blocks and what they share.

mod cuda;
mod device;
mod kind;
mod rounds;

use std::ffi::c_int;
use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::sync::lock;

use self::cuda::{Cuda, Site, Thread};
use self::device::Block;
use self::kind::Kind;
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
    let outcome = Arc::new(Mutex::new(Outcome {
        strategy,
        ..Outcome::default()
    }));
    let done = Worker::begin(order, outcome.clone()).and_then(|mut worker| worker.work());
    let mut outcome = lock(&outcome);
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

/// Ends the worker if a call takes longer than the order's `patience`.
fn watch(site: Arc<Site>) {
    let patience = site.order.patience;
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(LOOK_EVERY);
            let mut calls = site.in_progress.iter().filter_map(|call| *lock(call));
            if let Some((name, bytes, _)) = calls.find(|(.., begun)| begun.elapsed() >= patience) {
                let words = format!("{name} did not return within {}", duration(patience.as_nanos() as u64));
                let mut outcome = lock(&site.outcome);
                outcome.fault = Some(Fault::new(FaultKind::Hangs, words).in_call(name, bytes));
                tell(&outcome);
                // SAFETY: the call ends the process, and no destructor waits for the driver.
                unsafe { libc::_exit(1) };
            }
        }
    });
}

struct Worker {
    site: Arc<Site>,
    host: Host,
    threads: Vec<Thread>,
    /// The first rest point.
    start: Option<Rest>,
}

impl Worker {
    /// Makes a context and streams, and uses each kind of memory once.
    fn begin(order: Order, outcome: Arc<Mutex<Outcome>>) -> Result<Worker, Fault> {
        let driver = Library::open(c"libcuda.so.1").map_err(|error| not_started(error.to_string()))?;
        let (ours, device) = (Library::of_this_process(), order.device);
        if ours.address(c"vramshim_stats").is_null() {
            return Err(not_started("the library is not loaded in the worker"));
        }
        let site = Arc::new(Site {
            cuda: Cuda::find(&driver),
            ours,
            order,
            outcome,
            prices: Mutex::default(),
            in_progress: Default::default(),
            live_bytes: 0.into(),
            ranges: Mutex::default(),
            is_over: false.into(),
        });
        watch(site.clone());
        let mut first = Thread {
            site: site.clone(),
            number: 0,
            stream: 0,
            random: fastrand::Rng::new(),
            kinds: Vec::new(),
            granule: 0,
            context: 0,
        };
        first.init(0, 0)?;
        for kind in Kind::ALL {
            let mut is_there: c_int = 1;
            if let Some(which) = kind.attribute() {
                first.attribute(0, &mut is_there, which, device)?;
            }
            if is_there == 0 {
                lock(&site.outcome).left_out.push(kind.call().to_owned());
            } else {
                first.kinds.push(kind);
            }
        }
        let (mut context, mut granule) = (0, 0);
        first.retain(0, &mut context, device)?;
        first.set_current(0, context)?;
        first.context = context;
        if first.kinds.contains(&Kind::Mapped) {
            first.granularity(0, &mut granule, &Properties::on(site.location()), 0)?;
            first.granule = granule as u64;
        }
        let thread = |number| {
            let mut stream = 0;
            first.create_stream(0, &mut stream, NON_BLOCKING)?;
            Ok(Thread {
                number,
                stream,
                ..first.clone()
            })
        };
        let mut worker = Worker {
            host: Host::of(std::process::id()),
            threads: (0..THREADS).map(thread).collect::<Result<_, Fault>>()?,
            site,
            start: None,
        };
        let mut blocks = Vec::new();
        for kind in first.kinds {
            let first = &worker.threads[0];
            if let Some(block) = first.take(kind, FIRST_BYTES.min(first.site.largest()))? {
                first.fill(&block)?;
                blocks.push(block);
            }
        }
        worker.clear(blocks)?;
        worker.rest(true)?;
        // What was loaded meanwhile is no price.
        *lock(&worker.site.prices) = Prices::default();
        Ok(worker)
    }

    fn work(&mut self) -> Result<(), Fault> {
        let end = Instant::now() + Duration::from_millis(self.site.order.time_ms);
        let mut rounds = 0;
        while rounds < 2 || Instant::now() < end {
            rounds += 1;
            lock(&self.site.outcome).rounds = rounds;
            let left = self.play(rounds)?;
            self.rest(false)?;
            self.clear(left)?;
            self.rest(true)?;
        }
        lock(&self.site.outcome).prices = lock(&self.site.prices).list();
        for thread in &self.threads {
            thread.end_stream(0, thread.stream)?;
        }
        self.threads[0].release_context(0, self.site.order.device)
    }

    /// Plays a round. Returns the blocks that live on.
    fn play(&mut self, round: u64) -> Result<Vec<Block>, Fault> {
        // The first fault is told: what follows may be its consequence.
        let (shared, fault, mut left) = (Mutex::new(Vec::new()), Mutex::new(None), Vec::new());
        let play = |thread: &mut Thread| {
            thread.play(round, &shared).unwrap_or_else(|met| {
                lock(&fault).get_or_insert(met);
                thread.site.is_over.store(true, Relaxed);
                Vec::new()
            })
        };
        std::thread::scope(|scope| {
            let start = |thread| scope.spawn(|| play(thread));
            let threads: Vec<_> = self.threads.iter_mut().map(start).collect();
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
        let (first, device) = (&mut self.threads[0], self.site.order.device);
        // Blocks of other streams may have work in progress.
        first.wait(0)?;
        for block in blocks {
            first.check(&block)?;
            first.give_back(block)?;
        }
        first.wait(0)?;
        if first.kinds.contains(&Kind::Async) {
            let mut pool = 0;
            first.default_pool(0, &mut pool, device)?;
            first.trim_pool(0, pool, 0)?;
        }
        call!(self.site.ours, vramshim_trim(device => c_int));
        Ok(())
    }

    /// Compares the books, and tells the outcome so far.
    fn rest(&mut self, is_empty: bool) -> Result<(), Fault> {
        let terms = Terms {
            pid: std::process::id(),
            bound: self.site.order.bound,
        };
        let look = || self.threads[0].look(&self.host, is_empty);
        let rest = look()?;
        let start = self.start.get_or_insert_with(|| {
            let mut outcome = lock(&self.site.outcome);
            outcome.free_at_idle_bytes = Some(rest.free);
            outcome.context_bytes = terms.of_worker(&rest.nvml);
            rest.clone()
        });
        compare_ledger(start, &rest)?;
        let is_of_round = lock(&self.site.outcome).rounds > 0;
        if is_of_round {
            let mut next = Some(rest);
            let why = settle(TRIES, || {
                let rest = next.take().map_or_else(look, Ok)?;
                Ok((terms.device(start, &rest), terms.of_others(&rest.nvml)))
            })?;
            let mut outcome = lock(&self.site.outcome);
            outcome.compared += u64::from(why.is_none());
            outcome.not_compared += u64::from(why.is_some());
            outcome.why_not_compared.extend(why);
        }
        tell(&lock(&self.site.outcome));
        Ok(())
    }
}
