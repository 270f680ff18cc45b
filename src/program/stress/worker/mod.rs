//! The worker: a process under the library that makes the driver work.
//!
//! A turn has rounds, in turn a growing tensor and a random mix. Within a round the threads work; then they rest, and the
//! books are compared while blocks are live, and again when all were freed. `cuda` has the calls, `kind` the kinds of
//! memory, `memory` what is done with a block, `pattern` its bytes, and `site` what the threads share.

mod cuda;
mod growing;
mod kind;
mod memory;
mod mix;
mod pattern;
mod random;
mod site;

use std::ffi::{CStr, c_int};
use std::io::{BufRead, Write};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use self::cuda::{Cuda, Hand};
use self::kind::Kind;
use self::memory::Block;
use self::mix::Part;
use self::random::Random;
use self::site::Site;
use super::fault::{Fault, Kind as FaultKind};
use super::message::{AGAIN, Done, GO_ON, Line, Order, Phase, Ready};
use super::prices::Prices;
use crate::driver::{Library, Properties, call};
use crate::failure::Failure;

/// Does what the order says, and prints lines of `message`.
pub fn run(order: &str) -> Result<(), Failure> {
    let order: Order = serde_json::from_str(order).map_err(Failure::refused)?;
    let done = match Worker::begin(order) {
        Ok(mut worker) => worker.work(),
        Err(fault) => Err(fault),
    };
    match done {
        Ok(done) => tell(&Line::Done(done)),
        Err(fault) => {
            tell(&Line::Fault(fault))?;
            // The end of the process frees all memory. A destructor could hang in a driver that has failed.
            std::process::exit(1)
        }
    }
}

fn tell(line: &Line) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let text = serde_json::to_string(line).map_err(Failure::failed)?;
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(Failure::failed)
}

/// Prints a line and waits for the answer.
fn ask(line: &Line) -> String {
    let mut answer = String::new();
    if tell(line).is_err() || std::io::stdin().lock().read_line(&mut answer).unwrap_or(0) == 0 {
        // Nobody waits for this worker any more.
        std::process::exit(1);
    }
    answer.trim_end().to_owned()
}

struct Worker {
    site: Site,
    /// The hand of the first thread, and those of the threads of a mix.
    first: Hand,
    hands: Vec<Hand>,
    streams: Vec<usize>,
}

/// `CU_STREAM_NON_BLOCKING` (cuda.h)
const NON_BLOCKING: u32 = 1;
/// What each kind of memory is tried with before the first comparison, so that what a driver loads at the first use is
/// there already.
const FIRST_BYTES: u64 = 4 << 20;

fn not_started(words: String) -> Fault {
    Fault::new(FaultKind::NotStarted, words)
}

impl Worker {
    /// Makes a context and streams, and uses each kind of memory once.
    fn begin(order: Order) -> Result<Worker, Fault> {
        let hand =
            |thread| Hand::new(&order, thread).map_err(|error| not_started(format!("its file of calls: {error}")));
        let (first, hands) = (hand(0)?, (1..=order.threads).map(hand).collect::<Result<Vec<_>, _>>()?);
        let driver = Library::open(c"libcuda.so.1").map_err(not_started)?;
        let ours = Library::of_this_process();
        if ours.address(c"vramshim_stats").is_null() {
            return Err(not_started("the library is not loaded in the worker".to_owned()));
        }
        let mut worker = Worker {
            site: Site::new(Cuda::find(&driver), ours, order),
            streams: Vec::new(),
            hands,
            first,
        };
        let Worker { site, first, .. } = &mut worker;
        let device = site.device();
        site.cuda.init(first, 0, 0)?;
        let mut ready = Ready::default();
        site.cuda.version(first, 0, &mut ready.cuda_version)?;
        ready.driver = version_of_driver();
        for kind in Kind::ALL {
            let mut is_there: c_int = 1;
            if let Some(which) = kind.attribute() {
                site.cuda.attribute(first, 0, &mut is_there, which, device)?;
            }
            match is_there {
                0 => ready.left_out.push(kind.call().to_owned()),
                _ => site.kinds.push(kind),
            }
        }
        ask(&Line::Ready(ready));
        let mut context = 0;
        site.cuda.retain(first, 0, &mut context, device)?;
        site.cuda.set_current(first, 0, context)?;
        site.context = context;
        if site.kinds.contains(&Kind::Mapped) {
            let properties = Properties {
                kind: 1,
                location: site.location(),
                ..Properties::default()
            };
            let mut granule = 0;
            site.cuda.granularity(first, 0, &mut granule, &properties, 0)?;
            site.granule = granule as u64;
        }
        for hand in &mut worker.hands {
            let mut stream = 0;
            worker.site.cuda.stream(hand, 0, &mut stream, NON_BLOCKING)?;
            worker.streams.push(stream);
        }
        worker.use_each_kind()?;
        worker.clear(Vec::new())?;
        worker.rest(0, Phase::Start)?;
        // What was loaded meanwhile is no price.
        worker.first.prices = Prices::default();
        Ok(worker)
    }

