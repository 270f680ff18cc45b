//! Generates sequences of requests. The same seed gives the same sequence on every machine.
//!
//! The sequences contain what recorded jobs do not: random sizes, as in RMM's random benchmarks, and orders of requests
//! that are hard for an allocator on purpose.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

pub use crate::{GIB, MIB};

pub const KIB: u64 = 1 << 10;

/// Upper bound of the bytes that a sequence holds at once. It is half of a large device, so that fragmentation shows as
/// reserved memory and not as refused requests.
pub const LIVE_LIMIT: u64 = 40 * GIB;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Allocate,
    Free,
}

/// An allocation and its free have the same `id` and the same size; other events have other ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub action: Action,
    pub id: u64,
    pub size: u64,
}

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included. The small bias of the remainder does not matter here.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(0, 99) < percent
    }

    /// A number from `low` up to below `high`: the power of two is uniform, and so is the number within it. Uses
    /// integers only, because floating-point powers differ between machines.
    pub fn scaled(&mut self, low: u64, high: u64) -> u64 {
        let bits = self.between(u64::from(low.ilog2()), u64::from(high.ilog2()) - 1);
        (1 << bits) + self.between(0, (1 << bits) - 1)
    }
}

#[derive(Clone, Copy)]
pub struct Live {
    id: u64,
    size: u64,
}

/// A sequence that is being generated.
pub struct Tape {
    pub random: Random,
    events: Vec<Event>,
    next: u64,
    live: u64,
}

impl Tape {
    pub fn new(seed: u64) -> Tape {
        Tape {
            random: Random::new(seed),
            events: Vec::new(),
            next: 0,
            live: 0,
        }
    }

    pub fn allocate(&mut self, size: u64) -> Live {
        self.next += 1;
        self.live += size;
        assert!(self.live <= LIVE_LIMIT, "a sequence holds {} bytes", self.live);
        let block = Live { id: self.next, size };
        self.push(Action::Allocate, block);
        block
    }

    pub fn free(&mut self, block: Live) {
        self.live -= block.size;
        self.push(Action::Free, block);
    }

    fn push(&mut self, action: Action, Live { id, size }: Live) {
        self.events.push(Event { action, id, size });
    }

    pub fn free_all(&mut self, blocks: impl IntoIterator<Item = Live>) {
        blocks.into_iter().for_each(|block| self.free(block));
    }

    /// Frees a random one of `blocks` and removes it from the list.
    pub fn free_any(&mut self, blocks: &mut Vec<Live>) {
        let index = self.random.between(0, blocks.len() as u64 - 1);
        let block = blocks.swap_remove(index as usize);
        self.free(block);
    }

    pub fn events(&self) -> usize {
        self.events.len()
    }

    pub fn finish(self) -> Vec<Event> {
        self.events
    }
}

/// The same as RMM's `random_allocations` benchmark: sizes are uniform up to `largest`, and a coin decides between an
/// allocation and a free of a random block. No allocation passes the limit, and everything is freed at the end.
/// `events` is even.
pub fn rmm(seed: u64, largest: u64, events: usize) -> Vec<Event> {
    let mut tape = Tape::new(seed);
    let mut blocks = Vec::new();
    let mut left = events / 2;
    while left > 0 {
        let size = tape.random.between(1, largest);
        if blocks.is_empty() || (tape.random.chance(50) && tape.live + size <= LIVE_LIMIT) {
            blocks.push(tape.allocate(size));
            left -= 1;
        } else {
            tape.free_any(&mut blocks);
        }
    }
    tape.free_all(blocks);
    tape.finish()
}

