//! The header of a journal file: the process, its devices, and counters that change while the job runs. The writer
//! stores the fields through a shared mapping. The reader takes the fields' offsets from these structs.
//!
//! Each field that a figure depends on has a checksum: the fixed fields one together, and each field that changes one
//! of its own. A *packed* word has a value in its lower 40 bits and the value's checksum above, so one store changes
//! both.

use std::mem::offset_of;

use super::check;
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
    pub _unused: u32,
    /// `LimitSource` as a number.
    pub limit_source: u32,
    pub _unused_too: [u8; 16],
}

/// What `DeviceEntry` says of a device. `None` is "not known".
#[derive(Clone, Debug, Default)]
pub struct Device {
    pub ordinal: i32,
    /// Bytes.
    pub total_memory: u64,
    /// The limit of the process in bytes; `None` if there is none.
    pub limit: Option<u64>,
    pub limit_source: LimitSource,
    pub uuid: [u8; 16],
    pub name: String,
}

numbered! {
    /// Whose word the limit of a device is.
    pub enum LimitSource: u32 {
        NotKnown = 0,
        /// A variable of vramshim.
        Variable = 1,
        /// A flag of PaddlePaddle.
        PaddleFlag = 2,
        /// The limit of a layer for GPU sharing, taken over.
        Layer = 3,
        /// What an operator set, as by the annotation of a pod.
        Operator = 4,
    }
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
    /// The inode number of the pid namespace of `pid`; 0 if it is not known.
    pub pid_namespace: u64,
    /// The pid in the outermost pid namespace that the process can see; 0 if it is not known.
    pub host_pid: u32,
    /// The effective user id, plus 1; 0 if it is not known.
    pub user: u32,
    pub _unused: u64,
    /// The strategy in force, UTF-8, NUL-padded.
    pub strategy: [u8; 32],
    /// 1 if the process exited, with `exit_status`; 0 if it still runs, or was killed.
    pub ended: AtomicU32,
    pub exit_status: AtomicI32,
    /// When `ended` was set, in nanoseconds since `mono_start_ns`.
    pub ended_ns: AtomicU64,
    /// Slots that threads have taken so far, including slots that they hold in reserve.
    pub claimed: AtomicU64,
    /// Events whose records are not in the file because the file could not grow, as on a full disk or at the size
    /// limit. A packed word.
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
    /// The path of the cgroup, as `/proc/self/cgroup` has it, NUL-padded; empty if it is not known. A path that is too
    /// long has its end here, which names the container.
    pub cgroup: [u8; 256],
    pub devices: [DeviceEntry; MAX_DEVICES],
    /// Arguments of the process, NUL-separated. A longer command line is cut off.
    pub command_line: [u8; 4096],
    /// `NAME=value` of the variables that explain the job (ranks, visible devices, settings of the library and of
    /// allocators), NUL-separated.
    pub environment: [u8; 4096],
    /// The limit of the process on each device in bytes, in the order of `devices`; 0 if there is none.
    pub limits: [AtomicU64; MAX_DEVICES],
    /// Zeros.
    pub unused: [u64; 24],
    /// Successful frees of addresses that the library did not know, because they were allocated without it. A packed
    /// word.
    pub unknown_frees: AtomicU64,
    /// The checksum of the fields that never change (`fixed_check`), never 0.
    pub fixed_check: u64,
    /// The checksum of each complete entry of `devices` and of its limit (`device_check`), never 0; stored before
    /// `present`.
    pub device_checks: [AtomicU64; MAX_DEVICES],
    /// The checksum of `exit_status` and `ended_ns` (`pair_check`), stored before `ended`.
    pub end_check: AtomicU64,
    /// The checksum of `lost_errno` and `lost_first_ns` (`pair_check`), stored after them.
    pub loss_check: AtomicU64,
    /// When the process was last known to be alive, in milliseconds since `mono_start_ns`. A packed word.
    pub alive_ms: AtomicU64,
    /// The slots that the file has, as of its last growth. A packed word.
    pub slots: AtomicU64,
    /// The first slot of the ring; 0 if there is no ring yet. A packed word.
    pub ring_first: AtomicU64,
    /// The slots of the ring. A packed word, stored before `ring_first`.
    pub ring_slots: AtomicU64,
    /// How often a place in the ring was taken. No figure depends on it.
    pub ring_taken: AtomicU64,
    /// The checksum of `software`, never 0; stored last.
    pub software_check: AtomicU64,
    /// `name=value` of the frameworks, the runtime, the driver and the layers, NUL-separated.
    pub software: [u8; 1024],
    /// In a copy (`copy::dump`): when it was made, in milliseconds since `mono_start_ns`, at least 1; 0 in a job's own
    /// journal. A packed word.
    pub dumped_ms: AtomicU64,
}

/// The checksum of the fields that are complete when `ready` is set. `head` has the bytes of the header.
pub(crate) fn fixed_check(head: &[u8]) -> u64 {
    check::of_bytes([
        &head[..offset_of!(Header, ready)],
        &head[offset_of!(Header, pid)..offset_of!(Header, ended)],
        &head[offset_of!(Header, host)..offset_of!(Header, devices)],
        &head[offset_of!(Header, command_line)..offset_of!(Header, limits)],
    ])
}

/// The checksum of an entry of `devices`, without its `present`, and of the device's limit.
pub(crate) fn device_check(entry: &[u8], limit: u64) -> u64 {
    check::of_bytes([&entry[offset_of!(DeviceEntry, ordinal)..], &limit.to_le_bytes()])
}

pub(crate) fn pair_check(number: i32, time_ns: u64) -> u64 {
    check::of_bytes([&number.to_le_bytes()[..], &time_ns.to_le_bytes()])
}
