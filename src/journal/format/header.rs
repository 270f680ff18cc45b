//! The header of a journal file: the process, its devices, and counters that change while the job runs. The writer
//! fills it in through the mapping. The reader takes the offsets of the fields from here.

use base::cuda::MAX_DEVICES;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// One device as the job sees it.
#[repr(C)]
pub struct DeviceEntry {
    /// 1 once the entry is whole; stored last.
    pub present: AtomicU32,
    pub ordinal: i32,
    /// Bytes.
    pub total_memory: u64,
    pub uuid: [u8; 16],
    /// UTF-8, NUL-padded.
    pub name: [u8; 64],
}

/// How the process ended, as far as it could note that itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Ended {
    /// Not noted: the process still runs, or it was killed.
    No = 0,
    /// The process exited by itself, and `exit_status` is valid.
    Exit = 1,
}

/// A way in which a job looks up functions at run time. The number is the index in `Header::routes`.
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

/// Room for more routes than there are, so that a new one changes no offset.
pub const MAX_ROUTES: usize = 8;

/// The functions of the library that one route has handed out.
#[derive(Debug)]
#[repr(C)]
pub struct RouteEntry {
    /// The number of look-ups that got a function of the library.
    pub handed_out: AtomicU64,
    /// The driver functions among them: bit N stands for the function that is recorded under `Api` number N.
    pub driver: AtomicU64,
    /// The runtime functions among them: bit N stands for `Api` number `FIRST_RUNTIME_API` + N.
    pub runtime: AtomicU64,
}

/// The header of the file. Fields that change while the job runs are atomics; the others are written before `ready` is
/// set.
#[repr(C)]
pub struct Header {
    pub magic: [u8; 8],
    pub version: u32,
    pub header_size: u32,
    /// Bytes of a slot (`SLOT_SIZE`).
    pub record_size: u32,
    /// 1 once the fields that never change are written.
    pub ready: AtomicU32,
    pub pid: u32,
    pub parent_pid: u32,
    /// Start time of the process in clock ticks after boot (`/proc/PID/stat`, field 22). Together with the pid it
    /// identifies the process.
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id`, as 16 bytes.
    pub boot_id: [u8; 16],
    /// CLOCK_REALTIME when the journal was created, in nanoseconds.
    pub wall_start_ns: u64,
    /// CLOCK_MONOTONIC at the same moment.
    pub mono_start_ns: u64,
    /// The strategy in force, UTF-8, NUL-padded.
    pub strategy: [u8; 32],
    /// `Ended` as a number.
    pub ended: AtomicU32,
    pub exit_status: AtomicI32,
    /// When `ended` was set, in nanoseconds since `mono_start_ns`.
    pub ended_ns: AtomicU64,
    /// Slots that threads have taken so far, with those that they hold in reserve.
    pub claimed: AtomicU64,
    /// Events that could not be written, because the disk was full or the size cap was reached.
    pub lost: AtomicU64,
    /// When the first of them happened, in nanoseconds since `mono_start_ns`.
    pub lost_first_ns: AtomicU64,
    /// Why: an errno, or 0 for the size cap.
    pub lost_errno: AtomicI32,
    pub device_count: AtomicU32,
    /// Host name, UTF-8, NUL-padded.
    pub host: [u8; 64],
    /// Job name, UTF-8, NUL-padded; may be empty.
    pub job: [u8; 128],
    pub devices: [DeviceEntry; MAX_DEVICES],
    /// Arguments of the process, NUL-separated. A longer command line is cut off.
    pub command_line: [u8; 4096],
    /// `NAME=value` of the variables that explain the job (ranks, visible devices, allocator settings), NUL-separated.
    pub environment: [u8; 4096],
    /// The limit of the process on each device in bytes, in the order of `devices`; 0 if there is none.
    pub limits: [AtomicU64; MAX_DEVICES],
    /// How the job looked up functions of the library, in the order of `Route`.
    pub routes: [RouteEntry; MAX_ROUTES],
    /// Frees that succeeded, of addresses that the library did not know: memory that was allocated without it.
    pub unknown_frees: AtomicU64,
}
