//! Journals of made-up jobs, written event by event. The events of a job come a millisecond apart.

use std::io;
use std::path::{Path, PathBuf};

use base::api::{Api, Class};
use base::cuda::{DriverError, HOST_DEVICE};
use journal::format::{Allocation, Device, Event, MarkKind, MemInfo, ProcessBytes, Teller};
use journal::writer::{About, PastJournal};

use crate::MIB;

const PACE_NS: u64 = 1_000_000;

/// A job on devices of 1 GiB.
pub struct Made {
    path: PathBuf,
    journal: PastJournal,
    stacks: String,
    time_ns: u64,
    count: u64,
    tid: u32,
}

impl Made {
    /// Begins the journal of the process `pid`, which must not exist, `began_s` seconds after some date.
    pub fn new(folder: &Path, pid: u32, began_s: u64) -> io::Result<Made> {
        Made::with(folder, pid, began_s, "", "")
    }

    /// The same, with texts of the environment and of the software: entries that end with a zero byte.
    pub fn with(folder: &Path, pid: u32, began_s: u64, environment: &str, software: &str) -> io::Result<Made> {
        let about = About {
            environment: environment.as_bytes().to_vec(),
            software: software.as_bytes().to_vec(),
            ..about(pid, began_s)
        };
        Made::about(folder, &about, &[device(0), device(1)])
    }

    /// The same, with a header and devices of the caller's.
    pub fn about(folder: &Path, about: &About, devices: &[Device]) -> io::Result<Made> {
        let path = folder.join(format!("{}-{}-1.vraj", about.host, about.pid));
        Ok(Made {
            journal: PastJournal::create(&path, about, devices)?,
            path,
            stacks: format!("vramshim-stacks\t1\t{}\n", about.pid),
            time_ns: 0,
            count: 0,
            tid: 1,
        })
    }

    pub fn stack_line(&mut self, fields: &[&str]) {
        self.stacks += &fields.join("\t");
        self.stacks.push('\n');
    }

    pub fn wait(&mut self, time_ns: u64) {
        self.time_ns += time_ns;
    }

    /// The next event has this time.
    pub fn at(&mut self, time_ns: u64) {
        self.time_ns = time_ns - PACE_NS;
    }

    fn push(&mut self, device: i16, api: Api, event: Event, stack: u32) -> io::Result<()> {
        self.time_ns += PACE_NS;
        self.journal
            .push(self.time_ns, self.tid, event.encode(api, device).with_stack(stack))
    }

    /// Allocates at an address of its own, and returns it.
    pub fn alloc(&mut self, device: i16, bytes: u64, stack: u32) -> io::Result<u64> {
        self.count += 1;
        let address = 0x7f00_0000_0000 + self.count * 0x1_0000_0000;
        self.alloc_at(device, address, bytes, stack)?;
        Ok(address)
    }

    pub fn alloc_at(&mut self, device: i16, address: u64, bytes: u64, stack: u32) -> io::Result<()> {
        self.push(device, Api::cudaMalloc, Event::Alloc(linear(address, bytes)), stack)
    }

    /// Allocates at an address of its own, in memory of `reserved` bytes that was obtained for it alone.
    pub fn alloc_within(&mut self, device: i16, bytes: u64, reserved: u64) -> io::Result<()> {
        self.count += 1;
        let allocation = Allocation {
            reserved: Some(reserved),
            ..linear(0x7f00_0000_0000 + self.count * 0x1_0000_0000, bytes)
        };
        self.push(device, Api::cudaMalloc, Event::Alloc(allocation), 0)
    }

    pub fn free(&mut self, device: i16, address: u64, bytes: u64) -> io::Result<()> {
        self.push(device, Api::cudaFree, free(linear(address, bytes)), 0)
    }

    /// A request on device 0 for which there is no memory.
    pub fn fail(&mut self, bytes: u64) -> io::Result<()> {
        let failed = failed(bytes, DriverError::OUT_OF_MEMORY.0, false);
        self.push(0, Api::cudaMalloc, failed, 0)
    }

    pub fn happened(&mut self, device: i16, api: Api, event: Event) -> io::Result<()> {
        self.push(device, api, event, 0)
    }

    pub fn happened_at(&mut self, device: i16, api: Api, event: Event, stack: u32) -> io::Result<()> {
        self.push(device, api, event, stack)
    }

    pub fn mark(&mut self, text: u64, kind: MarkKind) -> io::Result<()> {
        self.push(HOST_DEVICE, Api::vramshim_mark, Event::Mark { text, kind }, 0)
    }

    /// The next events are of this thread.
    pub fn of_thread(&mut self, tid: u32) -> &mut Made {
        self.tid = tid;
        self
    }

    pub fn now_ns(&self) -> u64 {
        self.time_ns
    }

    /// Completes the files, a millisecond later. `exit` is the exit status; `None` stands for a job that was killed.
    pub fn end(self, exit: Option<i32>) -> io::Result<PathBuf> {
        let ended_ns = self.time_ns + PACE_NS;
        std::fs::write(self.path.with_extension("stacks"), self.stacks)?;
        self.journal.finish(exit.map(|status| (status, ended_ns)))?;
        Ok(self.path)
    }
}

pub fn about(pid: u32, began_s: u64) -> About {
    About {
        pid,
        parent_pid: 1,
        wall_start_ns: (1_790_000_000 + began_s) * 1_000_000_000,
        strategy: "passthrough".into(),
        host: "node1".into(),
        job: "made".into(),
        command_line: b"python\0made.py".to_vec(),
        ..About::default()
    }
}

pub fn device(ordinal: i32) -> Device {
    Device {
        ordinal,
        total_memory: 1024 * MIB,
        uuid: [ordinal as u8 + 1; 16],
        name: "Simulated GPU".into(),
        ..Device::default()
    }
}

/// What was read of device 0, which has `total` bytes, and of this process.
pub fn measured([total, free]: [u64; 2], reserved: u64, of_process: u64) -> Event {
    Event::Measured {
        mem_info: Some(MemInfo { total, free }),
        told_by: Teller::NotKnown,
        process_bytes: Some(of_process),
        reserved,
    }
}

/// So many bytes of a process on the device, as `told_by` has them.
pub fn process(pid: u32, bytes: u64, told_by: Teller) -> Event {
    Event::Process(ProcessBytes {
        pid,
        bytes: Some(bytes),
        told_by,
        ..ProcessBytes::default()
    })
}

/// A request for linear memory that fails with this CUDA error.
pub fn failed(bytes: u64, result: i32, over_limit: bool) -> Event {
    Event::AllocFailed {
        class: Class::Linear.into(),
        requested: bytes,
        result,
        over_limit,
        guard: None,
    }
}

pub fn free(allocation: Allocation) -> Event {
    Event::Free {
        allocation,
        context_gone: false,
    }
}

/// An allocation that came from the next layer alone, not from a policy's segment.
pub fn direct(class: Class, address: u64, bytes: u64) -> Event {
    Event::Alloc(Allocation {
        class: class.into(),
        stream: 0,
        ..linear(address, bytes)
    })
}

/// An allocation that the driver serves.
pub fn linear(address: u64, bytes: u64) -> Allocation {
    Allocation {
        class: Class::Linear.into(),
        address,
        requested: bytes,
        allocated: bytes,
        reserved: Some(bytes),
        stream: 1,
    }
}
