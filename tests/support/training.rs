//! Journals of made-up training jobs, with any number of events and with known totals.
//!
//! A job loads weights, makes the optimiser's state in its first step, and then repeats steps: activations layer by
//! layer, gradients backwards, temporary memory in between. Sizes vary with the batch. A job may leak a little in each
//! step, and may ask for too much at its end. A mark begins each step, and a file of stacks names the lines of code.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use base::api::Api;
use base::cuda::HOST_DEVICE;
use journal::format::{Allocation, Device, Event, MarkKind};
use journal::writer::{About, PastJournal};

use crate::made::{about, device, failed, free, linear};
use crate::random::Random;
use crate::{GIB, MIB};

const SEGMENT: u64 = 512 * MIB;
const LAYERS: u64 = 48;
const PACE_NS: u64 = 20_000;

#[derive(Clone, Debug)]
pub struct Plan {
    pub events: u64,
    pub seed: u64,
    /// `passthrough`: each request is the driver's. Another strategy: requests are served from segments of 512 MiB.
    pub strategy: String,
    pub rank: (u32, u32),
    pub leak: u64,
    /// The last event is a request that fails for lack of memory.
    pub out_of_memory: bool,
    /// So many nanoseconds pass between the last event and the end.
    pub lingers_ns: u64,
    pub scale: u64,
    /// The steps have marks, and the journal has a file of stacks.
    pub annotated: bool,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            events: 10_000,
            seed: 1,
            strategy: "auto_growth".into(),
            rank: (0, 1),
            leak: 0,
            out_of_memory: false,
            lingers_ns: 0,
            scale: 1,
            annotated: true,
        }
    }
}

/// What the journal of a job must say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    pub events: u64,
    pub steps: u64,
    pub live: u64,
    pub live_bytes: u64,
    /// The most live bytes, and when they were reached for the first time.
    pub peak: u64,
    pub peak_ns: u64,
    /// Live bytes by size at the peak: bytes and number of each size.
    pub sizes_at_peak: BTreeMap<u64, (u64, u64)>,
    pub reserved: u64,
    pub leaked: u64,
    pub failures: u64,
    /// When each step's mark was set, in nanoseconds, and the live bytes then.
    pub marks: Vec<(u64, u64)>,
}

/// The stacks of the requests: number, file, line and function of the innermost frame. The outer frame is
/// `train.py:88 main`.
const STACKS: [(u32, &str, u32, &str); 13] = [
    (1, "model.py", 11, "embedding"),
    (2, "model.py", 12, "attention"),
    (3, "model.py", 13, "mlp"),
    (4, "model.py", 14, "norm"),
    (10, "model.py", 40, "forward_norm"),
    (11, "model.py", 41, "forward_attention"),
    (12, "model.py", 42, "forward_mlp"),
    (13, "model.py", 43, "forward_loss"),
    (20, "model.py", 50, "softmax"),
    (21, "train.py", 60, "backward"),
    (30, "optimiser.py", 7, "make_state"),
    (66, "metrics.py", 3, "remember_loss"),
    (99, "train.py", 70, "evaluate"),
];

/// The text of the steps' marks has this number.
const STEP: u64 = 1;

fn write_stacks(journal: &Path, pid: u32) -> io::Result<()> {
    let mut text = format!("vramshim-stacks\t1\t{pid}\nN\t{STEP}\tstep\nP\t1000\ttrain.py\t88\tmain\n");
    for (number, file, line, function) in STACKS {
        text += &format!("P\t{number}\t{file}\t{line}\t{function}\nT\t{number}\tpython\t{number}\t1000\n");
    }
    std::fs::write(journal.with_extension("stacks"), text)
}

struct Training<'a> {
    journal: PastJournal,
    plan: &'a Plan,
    truth: Truth,
    time_ns: u64,
    random: Random,
    free: HashMap<u64, Vec<u64>>,
    segment: (u64, u64),
    sizes: BTreeMap<u64, u64>,
    /// The number of events at the last new peak.
    peak_dirty: bool,
}