/// Keeps a device full: allocates whenever there is room. Hundreds of blocks are live at any time, of every order of
/// magnitude from 256 bytes to `largest`. The sequence `rmm` seldom fills a device with small blocks.
pub fn full(seed: u64, largest: u64, events: usize) -> Vec<Event> {
    let mut tape = Tape::new(seed);
    let limit = (64 * largest).min(LIVE_LIMIT);
    let mut blocks = Vec::new();
    while tape.events() + blocks.len() < events {
        let size = tape.random.scaled(256, largest);
        while tape.live + size > limit {
            tape.free_any(&mut blocks);
        }
        blocks.push(tape.allocate(size));
    }
    tape.free_all(blocks);
    tape.finish()
}

/// Thousands of tiny long-lived blocks, with a few large short-lived blocks between them.
pub fn tiny(seed: u64) -> Vec<Event> {
    let mut tape = Tape::new(seed);
    let (mut small, mut big) = (Vec::new(), Vec::new());
    for step in 0..12_000 {
        let size = tape.random.scaled(64, 64 * KIB);
        small.push(tape.allocate(size));
        if small.len() > 4_000 || tape.random.chance(20) {
            tape.free_any(&mut small);
        }
        if step % 300 == 0 {
            let size = tape.random.between(64 * MIB, 512 * MIB);
            big.push(tape.allocate(size));
            if big.len() > 4 {
                tape.free_any(&mut big);
            }
        }
    }
    tape.free_all(big);
    tape.free_all(small);
    tape.finish()
}

/// Serving in bursts: the weights stay. Each request has a prompt of random length and a cache for each layer, which is
/// copied into a longer one every few tokens. Requests end at random times.
pub fn inference_bursts(seed: u64) -> Vec<Event> {
    const LAYERS: usize = 16;
    const PER_TOKEN: u64 = 8 * KIB;
    struct Running {
        length: u64,
        left: u64,
        cache: Vec<Live>,
    }
    let mut tape = Tape::new(seed);
    let weights: Vec<Live> = (0..LAYERS * 4).map(|_| tape.allocate(48 * MIB)).collect();
    for _ in 0..6 {
        let mut running: Vec<Running> = Vec::new();
        for _ in 0..tape.random.between(2, 12) {
            let length = tape.random.scaled(32, 4096);
            let prompt = tape.allocate(length * 16 * KIB);
            let cache = (0..LAYERS)
                .map(|_| {
                    let scores = tape.allocate(length * 32 * KIB);
                    let cache = tape.allocate(length * PER_TOKEN);
                    tape.free(scores);
                    cache
                })
                .collect();
            tape.free(prompt);
            let left = tape.random.between(1, 24);
            running.push(Running { length, left, cache });
        }
        while !running.is_empty() {
            let mut index = 0;
            while index < running.len() {
                let request = &mut running[index];
                request.length += 8;
                request.left -= 1;
                for old in &mut request.cache {
                    let hidden = tape.allocate(16 * KIB);
                    let longer = tape.allocate(request.length * PER_TOKEN);
                    tape.free(std::mem::replace(old, longer));
                    tape.free(hidden);
                }
                if request.left == 0 {
                    tape.free_all(running.swap_remove(index).cache);
                } else {
                    index += 1;
                }
            }
        }
    }
    tape.free_all(weights);
    tape.finish()
}

/// Loads a model, runs it, drops it, and loads the next one. Most models are larger than the one before, so the next
/// model does not fit into the memory that the last one freed.
pub fn model_switching(seed: u64) -> Vec<Event> {
    let mut tape = Tape::new(seed);
    for turn in 0..24 {
        let width = 512 + 64 * turn + 256 * tape.random.between(0, 3);
        let layers = tape.random.between(8, 32);
        let shapes = [3, 1, 4, 4].map(|times| times * width * width * 2);
        let mut weights = vec![tape.allocate(32_000 * width * 2)];
        for _ in 0..layers {
            for shape in shapes {
                weights.push(tape.allocate(shape));
                weights.push(tape.allocate(width * 2));
            }
        }
        for _ in 0..tape.random.between(2, 8) {
            let tokens = tape.random.between(1, 16) * tape.random.between(16, 1024);
            let mut hidden = tape.allocate(tokens * width * 2);
            for _ in 0..layers {
                let wide = tape.allocate(tokens * width * 8);
                let next = tape.allocate(tokens * width * 2);
                tape.free(wide);
                tape.free(std::mem::replace(&mut hidden, next));
            }
            tape.free(hidden);
        }
        tape.free_all(weights);
    }
    tape.finish()
}

