//! Records of what the library found out, beside what the job did: what the device and its limit held at a failure for lack
//! of memory, what the process holds of the host's memory, and who asked for memory while it grew too fast.

use base::shortage::{Refusal, Refuser};

use super::{Event, MemInfo, RawRecord, flag, result_bits};

/// Bytes of a device that a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessBytes {
    pub pid: u32,
    /// `None` if the process is known to use the device, but not how much.
    pub bytes: Option<u64>,
    pub told_by: Teller,
    /// The name of the process's job as far as it fits; empty if it is not known.
    pub name: ShortName,
}

/// Who says what a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Teller {
    Nvml = 0,
    /// The account that the processes of a group share.
    Account = 1,
}

/// A name of at most 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShortName([u8; 16]);

/// The limit of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitState {
    pub limit: u64,
    /// Bytes of all processes that count towards the limit.
    pub used: u64,
    /// Those of this process.
    pub own: u64,
    /// Whether the processes that share the account count together.
    pub group: bool,
}

/// What the process holds of the host's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Resident bytes of anonymous and shared memory (proc_pid_status(5)); mapped files are left out.
    pub resident: u64,
    /// Host memory that the job obtained or registered through CUDA.
    pub pinned: u64,
    /// `None` if the allocator of the process was not asked, or did not answer.
    pub heap: Option<Heap>,
}

/// What an allocator of host memory said of itself, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    pub allocator: Allocator,
    /// What the process obtained by `malloc` and has not freed.
    pub allocated: u64,
    /// What the allocator obtained from the kernel for it.
    pub mapped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Allocator {
    Glibc = 1,
    Jemalloc = 2,
    /// One that this version does not know.
    Other = 255,
}

/// A part of a surge: memory that grew faster than `VRAMSHIM_SURGE`, and one of those who asked for memory meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SurgeShare {
    /// By how many bytes the memory grew, and within which time.
    pub grown: u64,
    pub over_ns: u64,
    /// Bytes that the stack of this record asked for meanwhile, freed ones among them.
    pub asked: u64,
    /// 1 for the stack that asked for most, 2 for the next. 0 if no stack is known; then `asked` is 0.
    pub place: u32,
}

const BYTES_KNOWN: u8 = 1;
const GROUP: u8 = 1;
const RESULT_KNOWN: u8 = 1;

impl Event {
    /// Whether the event says what the library found out, and is no act of the job.
    pub fn is_finding(&self) -> bool {
        matches!(
            self,
            Event::Measured { .. }
                | Event::Limit(_)
                | Event::Process(_)
                | Event::Refused(_)
                | Event::Reclaimed { .. }
                | Event::Host(_)
                | Event::Surge(_)
        )
    }
}

/// What this process and all others hold, if the list of all processes of a device says both. `None`, too, if the numbers of
/// the list are so large that they cannot be true.
pub fn shares(processes: &[ProcessBytes], own_pid: u32) -> Option<(u64, u64)> {
    let told = || processes.iter().filter(|process| process.told_by == Teller::Nvml);
    let own = told().find(|process| process.pid == own_pid)?.bytes?;
    let others = told().filter(|process| process.pid != own_pid);
    let others = others
        .map(|process| process.bytes)
        .try_fold(0u64, |sum, bytes| sum.checked_add(bytes?))?;
    Some((own, others))
}

impl ShortName {
    pub fn of(name: &str) -> ShortName {
        let mut bytes = [0; 16];
        let mut end = name.len().min(bytes.len());
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
        ShortName(bytes)
    }

    pub fn text(&self) -> String {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..end]).into_owned()
    }

    fn halves(self) -> (u64, u64) {
        let both = u128::from_le_bytes(self.0);
        (both as u64, (both >> 64) as u64)
    }

    fn of_halves(low: u64, high: u64) -> ShortName {
        ShortName((u128::from(low) | u128::from(high) << 64).to_le_bytes())
    }
}

