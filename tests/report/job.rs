//! Journals of a made-up job with known figures, hostile names, stacks, marks, a short peak, a leak, and a request that
//! fails because free memory lies in pieces.

use std::io;
use std::path::{Path, PathBuf};

use base::api::{Api, Class};
use journal::format::Device;
use journal::format::{Allocation, Event, Library, MarkKind, MemInfo, ProcessBytes, ShortName, Teller};
use journal::writer::{About, PastJournal};

pub const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// The steps of the job, each a second long.
pub const STEPS: u64 = 50;
/// A block that lives for 20 microseconds makes the peak.
pub const PEAK_NS: u64 = 12 * SECOND + 345_678_901;
const SPIKE: u64 = 3 * GIB + 7 * MIB;
/// The request that fails.
pub const FAILED_NS: u64 = (STEPS + 1) * SECOND + 500_000_000;
pub const REQUESTED: u64 = 6 * GIB;
const LEAK: u64 = 40 * MIB;

/// 2026-09-21T14:13:20Z
pub const STARTED_S: u64 = 1_790_000_000;

/// Names that would do something if they got into the page as anything but text.
pub const HOSTILE: &str = "</script><img src=x onerror=\"window.hurt=1\"><script>window.hurt=1</script>";

pub struct Truth {
    pub path: PathBuf,
    pub events: u64,
    pub peak: u64,
    pub live_at_failure: u64,
    pub leaked: u64,
}

/// The largest free piece at the failure: the segment of the short block. The pieces have only blocks of 256 MiB.
pub fn largest_free() -> u64 {
    SPIKE
}

struct Job {
    journal: PastJournal,
    time_ns: u64,
    live: u64,
    peak: (u64, u64),
    next_address: u64,
    events: u64,
}

impl Job {
    fn push(&mut self, event: Event, stack: u32) -> io::Result<()> {
        // The list of events leaves measurements out.
        self.events += u64::from(!event.is_finding());
        let record = event.encode(Api::cudaMalloc, 0).with_stack(stack);
        self.journal.push(self.time_ns, 4711, record)
    }

    fn segment(&mut self, bytes: u64) -> io::Result<u64> {
        // Segments do not touch, so that each is a piece of its own.
        let address = self.next_address;
        self.next_address += bytes + 512 * MIB;
        self.push(
            Event::SegmentAlloc {
                address,
                size: bytes,
                again: false,
            },
            0,
        )?;
        Ok(address)
    }

    fn alloc(&mut self, address: u64, bytes: u64, stack: u32) -> io::Result<()> {
        self.push(Event::Alloc(block(address, bytes)), stack)?;
        self.live += bytes;
        if self.live > self.peak.0 {
            self.peak = (self.live, self.time_ns);
        }
        Ok(())
    }

    fn free(&mut self, address: u64, bytes: u64) -> io::Result<()> {
        let allocation = block(address, bytes);
        self.push(
            Event::Free {
                allocation,
                context_gone: false,
            },
            0,
        )?;
        self.live -= bytes;
        Ok(())
    }
}

fn block(address: u64, bytes: u64) -> Allocation {
    Allocation {
        class: Class::Linear.into(),
        address,
        requested: bytes,
        allocated: bytes,
        reserved: None,
        cache: Library::NotKnown,
        stream: 1,
    }
}

const STACKS: &str = "\
vramshim-stacks\t1\t4711
P\t1\t/home/me/train.py\t88\tkeep_history
P\t2\t/home/me/train.py\t140\tmain
P\t3\t/home/me/model.py\t31\tforward
P\t4\t/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py\t125\tforward
P\t5\t/home/me/model.py\t12\tload_weights
P\t6\t/home/me/train.py\t97\tgather
P\t7\t/home/me/HOSTILE.py\t6\tHOSTILE
T\t1\tpython\t1\t2
T\t2\tpython\t4\t3\t2
T\t3\tpython\t5\t2
T\t4\tpython\t6\t2
T\t5\tpython\t7\t2
";

/// Writes the journal of a rank. The job of rank 0 runs out of memory; the others end well, and rank 2 has half of the
/// activations of the others.
pub fn write(folder: &Path, rank: u32) -> io::Result<Truth> {
    write_started(folder, rank, STARTED_S)
}