    fn use_each_kind(&mut self) -> Result<(), Fault> {
        let Worker {
            site, first, streams, ..
        } = self;
        let stream = streams.first().copied().unwrap_or(0);
        for kind in site.kinds.clone() {
            let random = &mut Random::of(site.order.seed, &[]);
            let Some(block) = site.take(first, kind, FIRST_BYTES.min(site.largest()), site.new_word(), stream)? else {
                continue;
            };
            site.fill(first, &block, 0, stream)?;
            site.check(first, &block, random, stream)?;
            site.give_back(first, block, stream)?;
        }
        Ok(())
    }

    fn work(&mut self) -> Result<Done, Fault> {
        let end = Instant::now() + Duration::from_millis(self.site.order.time_ms);
        let mut round = 0;
        // At least one growing tensor and one mix.
        while round < 2 || Instant::now() < end {
            round += 1;
            let left = match round % 2 {
                1 => self.grow(round)?,
                _ => self.mix(round)?,
            };
            self.rest(round, Phase::Live)?;
            self.clear(left)?;
            self.rest(round, Phase::Empty)?;
        }
        let calls = self.calls();
        let counts = self.site.look(&mut self.first, round, Phase::Empty, calls)?.counts;
        let mut prices = std::mem::take(&mut self.first.prices);
        for hand in &mut self.hands {
            prices.add(std::mem::take(&mut hand.prices));
        }
        for stream in std::mem::take(&mut self.streams) {
            self.site.cuda.end_stream(&mut self.first, 0, stream)?;
        }
        self.site.cuda.release_context(&mut self.first, 0, self.site.device())?;
        Ok(Done {
            counts,
            prices: prices.list(),
        })
    }

    fn grow(&mut self, round: u64) -> Result<Vec<Block>, Fault> {
        let mut random = Random::of(self.site.order.seed, &[round]);
        let (mut left, stream) = (Vec::new(), self.streams.first().copied().unwrap_or(0));
        growing::play(&self.site, &mut self.first, &mut random, stream, &mut left)?;
        Ok(left)
    }

    fn mix(&mut self, round: u64) -> Result<Vec<Block>, Fault> {
        let (site, shared, fault) = (&self.site, Mutex::new(Vec::new()), Mutex::new(None));
        let mut left = Vec::new();
        std::thread::scope(|scope| {
            let hands = self.hands.iter_mut().zip(&self.streams).zip(1u64..);
            let threads: Vec<_> = hands
                .map(|((hand, &stream), thread)| {
                    let random = Random::of(site.order.seed, &[round, thread]);
                    let part = Part {
                        site,
                        random,
                        stream,
                        shared: &shared,
                    };
                    let fault = &fault;
                    scope.spawn(move || {
                        part.play(hand).unwrap_or_else(|met| {
                            // The first one is told: what follows may be its consequence.
                            if let Ok(mut fault) = fault.lock() {
                                fault.get_or_insert(met);
                            }
                            site.is_over.store(true, Relaxed);
                            Vec::new()
                        })
                    })
                })
                .collect();
            for thread in threads {
                left.extend(thread.join().unwrap_or_default());
            }
        });
        if let Some(fault) = fault.into_inner().ok().flatten() {
            return Err(fault);
        }
        left.extend(shared.into_inner().unwrap_or_default());
        Ok(left)
    }

    /// Checks and frees blocks, and gives back what library and driver keep.
    fn clear(&mut self, blocks: Vec<Block>) -> Result<(), Fault> {
        let Worker {
            site, first, streams, ..
        } = self;
        let stream = streams.first().copied().unwrap_or(0);
        let random = &mut Random::of(site.order.seed, &[blocks.len() as u64]);
        // Blocks of other streams may have work in progress.
        site.cuda.wait(first, 0)?;
        for block in blocks {
            site.check(first, &block, random, stream)?;
            site.give_back(first, block, stream)?;
        }
        site.cuda.wait(first, 0)?;
        if site.kinds.contains(&Kind::Async) {
            let mut pool = 0;
            site.cuda.default_pool(first, 0, &mut pool, site.device())?;
            site.cuda.trim_pool(first, 0, pool, 0)?;
        }
        site.trim();
        Ok(())
    }

    fn calls(&self) -> u64 {
        self.first.calls + self.hands.iter().map(|hand| hand.calls).sum::<u64>()
    }

    fn rest(&mut self, round: u64, phase: Phase) -> Result<(), Fault> {
        loop {
            let calls = self.calls();
            let rest = self.site.look(&mut self.first, round, phase, calls)?;
            match ask(&Line::Rest(rest)).as_str() {
                GO_ON => return Ok(()),
                AGAIN => {}
                _ => std::process::exit(1),
            }
        }
    }
}

/// The version of the driver, by NVML.
fn version_of_driver() -> Option<String> {
    let nvml = Library::open(c"libnvidia-ml.so.1").ok()?;
    if call!(nvml, nvmlInit_v2()) != 0 {
        return None;
    }
    /// `NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE` (nvml.h)
    const ROOM: usize = 80;
    let mut text = [0u8; ROOM];
    let result = call!(nvml, nvmlSystemGetDriverVersion(text.as_mut_ptr() => *mut u8, ROOM as u32 => u32));
    let version = (result == 0)
        .then(|| CStr::from_bytes_until_nul(&text).ok())
        .flatten()?;
    Some(version.to_string_lossy().into_owned())
}