impl ProcessBytes {
    pub(super) fn encode(self, blank: RawRecord) -> RawRecord {
        let (address, detail) = self.name.halves();
        RawRecord {
            address,
            detail,
            size: self.bytes.unwrap_or(0),
            allocated: self.pid.into(),
            class: self.told_by as u8,
            flags: flag(self.bytes.is_some(), BYTES_KNOWN),
            ..blank
        }
    }

    pub(super) fn decode(raw: &RawRecord) -> ProcessBytes {
        ProcessBytes {
            pid: raw.allocated as u32,
            bytes: (raw.flags & BYTES_KNOWN != 0).then_some(raw.size),
            told_by: match raw.class {
                1 => Teller::Account,
                _ => Teller::Nvml,
            },
            name: ShortName::of_halves(raw.address, raw.detail),
        }
    }
}

impl LimitState {
    pub(super) fn encode(self, blank: RawRecord) -> RawRecord {
        RawRecord {
            size: self.limit,
            allocated: self.used,
            detail: self.own,
            flags: flag(self.group, GROUP),
            ..blank
        }
    }

    pub(super) fn decode(raw: &RawRecord) -> LimitState {
        LimitState {
            limit: raw.size,
            used: raw.allocated,
            own: raw.detail,
            group: raw.flags & GROUP != 0,
        }
    }
}

/// The record of who refused a request.
pub(super) fn encode_refusal(refusal: Refusal, blank: RawRecord) -> RawRecord {
    RawRecord {
        class: refusal.by as u8,
        size: refusal.driver.map_or(0, |driver| driver.total),
        allocated: refusal.driver.map_or(0, |driver| driver.free),
        detail: refusal.result.map_or(0, result_bits),
        flags: flag(refusal.result.is_some(), RESULT_KNOWN),
        ..blank
    }
}

pub(super) fn decode_refusal(raw: &RawRecord) -> Refusal {
    Refusal {
        by: match raw.class {
            1 => Refuser::Layer,
            2 => Refuser::LayerInFront,
            _ => Refuser::Driver,
        },
        result: (raw.flags & RESULT_KNOWN != 0).then_some(raw.detail as i32),
        driver: (raw.size > 0).then_some(MemInfo {
            total: raw.size,
            free: raw.allocated,
        }),
    }
}

impl Allocator {
    pub fn name(self) -> &'static str {
        match self {
            Allocator::Glibc => "glibc",
            Allocator::Jemalloc => "jemalloc",
            Allocator::Other => "another allocator",
        }
    }
}

impl HostMemory {
    pub(super) fn encode(self, blank: RawRecord) -> RawRecord {
        RawRecord {
            size: self.resident,
            allocated: self.pinned,
            address: self.heap.map_or(0, |heap| heap.allocated),
            detail: self.heap.map_or(0, |heap| heap.mapped),
            class: self.heap.map_or(0, |heap| heap.allocator as u8),
            ..blank
        }
    }

    pub(super) fn decode(raw: &RawRecord) -> HostMemory {
        let allocator = match raw.class {
            0 => None,
            1 => Some(Allocator::Glibc),
            2 => Some(Allocator::Jemalloc),
            _ => Some(Allocator::Other),
        };
        HostMemory {
            resident: raw.size,
            pinned: raw.allocated,
            heap: allocator.map(|allocator| Heap {
                allocator,
                allocated: raw.address,
                mapped: raw.detail,
            }),
        }
    }

    /// The largest of the numbers.
    pub(super) fn largest(&self) -> u64 {
        let heap = self.heap.map_or(0, |heap| heap.allocated.max(heap.mapped));
        self.resident.max(self.pinned).max(heap)
    }
}

impl SurgeShare {
    pub(super) fn encode(self, blank: RawRecord) -> RawRecord {
        RawRecord {
            size: self.grown,
            allocated: self.asked,
            address: self.place.into(),
            detail: self.over_ns,
            ..blank
        }
    }

    pub(super) fn decode(raw: &RawRecord) -> SurgeShare {
        SurgeShare {
            grown: raw.size,
            over_ns: raw.detail,
            asked: raw.allocated,
            place: raw.address as u32,
        }
    }
}
