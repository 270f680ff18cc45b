//! The bytes of a journal file: one header, then records of one fixed size, all little-endian.
//!
//! A journal is written through a shared mapping by a process that may die at any instruction. A record is *committed*
//! when its first word equals its own index plus one; that word is stored last, with Release. Everything else in a
//! slot whose first word does not match is unfinished and means nothing.
//!
//! Threads that write at the same time take slots several at a time, so a slot that was handed out need not stand for
//! an event. One that does says so in its first word (`UNDER_WAY`) before what it tells of begins: killed in between, it
//! is an event that was never finished. A slot whose first word is zero was only kept in hand.
//!
//! Slots are in the order in which they were handed out. Each thread's are in the order in which it used them; among
//! threads the order of what happened is that of the times.
//!
//! Sizes and offsets are fixed here and checked by the compiler below; a reader takes them from here, never from the
//! file. A change of meaning needs a new `VERSION`.

use base::cuda::MAX_DEVICES;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

pub const MAGIC: [u8; 8] = *b"VRAJ\r\n\x1a\n";
/// Format 1 had no `UNDER_WAY`: threads took one slot at a time, and every one without a commit word was unfinished.
pub const VERSION: u32 = 2;
pub const OLDEST_VERSION: u32 = 1;
pub const EXTENSION: &str = "vraj";

/// Offset of record 0; everything before it is the header.
pub const HEADER_SIZE: usize = 16384;
pub const RECORD_SIZE: usize = 64;

/// What a record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The job obtained `size` bytes at `address`; `allocated` after rounding. With `FLAG_DIRECT` the same bytes were
    /// obtained from the layer below by this very call, `detail` of them (pitch and padding included).
    Alloc = 1,
    /// The job gave back the allocation at `address`; sizes repeat those of its `Alloc`.
    Free = 2,
    /// The job asked for `size` bytes and got the CUDA result in `result`.
    AllocFailed = 3,
    /// The job freed `address` and got the CUDA result in `result`.
    FreeFailed = 4,
    /// A policy obtained a segment of `size` bytes at `address` from the layer below.
    SegmentAlloc = 5,
    /// A policy gave `size` bytes at `address` back to the layer below. Memory that was obtained in one piece is given
    /// back so, memory that was mapped (`auto_growth`) in any pieces of what was obtained.
    SegmentFree = 6,
    /// The driver's own pools of this `class` on this device hold `size` bytes now (stream-ordered pools, graph memory).
    /// For graph memory `allocated` is what the launched graphs use of it.
    PoolReserved = 7,
    /// A context (`address`) of this device was destroyed; a `Free` with `FLAG_CONTEXT_GONE` follows for each allocation.
    ContextDestroyed = 8,
    /// Physical memory `detail` (a handle) was mapped at `address`, `size` bytes.
    Map = 9,
    /// `size` bytes at `address` were unmapped.
    Unmap = 10,
    /// What others said of the device at this moment: `size` total and `allocated` free bytes as the layer below answers
    /// `cuMemGetInfo`, `detail` bytes that the driver's management library (NVML) says this process has of it (0 where it
    /// does not say), while the ledger had `address` bytes reserved.
    Measured = 11,
}

impl Kind {
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Alloc,
            2 => Self::Free,
            3 => Self::AllocFailed,
            4 => Self::FreeFailed,
            5 => Self::SegmentAlloc,
            6 => Self::SegmentFree,
            7 => Self::PoolReserved,
            8 => Self::ContextDestroyed,
            9 => Self::Map,
            10 => Self::Unmap,
            11 => Self::Measured,
            _ => return None,
        })
    }
}

/// The layer below was asked in this very call: the record is allocation and segment at once.
pub const FLAG_DIRECT: u8 = 1;
/// Freed because its context was destroyed or reset, not by a call for this address.
pub const FLAG_CONTEXT_GONE: u8 = 2;
/// Of a segment: no new memory, but memory that a policy unmapped elsewhere (in its `SegmentFree`: to map it elsewhere).
pub const FLAG_MOVED: u8 = 4;
/// Of a failed request: refused because of a limit of ours; the layer below was not asked.
pub const FLAG_LIMIT: u8 = 8;

/// One record without its commit word, as the library hands it to the writer and the reader hands it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Record {
    /// Nanoseconds since the header's `mono_start_ns` (CLOCK_MONOTONIC).
    pub time_ns: u64,
    /// Device or host address; a handle for classes that have no address (vmm, array, mipmap, external memory).
    pub address: u64,
    /// Bytes asked for.
    pub size: u64,
    /// Bytes after rounding.
    pub allocated: u64,
    /// Depends on `kind`: for `Alloc` and `Free` the bytes obtained from the layer below (0 inside a segment).
    pub detail: u64,
    /// Kernel thread id.
    pub tid: u32,
    /// CUDA result code; 0 is success.
    pub result: i32,
    /// `api::Api` number.
    pub api: u16,
    /// Device ordinal as the job sees it, or `HOST_DEVICE`.
    pub device: i16,
    /// `Kind` number.
    pub kind: u8,
    /// `api::Class` number; 0 where the kind has none.
    pub class: u8,
    pub flags: u8,
    /// Of an `Alloc` and a `Free` that name a stream: which. 1 is the default stream, others count from 2 on in the order
    /// in which they came, 255 is any after those. 0 names none; a journal from before this was told has it everywhere.
    pub stream: u8,
}

