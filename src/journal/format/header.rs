//! The header of a journal file: the process, its devices, and counters that change while the job runs. The writer
//! stores the fields through a shared mapping. The reader takes the fields' offsets from these structs.

use base::cuda::MAX_DEVICES;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// One device as the job sees it.
#[repr(C)]
pub struct DeviceEntry {
    /// 1 if the other fields are complete; stored last.
    pub present: AtomicU32,
    pub ordinal: i32,
    /// Bytes.
    pub total_memory: u64,
    pub uuid: [u8; 16],
    /// UTF-8, NUL-padded.
    pub name: [u8; 64],
}

/// How the process ended, as the process itself noted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Ended {
    /// Not noted: the process still runs, or it was killed.
    No = 0,
    /// The process exited, and the header's `exit_status` is valid.
    Exit = 1,
}

/// A function by which a job looks up functions at run time. The number is the index in `Header::routes`.
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

/// More entries than there are routes, so that a new route changes no offset.
pub const MAX_ROUTES: usize = 8;

/// The functions of the library that one route has handed out.
#[derive(Debug)]
#[repr(C)]
pub struct RouteEntry {
    /// The number of look-ups that got a function of the library.
    pub handed_out: AtomicU64,
    /// The driver functions that were handed out: bit N stands for the function with `Api` number N.
    pub driver: AtomicU64,
    /// The runtime functions that were handed out: bit N stands for `Api` number `FIRST_RUNTIME_API` + N.
    pub runtime: AtomicU64,
}

/// The header of the file. Fields that change while the job runs are atomic. All others are written before `ready` is
/// set, except those of `devices`, which are written before their `present`.
#[repr(C)]
pub struct Header {
    pub magic: [u8; 8],
    pub version: u32,
    pub header_size: u32,
    /// Bytes of a slot (`SLOT_SIZE`).
    pub record_size: u32,
    /// 1 if the fields that never change are complete.
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
    /// Slots that threads have taken so far, including slots that they hold in reserve.
    pub claimed: AtomicU64,
    /// Events that could not be written because the file could not grow, as on a full disk or at the size limit.
    pub lost: AtomicU64,
    /// When the first lost event happened, in nanoseconds since `mono_start_ns`.
    pub lost_first_ns: AtomicU64,
    /// Why the first event was lost: an errno, or 0 for the size limit.
    pub lost_errno: AtomicI32,
    /// The number of entries in `devices` that are present.
    pub device_count: AtomicU32,
    /// Host name, UTF-8, NUL-padded.
    pub host: [u8; 64],
    /// Job name, UTF-8, NUL-padded; may be empty.
    pub job: [u8; 128],
    pub devices: [DeviceEntry; MAX_DEVICES],
    /// Arguments of the process, NUL-separated. A longer command line is cut off.
    pub command_line: [u8; 4096],
    /// `NAME=value` of the variables that explain the job (ranks, visible devices, settings of the library and of
    /// allocators), NUL-separated.
    pub environment: [u8; 4096],
    /// The limit of the process on each device in bytes, in the order of `devices`; 0 if there is none.
    pub limits: [AtomicU64; MAX_DEVICES],
    /// How the job looked up functions of the library, in the order of `Route`.
    pub routes: [RouteEntry; MAX_ROUTES],
    /// Successful frees of addresses that the library did not know, because they were allocated without it.
    pub unknown_frees: AtomicU64,
}
