//! The worker: a process under the library that makes the driver work.
//!
//! A turn has rounds. Within a round threads take blocks of all kinds and sizes, write and check them, and free them young,
//! old or at random, also those of other threads. Then they rest, and the books are compared while blocks are live, and
//! again when all were freed. `cuda` has the calls, and `device` the blocks and what the books say of them.

mod cuda;
mod device;

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use base::sync::lock;

use self::device::{Block, WHOLE_BYTES};
use super::compare::{Rest, compare_device, compare_ledger, settle};
use super::outcome::{Fault, FaultKind, Kind, Order, Outcome};
use crate::analysis::slack::PAGE;
use crate::driver::{Library, call};
use crate::escaped;
use crate::failure::Failure;
use crate::render::format::duration;

const THREADS: usize = 4;
/// Steps of a thread in a round: each takes or frees a block.
const STEPS: u64 = 240;
/// One block in so many is given to whichever thread takes it next.
const HANDED_OVER: u64 = 8;
/// How often figures that differ are read before they are told.
const TRIES: usize = 4;
/// The time between two looks for calls that take too long.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// `CU_STREAM_NON_BLOCKING` (cuda.h)
const NON_BLOCKING: u32 = 1;

/// What the threads of a worker share, until the end of the process.
struct Site {
    order: Order,
    books: Mutex<Books>,
}