/// Writes the journal of a job at `path`, which must not exist.
pub fn write(path: &Path, plan: &Plan) -> io::Result<Truth> {
    let (rank, ranks) = plan.rank;
    let about = About {
        parent_pid: 3999,
        strategy: plan.strategy.clone(),
        job: "training".into(),
        command_line: b"python\0train.py".to_vec(),
        environment: format!("RANK={rank}\0LOCAL_RANK={rank}\0WORLD_SIZE={ranks}").into_bytes(),
        ..about(4000 + rank, 0)
    };
    let device = Device {
        total_memory: 80 * GIB,
        uuid: [rank as u8 + 1; 16],
        ..device(0)
    };
    let mut training = Training {
        journal: PastJournal::create(path, &about, &[device])?,
        plan,
        truth: Truth::default(),
        time_ns: 0,
        random: Random::new(plan.seed),
        free: HashMap::new(),
        segment: (0x7f00_0000_0000, 0x7f00_0000_0000),
        sizes: BTreeMap::new(),
        peak_dirty: false,
    };
    if plan.annotated {
        write_stacks(path, about.pid)?;
    }
    training.run()?;
    let ended_ns = training.time_ns + PACE_NS + plan.lingers_ns;
    let exit = (i32::from(plan.out_of_memory), ended_ns);
    training.journal.finish(Some(exit))?;
    Ok(training.truth)
}

/// Writes the journals of a job of several ranks into a folder. Each rank has `plan.events` events.
pub fn write_ranks(folder: &Path, plan: &Plan, ranks: u32) -> io::Result<Vec<(PathBuf, Truth)>> {
    let one = |rank: u32| {
        let path = folder.join(format!("node1-{}-1.vraj", 4000 + rank));
        let plan = Plan {
            rank: (rank, ranks),
            ..plan.clone()
        };
        Ok((path.clone(), write(&path, &plan)?))
    };
    (0..ranks).map(one).collect()
}

