//! Fills the header of a journal: of one that this process writes, and of one that is made from known events.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::format::header::{device_check, fixed_check, pair_check};
use crate::format::{Device, DeviceEntry, HEADER_SIZE, Header, MAGIC, SLOT_SIZE, VERSION, check};

/// What the header says of the job.
#[derive(Clone, Debug, Default)]
pub struct About {
    pub pid: u32,
    pub parent_pid: u32,
    pub start_ticks: u64,
    pub boot_id: [u8; 16],
    /// Nanoseconds since 1970.
    pub wall_start_ns: u64,
    pub mono_start_ns: u64,
    /// 0 if it is not known.
    pub pid_namespace: u64,
    pub host_pid: Option<u32>,
    pub user: Option<u32>,
    /// Empty if it is not known.
    pub cgroup: Vec<u8>,
    pub strategy: String,
    pub host: String,
    /// The name of the job; may be empty.
    pub job: String,
    /// Arguments of the process, NUL-separated.
    pub command_line: Vec<u8>,
    /// `NAME=value`, NUL-separated.
    pub environment: Vec<u8>,
    /// `name=value` of frameworks, runtime and driver, NUL-separated.
    pub software: Vec<u8>,
}

/// Fills the fields that never change, except `ready`.
///
/// # Safety
/// The header is mapped and zero, and only this thread uses it.
pub(super) unsafe fn write_about(header: *mut Header, about: &About) {
    // SAFETY: the caller promises it.
    unsafe {
        (*header).magic = MAGIC;
        (*header).version = VERSION;
        (*header).header_size = HEADER_SIZE as u32;
        (*header).record_size = SLOT_SIZE as u32;
        (*header).pid = about.pid;
        (*header).parent_pid = about.parent_pid;
        (*header).start_ticks = about.start_ticks;
        (*header).boot_id = about.boot_id;
        (*header).wall_start_ns = about.wall_start_ns;
        (*header).mono_start_ns = about.mono_start_ns;
        (*header).pid_namespace = about.pid_namespace;
        (*header).host_pid = about.host_pid.unwrap_or(0);
        (*header).user = about.user.map_or(0, |user| user.saturating_add(1));
        fill_text(&mut (*header).strategy, &about.strategy);
        fill_text(&mut (*header).host, &about.host);
        fill_text(&mut (*header).job, &about.job);
        // The end of a path names the container.
        let cut = about.cgroup.len().saturating_sub((*header).cgroup.len());
        fill(&mut (*header).cgroup, &about.cgroup[cut..]);
        fill(&mut (*header).command_line, &about.command_line);
        fill(&mut (*header).environment, &about.environment);
        let check = fixed_check(std::slice::from_raw_parts(header.cast::<u8>(), HEADER_SIZE));
        (*header).fixed_check = check;
    }
}

/// Fills the entry of a device, which is zero.
///
/// # Safety
/// The header is mapped, `place` is the number of an entry, and only this thread writes devices. Readers wait for `present`.
pub(super) unsafe fn write_device(header: *mut Header, place: usize, device: &Device) {
    let limit = device.limit.unwrap_or(0);
    // SAFETY: the caller promises it.
    unsafe {
        let entry = &raw mut (*header).devices[place];
        (*entry).ordinal = device.ordinal;
        (*entry).total_memory = device.total_memory;
        (*entry).uuid = device.uuid;
        (*entry).limit_source = device.limit_source as u32;
        fill_text(&mut (*entry).name, &device.name);
        (*header).limits[place].store(limit, Relaxed);
        let bytes = std::slice::from_raw_parts(entry.cast::<u8>(), size_of::<DeviceEntry>());
        let check = device_check(bytes, limit);
        (*header).device_checks[place].store(check, Release);
        (*entry).present.store(1, Release);
        (*header).device_count.fetch_add(1, Release);
    }
}

/// Fills `software`, if that was not done yet.
///
/// # Safety
/// The header is mapped, and only this thread writes these fields. Readers compare the checksum, which is stored last.
pub(super) unsafe fn write_software(header: *mut Header, text: &[u8]) {
    // SAFETY: the caller promises it.
    unsafe {
        if (*header).software_check.load(Acquire) == 0 {
            let software = &mut (*header).software;
            fill(software, text);
            let check = check::of_bytes([&software[..]]);
            (*header).software_check.store(check, Release);
        }
    }
}

/// Notes how the process ended.
///
/// # Safety
/// The header is mapped.
pub(super) unsafe fn write_end(header: *mut Header, status: i32, time_ns: u64) {
    // SAFETY: the caller promises it, and these fields are only ever used as atomics.
    unsafe {
        (*header).exit_status.store(status, Relaxed);
        (*header).ended_ns.store(time_ns, Relaxed);
        (*header).end_check.store(pair_check(status, time_ns), Release);
        (*header).ended.store(1, Release);
    }
}

/// Copies as many of `bytes` as the field has room for. All other bytes of the field stay 0.
fn fill(field: &mut [u8], bytes: &[u8]) {
    let count = field.len().min(bytes.len());
    field[..count].copy_from_slice(&bytes[..count]);
}

/// Copies as many whole characters of `text` as the field has room for.
fn fill_text(field: &mut [u8], text: &str) {
    fill(field, &text.as_bytes()[..text.floor_char_boundary(field.len())]);
}