/// Training over sequences of variable length. The forward pass allocates activations, and the backward pass frees them
/// in reverse order, each after its gradients were allocated. The first step allocates the optimiser's state.
pub fn variable_lengths(seed: u64) -> Vec<Event> {
    const LAYERS: usize = 24;
    const WIDTH: u64 = 1024;
    let mut tape = Tape::new(seed);
    let mut kept: Vec<Live> = (0..LAYERS).map(|_| tape.allocate(12 * WIDTH * WIDTH * 4)).collect();
    for step in 0..60 {
        let tokens = 8 * tape.random.between(32, 1024);
        let mut activations = Vec::new();
        for _ in 0..LAYERS {
            for times in [1, 3, 1, 4, 4, 1] {
                let mask = tape.allocate(tokens * WIDTH);
                activations.push(tape.allocate(tokens * WIDTH * 2 * times));
                if times == 1 {
                    activations.push(mask);
                } else {
                    tape.free(mask);
                }
            }
        }
        let logits = tape.allocate(tokens * 32_000 * 2);
        let mut gradient = tape.allocate(tokens * 32_000 * 2);
        tape.free(logits);
        let mut gradients = Vec::new();
        while let Some(activation) = activations.pop() {
            let next = tape.allocate(activation.size);
            tape.free(std::mem::replace(&mut gradient, next));
            tape.free(activation);
            if activations.len() % 9 == 0 {
                gradients.push(tape.allocate(12 * WIDTH * WIDTH * 4));
            }
        }
        tape.free(gradient);
        if step == 0 {
            kept.extend((0..2 * LAYERS).map(|_| tape.allocate(12 * WIDTH * WIDTH * 4)));
        }
        tape.free_all(gradients);
    }
    tape.free_all(kept);
    tape.finish()
}

/// Allocates blocks of one size, frees every second one, asks for slightly larger blocks, and repeats. No freed block
/// is large enough.
pub fn comb(seed: u64) -> Vec<Event> {
    let mut tape = Tape::new(seed);
    let mut blocks = Vec::new();
    for round in 0..12 {
        let size = MIB + round * 700 * KIB + tape.random.between(0, 64 * KIB);
        blocks.extend((0..600).map(|_| tape.allocate(size)));
        let (kept, freed): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
        tape.free_all(freed.into_iter().map(|(_, block)| block));
        blocks = kept.into_iter().map(|(_, block)| block).collect();
    }
    tape.free_all(blocks);
    tape.finish()
}

/// Buffers that grow by half. Each buffer is copied into a larger one, so both are live for a short time.
pub fn growing(seed: u64) -> Vec<Event> {
    let mut tape = Tape::new(seed);
    let mut buffers: Vec<Live> = (0..64).map(|_| tape.allocate(64 * KIB)).collect();
    for _ in 0..6_000 {
        let index = tape.random.between(0, buffers.len() as u64 - 1) as usize;
        let old = buffers[index];
        let grown = old.size + old.size / 2;
        let size = if old.size > 256 * MIB { 64 * KIB } else { grown };
        buffers[index] = tape.allocate(size);
        tape.free(old);
    }
    tape.free_all(buffers);
    tape.finish()
}