/// What the worker did, and what it holds.
#[derive(Default)]
struct Books {
    /// After a fault all threads stop.
    outcome: Outcome,
    /// The call of each thread: its name, and when it began.
    in_progress: [Option<(&'static str, Instant)>; THREADS],
    live_bytes: u64,
    /// Begin and end of each live block.
    ranges: BTreeMap<u64, (u64, Kind)>,
}

/// A thread of a round, which makes all its calls. The first one makes those between the rounds, too.
struct Thread {
    site: &'static Site,
    number: usize,
    /// The device's primary context.
    context: usize,
    stream: usize,
    random: fastrand::Rng,
    /// Where blocks are read to. It lives on, because copies that began may still write when the driver has failed.
    buffer: &'static mut [u32],
}

/// Does what the order says, and prints its outcome.
pub fn run(order: &str) -> Result<(), Failure> {
    let order: Order = serde_json::from_str(order).map_err(Failure::refused)?;
    let mut books = Books::default();
    let missing = Kind::ALL.into_iter().filter(|kind| !order.kinds.contains(kind));
    books.outcome.left_out = missing.map(|kind| kind.call().to_owned()).collect();
    let books = books.into();
    let site: &Site = Box::leak(Box::new(Site { order, books }));
    // The starter asks NVML first.
    site.tell();
    drop(std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    std::thread::spawn(|| site.watch());
    // The end of the process frees all memory. A destructor could hang in a driver that has failed.
    work(site).unwrap_or_else(|fault| site.end_by(fault));
    site.tell();
    Ok(())
}

/// Makes a context and streams, uses each kind of memory once, and plays rounds while there is time.
fn work(site: &'static Site) -> Result<(), Fault> {
    let thread = |number| Thread {
        site,
        number,
        context: 0,
        stream: 0,
        random: fastrand::Rng::new(),
        buffer: vec![0; WHOLE_BYTES / 4].leak(),
    };
    let mut threads: [Thread; THREADS] = std::array::from_fn(thread);
    threads[0].init(0, 0)?;
    for thread in &mut threads {
        let (mut context, mut stream) = (0, 0);
        thread.retain(0, &mut context, site.order.device)?;
        thread.set_current(0, context)?;
        thread.create_stream(0, &mut stream, NON_BLOCKING)?;
        (thread.context, thread.stream) = (context, stream);
    }
    let mut blocks = Vec::new();
    for &kind in &site.order.kinds {
        // What a driver loads at the first use is there before the first comparison.
        if let Some(block) = threads[0].take(kind, PAGE)? {
            threads[0].fill(&block)?;
            blocks.push(block);
        }
    }
    threads[0].clear(blocks)?;
    let start = threads[0].look(true)?;
    compare_ledger(&start, &start)?;
    lock(&site.books).outcome.free_at_idle_bytes = Some(start.free);
    let end = Instant::now() + Duration::from_millis(site.order.time_ms);
    let mut rounds = 0;
    while rounds < 2 || Instant::now() < end {
        rounds += 1;
        lock(&site.books).outcome.rounds = rounds;
        let left = play(&mut threads, rounds)?;
        threads[0].rest(&start, false)?;
        threads[0].clear(left)?;
        threads[0].rest(&start, true)?;
        site.tell();
    }
    lock(&site.books).outcome.is_done = true;
    Ok(())
}

/// Plays a round. Returns the blocks that live on.
fn play(threads: &mut [Thread], round: u64) -> Result<Vec<Block>, Fault> {
    let (shared, left, site) = (Mutex::default(), Mutex::new(Vec::new()), threads[0].site);
    std::thread::scope(|scope| {
        for thread in threads {
            scope.spawn(|| match thread.play(round, &shared) {
                Ok(blocks) => lock(&left).extend(blocks),
                Err(fault) => drop(lock(&site.books).outcome.fault.get_or_insert(fault)),
            });
        }
    });
    let [mut left, shared] = [left, shared].map(|blocks| blocks.into_inner().unwrap_or_default());
    left.extend(shared);
    let fault = lock(&site.books).outcome.fault.take();
    fault.map_or(Ok(left), Err)
}

impl Site {
    /// Prints the outcome so far. If no process reads it, the worker ends.
    fn tell(&self) {
        if escaped::line(&mut std::io::stdout().lock(), &lock(&self.books).outcome).is_err() {
            std::process::exit(1);
        }
    }

    /// Tells the first fault: what follows may be its consequence.
    fn end_by(&self, fault: Fault) -> ! {
        lock(&self.books).outcome.fault.get_or_insert(fault);
        self.tell();
        // SAFETY: the call ends the process, and no destructor waits for the driver.
        unsafe { libc::_exit(1) };
    }

    /// Ends the worker if a call takes longer than the order's `patience`.
    fn watch(&self) {
        let patience = self.order.patience;
        loop {
            std::thread::sleep(LOOK_EVERY);
            let calls = lock(&self.books).in_progress;
            let late = calls
                .into_iter()
                .flatten()
                .find(|(_, begun)| begun.elapsed() >= patience);
            if let Some((name, _)) = late {
                let words = format!("{name} did not return within {}", duration(patience.as_nanos() as u64));
                self.end_by(Fault::new(FaultKind::Hangs, words).in_call(name));
            }
        }
    }
}

impl Thread {
    /// Plays the round, and returns the blocks that live on. `shared` has blocks without an owner; the work
    /// of each one is done.
    fn play(&mut self, round: u64, shared: &Mutex<Vec<Block>>) -> Result<Vec<Block>, Fault> {
        // The same numbers again for this seed, round and thread.
        let parts = (round << 8 | self.number as u64) << 32;
        self.random = fastrand::Rng::with_seed(self.site.order.seed ^ parts);
        self.set_current(0, self.context)?;
        let (site, mut blocks): (_, Vec<Block>) = (self.site, Vec::new());
        for _ in 0..STEPS {
            if lock(&site.books).outcome.fault.is_some() {
                break;
            }
            let is_handed_over = self.random.u64(..HANDED_OVER) == 0;
            // Each doubling of the size is equally likely.
            let (most, kinds) = (site.order.memory / 8, &site.order.kinds);
            let least = 1 << self.random.u32(..=most.ilog2());
            let bytes = self.random.u64(least..2 * least).min(most);
            // Half of the blocks are of the first kind: linear.
            let kind = kinds[self.random.usize(..2 * kinds.len()).saturating_sub(kinds.len())];
            // Threads take more than they free until the worker holds what it may.
            if self.random.u8(..8) < 5
                && let Some(block) = self.take(kind, bytes)?
            {
                self.fill(&block)?;
                if is_handed_over {
                    self.wait_stream(0, self.stream)?;
                }
                let owner = if is_handed_over {
                    &mut *lock(shared)
                } else {
                    &mut blocks
                };
                owner.push(block);
                continue;
            }
            let block = match (lock(shared).pop_if(|_| is_handed_over), blocks.len()) {
                (Some(block), _) => block,
                (None, 0) => continue,
                (None, count) => blocks.remove(match self.random.u8(..3) {
                    0 => count - 1,
                    1 => 0,
                    _ => self.random.usize(..count),
                }),
            };
            // A block that is not checked may have work in progress when it is freed.
            if self.random.u8(..4) < 3 {
                self.check(&block)?;
            }
            self.give_back(block)?;
        }
        Ok(blocks)
    }

    /// Checks and frees blocks, and gives back what library and driver keep.
    fn clear(&mut self, blocks: Vec<Block>) -> Result<(), Fault> {
        let order = &self.site.order;
        // Blocks of other streams may have work in progress.
        self.wait(0)?;
        for block in blocks {
            self.check(&block)?;
            self.give_back(block)?;
        }
        self.wait(0)?;
        if order.kinds.contains(&Kind::Async) {
            let mut pool = 0;
            self.default_pool(0, &mut pool, order.device)?;
            self.trim_pool(0, pool, 0)?;
        }
        call!(Library::of_this_process(), vramshim_trim(order.device => c_int));
        Ok(())
    }

    fn rest(&self, start: &Rest, is_empty: bool) -> Result<(), Fault> {
        let why = settle(TRIES, || {
            let rest = self.look(is_empty)?;
            compare_ledger(start, &rest)?;
            Ok((compare_device(self.site.order.bound, start, &rest), rest.nvml))
        })?;
        let outcome = &mut lock(&self.site.books).outcome;
        outcome.compared += u64::from(why.is_none());
        outcome.not_compared += u64::from(why.is_some());
        outcome.why_not_compared.extend(why);
        Ok(())
    }
}