/// Added to the commit word of a slot whose event has begun and is not written yet.
pub const UNDER_WAY: u64 = 1 << 63;

/// A slot of the file: commit word, then the record.
#[repr(C)]
pub struct Slot {
    /// Index of this slot plus one once the record is whole, the same with `UNDER_WAY` from claim to commit; 0 before.
    pub commit: AtomicU64,
    pub record: Record,
}

/// One device as the job sees it; `present` is stored last.
#[repr(C)]
pub struct DeviceEntry {
    pub present: AtomicU32,
    pub ordinal: i32,
    /// Bytes.
    pub total_memory: u64,
    pub uuid: [u8; 16],
    /// UTF-8, NUL-padded.
    pub name: [u8; 64],
}

/// How the process ended, as far as it could say so itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Ended {
    /// Nothing was said: still running, or killed.
    No = 0,
    /// It exited by itself; `exit_status` holds.
    Exit = 1,
}

/// A way in which a job looks up functions that it was not linked with. The number is the place in `Header::routes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Dlsym = 0,
    Dlvsym = 1,
    /// `cuGetProcAddress`
    GetProcAddress = 2,
    /// `cudaGetDriverEntryPoint`
    EntryPoint = 3,
}

impl Route {
    pub const ALL: [Route; 4] = [Route::Dlsym, Route::Dlvsym, Route::GetProcAddress, Route::EntryPoint];
}

/// More than there are, so that a new one changes no offset.
pub const MAX_ROUTES: usize = 8;

/// What one way of looking up has handed out of our functions.
#[derive(Debug)]
#[repr(C)]
pub struct RouteEntry {
    /// How often it did.
    pub handed_out: AtomicU64,
    /// Which: bit N is the driver function whose calls are recorded under the `Api` of number N, ...
    pub driver: AtomicU64,
    /// ... and here the runtime function of number `FIRST_RUNTIME_API` + N.
    pub runtime: AtomicU64,
}

/// The head of the file. Fields that change while the job runs are atomics; the rest is written before `ready` is set.
#[repr(C)]
pub struct Header {
    pub magic: [u8; 8],
    pub version: u32,
    pub header_size: u32,
    pub record_size: u32,
    /// 1 once the constant fields are whole.
    pub ready: AtomicU32,
    pub pid: u32,
    pub parent_pid: u32,
    /// Start time of the process in clock ticks after boot (`/proc/PID/stat`, field 22): with the pid it names one process.
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id`, as 16 bytes.
    pub boot_id: [u8; 16],
    /// CLOCK_REALTIME and CLOCK_MONOTONIC at the same moment, nanoseconds.
    pub wall_start_ns: u64,
    pub mono_start_ns: u64,
    /// Strategy in force, UTF-8, NUL-padded.
    pub strategy: [u8; 32],
    /// `Ended` as a number.
    pub ended: AtomicU32,
    pub exit_status: AtomicI32,
    /// CLOCK_MONOTONIC nanoseconds since start at which `ended` was set.
    pub ended_ns: AtomicU64,
    /// Slots handed out so far, those that threads keep in hand among them.
    pub claimed: AtomicU64,
    /// Events that could not be written (disk full, size cap) ...
    pub lost: AtomicU64,
    /// ... when the first of them happened, nanoseconds since start, and why (an errno; 0 = size cap).
    pub lost_first_ns: AtomicU64,
    pub lost_errno: AtomicI32,
    pub device_count: AtomicU32,
    /// Host name and job name, UTF-8, NUL-padded.
    pub host: [u8; 64],
    pub job: [u8; 128],
    pub devices: [DeviceEntry; MAX_DEVICES],
    /// Arguments of the process, NUL-separated, cut at the field's end.
    pub command_line: [u8; 4096],
    /// `NAME=value` of the variables that explain the job (ranks, visible devices, allocator settings), NUL-separated.
    pub environment: [u8; 4096],
    /// Bytes that the process may have of each device, in the order of `devices`; 0 where there is no limit.
    pub limits: [AtomicU64; MAX_DEVICES],
    /// How the job came by our functions, in the order of `Route`.
    pub routes: [RouteEntry; MAX_ROUTES],
    /// Frees that succeeded of addresses that were never ours to know: allocated past us.
    pub unknown_frees: AtomicU64,
}

const _: () = {
    assert!(size_of::<Record>() == 56);
    assert!(size_of::<Slot>() == RECORD_SIZE);
    assert!(size_of::<DeviceEntry>() == 96);
    assert!(size_of::<Header>() <= HEADER_SIZE);
    assert!(HEADER_SIZE.is_multiple_of(4096));
};

#[cfg(test)]
mod tests;