/// A pipeline that passes blocks on in order: the oldest block is freed first, and sizes drift slowly.
pub fn pipeline(seed: u64) -> Vec<Event> {
    let mut tape = Tape::new(seed);
    let mut queues: Vec<std::collections::VecDeque<Live>> = (0..6).map(|_| Default::default()).collect();
    for step in 0..10_000_u64 {
        let stage = tape.random.between(0, 5);
        let drift = 50 + (step / 40) % 100;
        let around = ((256 * KIB) << (2 * stage)) * drift / 100;
        let size = tape.random.between(around * 9 / 10, around * 11 / 10);
        let queue = &mut queues[stage as usize];
        queue.push_back(tape.allocate(size));
        if queue.len() > 16 || (queue.len() > 4 && tape.random.chance(40)) {
            let oldest = queue.pop_front();
            tape.free_all(oldest);
        }
    }
    tape.free_all(queues.into_iter().flatten());
    tape.finish()
}

type Maker = fn(u64) -> Vec<Event>;

/// Generates every sequence, one at a time, and passes each with its name to `each`.
pub fn all(mut each: impl FnMut(&str, &[Event]) -> io::Result<()>) -> io::Result<()> {
    for (index, largest) in [1, 4, 64, 256, 1024, 4096].into_iter().enumerate() {
        for events in [1_000, 10_000, 100_000] {
            let seed = index as u64 * 1_000_000 + events as u64;
            each(&format!("rmm_{largest}mib_{events}"), &rmm(seed, largest * MIB, events))?;
        }
    }
    for largest in [1, 16, 256, 2048] {
        let events = full(largest, largest * MIB, 20_000);
        each(&format!("full_{largest}mib_20000"), &events)?;
    }
    let named: [(&str, Maker); 7] = [
        ("tiny", tiny),
        ("inference_bursts", inference_bursts),
        ("model_switching", model_switching),
        ("variable_lengths", variable_lengths),
        ("comb", comb),
        ("growing", growing),
        ("pipeline", pipeline),
    ];
    for (name, make) in named {
        each(name, &make(1))?;
    }
    Ok(())
}

/// Plays a sequence so many times. In each repetition, each size is changed by at most so many percent. The sequence
/// frees all that it allocates.
pub fn repeated(events: &[Event], times: u64, noise: u64) -> Vec<Event> {
    let mut random = Random::new(times);
    let most = events.iter().map(|event| event.id).max().unwrap_or(0);
    let mut repeated = Vec::with_capacity(events.len() * times as usize);
    for repetition in 0..times {
        let mut sizes = BTreeMap::new();
        for event in events {
            let fresh = || event.size * random.between(100_000 - 1_000 * noise, 100_000 + 1_000 * noise) / 100_000;
            let size = *sizes.entry(event.id).or_insert_with(fresh).max(&mut 1);
            let (action, id) = (event.action, event.id + repetition * most);
            repeated.push(Event { action, id, size });
        }
    }
    repeated
}

/// Two jobs at the same time: their events alternate at random, in proportion to how many each has left.
pub fn interleaved(seed: u64, one: &[Event], other: &[Event]) -> Vec<Event> {
    let mut random = Random::new(seed);
    let (mut one, mut other) = (one.iter(), other.iter());
    let mut events = Vec::new();
    while one.len() + other.len() > 0 {
        let first = random.between(1, (one.len() + other.len()) as u64) <= one.len() as u64;
        let (tape, odd) = if first { (&mut one, 1) } else { (&mut other, 0) };
        let Event { action, id, size } = *tape.next().expect("an event");
        let id = 2 * id + odd;
        events.push(Event { action, id, size });
    }
    events
}

/// Writes a sequence in the format of RMM's logging adaptor. The id serves as the pointer. Each event takes a
/// microsecond.
pub fn write_csv(path: &Path, events: &[Event]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    write_events(&mut file, events)?;
    file.flush()
}

pub fn write_events(file: &mut impl Write, events: &[Event]) -> io::Result<()> {
    writeln!(file, "Thread,Time,Action,Pointer,Size,Stream")?;
    for (micros, Event { action, id, size }) in events.iter().enumerate() {
        let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
        let action = match action {
            Action::Allocate => "allocate",
            Action::Free => "free",
        };
        writeln!(file, "0,00:00:{seconds:02}.{micros:06},{action},{id:#x},{size},0")?;
    }
    Ok(())
}