impl Training<'_> {
    fn run(&mut self) -> io::Result<()> {
        let weights = 24 * MIB;
        for layer in 0..LAYERS {
            for size in [weights, weights / 4, 8192] {
                self.alloc(size, 1 + layer as u32 % 4)?;
            }
        }
        let mut optimiser = Vec::new();
        while self.room() > 0 {
            self.step(&mut optimiser, weights)?;
        }
        if self.plan.out_of_memory {
            let failed = failed(96 * GIB, 2, false);
            self.truth.failures += 1;
            self.push(1, failed.encode(Api::cudaMalloc, 0).with_stack(99))?;
        }
        Ok(())
    }

    /// How many events may still be written before the last one.
    fn room(&self) -> u64 {
        let last = u64::from(self.plan.out_of_memory);
        self.plan.events.saturating_sub(self.truth.events + last)
    }

    fn step(&mut self, optimiser: &mut Vec<(u64, u64)>, weights: u64) -> io::Result<()> {
        if self.plan.annotated && self.room() > 0 {
            let mark = Event::Mark {
                text: STEP,
                kind: MarkKind::Instant,
            };
            self.push(1, mark.encode(Api::Policy, HOST_DEVICE))?;
            self.truth.marks.push((self.time_ns, self.truth.live_bytes));
        }
        let batch = (8 + self.random.number() % 8) * self.plan.scale;
        let mut activations = Vec::new();
        for layer in 0..LAYERS {
            for part in 0..4 {
                let size = batch * (MIB / 4) * (1 + part);
                let address = self.alloc(size, 10 + part as u32)?;
                activations.extend(address.map(|address| (address, size)));
            }
            self.temporary(batch * 65536 + layer * 512, 20)?;
        }
        while let Some((address, size)) = activations.pop() {
            self.temporary(size / 2, 21)?;
            self.release(address, size)?;
        }
        if optimiser.is_empty() {
            for _ in 0..2 * LAYERS {
                optimiser.extend(self.alloc(weights, 30)?.map(|address| (address, weights)));
            }
        }
        if self.plan.leak > 0 && self.alloc(self.plan.leak, 66)?.is_some() {
            self.truth.leaked += self.plan.leak;
        }
        self.truth.steps += 1;
        Ok(())
    }

    fn temporary(&mut self, size: u64, stack: u32) -> io::Result<()> {
        match self.alloc(size, stack)? {
            Some(address) => self.release(address, size),
            None => Ok(()),
        }
    }

    fn is_direct(&self) -> bool {
        self.plan.strategy == "passthrough"
    }

    fn alloc(&mut self, size: u64, stack: u32) -> io::Result<Option<u64>> {
        if self.room() == 0 {
            return Ok(None);
        }
        let allocated = size.next_multiple_of(512);
        let address = match self.free.get_mut(&allocated).and_then(Vec::pop) {
            Some(address) => address,
            None => self.carve(allocated)?,
        };
        if self.room() == 0 {
            return Ok(None);
        }
        let record = Event::Alloc(self.allocation(address, size)).encode(Api::cudaMalloc, 0);
        self.push(1, record.with_stack(stack))?;
        *self.sizes.entry(size).or_default() += 1;
        let truth = &mut self.truth;
        truth.live += 1;
        truth.live_bytes += allocated;
        if truth.live_bytes > truth.peak {
            truth.peak = truth.live_bytes;
            truth.peak_ns = self.time_ns;
            self.peak_dirty = true;
        }
        if self.is_direct() {
            self.truth.reserved += allocated;
        }
        Ok(Some(address))
    }

    fn release(&mut self, address: u64, size: u64) -> io::Result<()> {
        if self.room() == 0 {
            return Ok(());
        }
        // The sizes at the peak are taken at the first free after it, when nothing has been freed yet.
        if std::mem::take(&mut self.peak_dirty) {
            self.truth.sizes_at_peak = self.by_size();
        }
        let allocation = self.allocation(address, size);
        self.push(1, free(allocation).encode(Api::cudaFree, 0))?;
        if let Some(count) = self.sizes.get_mut(&size) {
            *count -= 1;
        }
        self.truth.live -= 1;
        self.truth.live_bytes -= allocation.allocated;
        if self.is_direct() {
            self.truth.reserved -= allocation.allocated;
        }
        self.free.entry(allocation.allocated).or_default().push(address);
        Ok(())
    }

    fn by_size(&self) -> BTreeMap<u64, (u64, u64)> {
        let live = self.sizes.iter().filter(|(_, count)| **count > 0);
        live.map(|(&size, &count)| (size, (size.next_multiple_of(512) * count, count)))
            .collect()
    }

    fn allocation(&self, address: u64, size: u64) -> Allocation {
        let allocated = size.next_multiple_of(512);
        Allocation {
            requested: size,
            reserved: self.is_direct().then_some(allocated),
            ..linear(address, allocated)
        }
    }

    /// New addresses, in a new segment if the last one is full.
    fn carve(&mut self, size: u64) -> io::Result<u64> {
        let (next, end) = self.segment;
        if end - next < size {
            let segment = size.next_multiple_of(SEGMENT);
            if !self.is_direct() {
                let obtained = Event::SegmentAlloc {
                    address: end,
                    size: segment,
                    again: false,
                };
                self.truth.reserved += segment;
                self.push(1, obtained.encode(Api::Policy, 0))?;
            }
            self.segment = (end, end + segment);
        }
        let address = self.segment.0;
        self.segment.0 += size;
        Ok(address)
    }

    fn push(&mut self, thread: u32, record: journal::format::RawRecord) -> io::Result<()> {
        self.time_ns += PACE_NS;
        self.truth.events += 1;
        self.journal.push(self.time_ns, 4000 + thread, record)
    }
}
