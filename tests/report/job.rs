//! Journals of a made-up job with known figures, hostile names, stacks, marks, a short peak, a leak, and a request that
//! fails because free memory lies in pieces.

use std::io;
use std::path::{Path, PathBuf};

use base::api::Api;
use journal::format::Device;
use journal::format::{Allocation, Event, MarkKind, MemInfo, ProcessBytes, ShortName, Teller};
use journal::writer::About;
use support::made::{Made, failed, free, linear};
use support::{GIB, MIB};

const SECOND: u64 = 1_000_000_000;

/// The steps of the job, each a second long.
const STEPS: u64 = 50;
/// The first event.
pub const BEGAN_NS: u64 = 1_000_000;
/// A block that lives for 20 microseconds makes the peak.
pub const PEAK_NS: u64 = 12 * SECOND + 345_678_901;
/// Also the largest free piece at the failure: the segment of the short block. The pieces have only blocks of 256 MiB.
pub const SPIKE: u64 = 3 * GIB + 7 * MIB;
/// The request that fails.
pub const FAILED_NS: u64 = (STEPS + 1) * SECOND + 500_000_000;
pub const REQUESTED: u64 = 6 * GIB;
const LEAK: u64 = 40 * MIB;

/// 2026-09-21T14:13:20Z
pub const STARTED_S: u64 = 1_790_000_000;

/// Names that would do something if they got into the page as anything but text.
pub const HOSTILE: &str = "</script><img src=x onerror=\"window.hurt=1\"><script>window.hurt=1</script>";

#[derive(Default)]
pub struct Truth {
    pub path: PathBuf,
    pub events: u64,
    pub peak: u64,
    pub live_at_failure: u64,
    pub leaked: u64,
}

struct Job {
    made: Made,
    live: u64,
    next_address: u64,
    truth: Truth,
}

impl Job {
    fn push(&mut self, event: Event, stack: u32) -> io::Result<()> {
        // The list of events leaves measurements out.
        self.truth.events += u64::from(!event.is_finding());
        self.made.happened_at(0, Api::cudaMalloc, event, stack)
    }

    fn segment(&mut self, size: u64) -> io::Result<u64> {
        // Segments do not touch, so that each is a piece of its own.
        let (address, again) = (self.next_address, false);
        self.next_address += size + 512 * MIB;
        self.push(Event::SegmentAlloc { address, size, again }, 0)?;
        Ok(address)
    }

    fn alloc(&mut self, address: u64, bytes: u64, stack: u32) -> io::Result<()> {
        self.live += bytes;
        self.truth.peak = self.truth.peak.max(self.live);
        self.push(Event::Alloc(block(address, bytes)), stack)
    }

    fn free(&mut self, address: u64, bytes: u64) -> io::Result<()> {
        self.live -= bytes;
        self.push(free(block(address, bytes)), 0)
    }
}

fn block(address: u64, bytes: u64) -> Allocation {
    Allocation {
        reserved: None,
        ..linear(address, bytes)
    }
}

const STACKS: &str = "\
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
T\t5\tpython\t7\t2";

/// Writes the journal of a rank. The job of rank 0 runs out of memory; the others end well, and rank 2 has half of the
/// activations of the others.
pub fn write(folder: &Path, rank: u32) -> io::Result<Truth> {
    write_started(folder, rank, STARTED_S)
}

/// The same for a job that started so many seconds after 1970. Another run has other processes.
pub fn write_started(folder: &Path, rank: u32, started_s: u64) -> io::Result<Truth> {
    let about = About {
        pid: 4711 + rank + if started_s == STARTED_S { 0 } else { 100 },
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
    let mut made = Made::about(folder, &about, &[device])?;
    made.stack_line(&[&STACKS.replace("HOSTILE", HOSTILE)]);
    for step in 0..STEPS {
        made.stack_line(&["N", &(step + 1).to_string(), &format!("step {step}")]);
    }
    let mut job = Job {
        made,
        live: 0,
        next_address: 0x7f00_0000_0000,
        truth: Truth::default(),
    };
    run(&mut job, rank)?;
    let path = job.made.end(Some(i32::from(rank == 0)))?;
    Ok(Truth { path, ..job.truth })
}

fn run(job: &mut Job, rank: u32) -> io::Result<()> {
    let measured = |reserved: u64| Event::Measured {
        mem_info: Some(MemInfo {
            total: 24 * GIB,
            free: 23 * GIB - reserved,
        }),
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
    job.push(measured(reserved), 0)?;
    let (size, layers) = if rank == 2 { (128 * MIB, 12) } else { (256 * MIB, 36) };
    let place = |layer: u64| pieces[(layer / 4) as usize] + layer % 4 * 256 * MIB;
    for step in 0..STEPS {
        job.made.at((step + 1) * SECOND);
        let (text, kind) = (step + 1, MarkKind::Instant);
        job.push(Event::Mark { text, kind }, 0)?;
        job.alloc(leaks + step * LEAK, LEAK, 1)?;
        for layer in 0..layers {
            job.made.wait(5_000_000);
            job.alloc(place(layer), size, if layer % 3 == 0 { 5 } else { 2 })?;
        }
        if step == PEAK_NS / SECOND - 1 {
            job.made.at(PEAK_NS);
            job.alloc(spike, SPIKE, 4)?;
            job.made.at(PEAK_NS + 20_000);
            job.free(spike, SPIKE)?;
        }
        // Short-lived memory makes many events.
        for _ in 0..200 {
            job.alloc(spike, 8 * MIB, 4)?;
            job.free(spike, 8 * MIB)?;
        }
        for layer in (0..layers).rev() {
            job.made.wait(2_000_000);
            job.free(place(layer), size)?;
        }
    }
    // Every second block of the pieces stays, so that no two free ones touch.
    job.made.at(FAILED_NS - 100_000_000);
    for layer in (0..layers).step_by(2) {
        job.alloc(place(layer), size, 2)?;
    }
    (job.truth.live_at_failure, job.truth.leaked) = (job.live, STEPS * LEAK);
    if rank == 0 {
        job.made.at(FAILED_NS - 3_000_000);
        job.push(measured(reserved), 0)?;
        for (pid, name, bytes) in [(4711, "python", reserved + 512 * MIB), (99, "<b>other</b>", 512 * MIB)] {
            let process = ProcessBytes {
                pid,
                bytes: Some(bytes),
                told_by: Teller::Nvml,
                name: ShortName::cut_from(name),
                ..ProcessBytes::default()
            };
            job.push(Event::Process(process), 0)?;
        }
        job.made.at(FAILED_NS);
        job.push(failed(REQUESTED, 2, false), 2)?;
    }
    Ok(())
}
