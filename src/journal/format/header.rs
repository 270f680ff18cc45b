//! The head of a journal file: what it says about the process and its devices, and counters that change while the job
//! runs. The writer fills it in through the mapping; the reader takes the fields' offsets from here.

use base::cuda::MAX_DEVICES;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

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