/// The same for a job that started so many seconds after 1970.
pub fn write_started(folder: &Path, rank: u32, started_s: u64) -> io::Result<Truth> {
    let path = folder.join(format!("node1-{}-{started_s}.vraj", 4711 + rank));
    let about = About {
        pid: 4711 + rank,
        parent_pid: 1,
        wall_start_ns: started_s * SECOND,
        strategy: "naive_best_fit".into(),
        host: "node1".into(),
        job: format!("job {HOSTILE}"),
        command_line: format!("python\0train.py\0--hf-token\0hunter2\0{HOSTILE}").into_bytes(),
        environment: format!("RANK={rank}\0WANDB_API_KEY=hunter2\0NAME={HOSTILE}").into_bytes(),
        software: b"PyTorch=2.8.0\0CUDA driver=12080".to_vec(),
        ..About::default()
    };
    let device = Device {
        total_memory: 24 * GIB,
        uuid: [7; 16],
        name: format!("GPU {HOSTILE}").chars().take(60).collect(),
        ..Device::default()
    };
    let mut stacks = STACKS.replace("HOSTILE", HOSTILE);
    for step in 0..STEPS {
        stacks += &format!("N\t{}\tstep {step}\n", step + 1);
    }
    std::fs::write(path.with_extension("stacks"), stacks)?;
    let mut job = Job {
        journal: PastJournal::create(&path, &about, &[device])?,
        time_ns: 1000,
        live: 0,
        peak: (0, 0),
        next_address: 0x7f00_0000_0000,
        events: 0,
    };
    let truth = run(&mut job, rank)?;
    job.journal
        .finish(Some((i32::from(rank == 0), FAILED_NS + 1_000_000)))?;
    Ok(Truth { path, ..truth })
}

fn run(job: &mut Job, rank: u32) -> io::Result<Truth> {
    let measured = |free: u64, reserved: u64| Event::Measured {
        mem_info: Some(MemInfo { total: 24 * GIB, free }),
        told_by: Teller::NotKnown,
        process_bytes: Some(reserved + 512 * MIB),
        reserved,
    };
    let weights = job.segment(4 * GIB)?;
    job.alloc(weights, 4 * GIB, 3)?;
    let leaks = job.segment(STEPS * LEAK)?;
    let pieces: Vec<u64> = (0..12).map(|_| job.segment(GIB)).collect::<io::Result<_>>()?;
    let spike = job.segment(SPIKE)?;
    let reserved = 4 * GIB + STEPS * LEAK + 12 * GIB + SPIKE;
    job.push(measured(24 * GIB - reserved - GIB, reserved), 0)?;
    let size = if rank == 2 { 128 * MIB } else { 256 * MIB };
    let layers = if rank == 2 { 12 } else { 36 };
    let place = |layer: u64| pieces[(layer / 4) as usize] + layer % 4 * 256 * MIB;
    for step in 0..STEPS {
        job.time_ns = (step + 1) * SECOND;
        job.push(
            Event::Mark {
                text: step + 1,
                kind: MarkKind::Instant,
            },
            0,
        )?;
        job.alloc(leaks + step * LEAK, LEAK, 1)?;
        for layer in 0..layers {
            job.time_ns += 6_000_000;
            job.alloc(place(layer), size, if layer % 3 == 0 { 5 } else { 2 })?;
        }
        if step == PEAK_NS / SECOND - 1 {
            job.time_ns = PEAK_NS;
            job.alloc(spike, SPIKE, 4)?;
            job.time_ns += 20_000;
            job.free(spike, SPIKE)?;
        }
        // Short-lived memory makes many events.
        for _ in 0..200 {
            job.time_ns += 1_000_000;
            job.alloc(spike, 8 * MIB, 4)?;
            job.time_ns += 500_000;
            job.free(spike, 8 * MIB)?;
        }
        for layer in (0..layers).rev() {
            job.time_ns += 3_000_000;
            job.free(place(layer), size)?;
        }
    }
    // Every second block of the pieces stays, so that no two free ones touch.
    job.time_ns = FAILED_NS - 100_000_000;
    for layer in (0..layers).step_by(2) {
        job.time_ns += 1_000_000;
        job.alloc(place(layer), size, 2)?;
    }
    let live = job.live;
    if rank == 0 {
        job.time_ns = FAILED_NS - 1000;
        job.push(measured(24 * GIB - reserved - GIB, reserved), 0)?;
        for (pid, name, bytes) in [(4711, "python", reserved + 512 * MIB), (99, "<b>other</b>", 512 * MIB)] {
            job.push(
                Event::Process(ProcessBytes {
                    pid,
                    bytes: Some(bytes),
                    told_by: Teller::Nvml,
                    name: ShortName::cut_from(name),
                    ..ProcessBytes::default()
                }),
                0,
            )?;
        }
        job.time_ns = FAILED_NS;
        job.push(
            Event::AllocFailed {
                class: Class::Linear.into(),
                requested: REQUESTED,
                result: 2,
                over_limit: false,
                guard: None,
            },
            2,
        )?;
    }
    assert_eq!(job.peak.1, PEAK_NS);
    Ok(Truth {
        path: PathBuf::new(),
        events: job.events,
        peak: job.peak.0,
        live_at_failure: live,
        leaked: STEPS * LEAK,
    })
}
