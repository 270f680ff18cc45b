//! Reads a journal's header. The values are copied out of the file, and none of them is used as an offset.

use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::error::Problem;
use crate::format::header::{device_check, fixed_check, pair_check};
use crate::format::record::Bits;
use crate::format::{
    Device, DeviceEntry, HEADER_SIZE, Header as H, MAGIC, SLOT_SIZE, UNRELEASED_MAGIC, VERSION, check,
};
use base::shortage::Refuser;

/// The header of a journal (`format::Header`). In texts, bytes that are not UTF-8 are replaced by U+FFFD.
#[derive(Clone, Debug)]
pub struct Header {
    pub pid: u32,
    pub parent_pid: u32,
    pub start_ticks: u64,
    pub boot_id: [u8; 16],
    pub wall_start_ns: u64,
    pub mono_start_ns: u64,
    /// The inode number of the process's pid namespace, and its pid in the outermost one that it can see.
    pub pid_namespace: Option<u64>,
    pub host_pid: Option<u32>,
    /// The effective user id.
    pub user: Option<u32>,
    pub cgroup: Option<String>,
    pub strategy: String,
    pub host: String,
    pub job: String,
    pub command_line: Vec<String>,
    /// `(name, value)`
    pub environment: Vec<(String, String)>,
    pub devices: Vec<Device>,
    pub unknown_frees: u64,
    pub lost_first_ns: u64,
    pub lost_errno: i32,
    /// `(name, value)` of the frameworks, the runtime and the driver that the job used.
    pub software: Vec<(String, String)>,
    /// Parts of the header whose checksum does not match; their fields may be wrong.
    pub damaged: Vec<&'static str>,
    /// When the process was last known to be alive, in nanoseconds after the start; 0 if it was not noted.
    pub alive_ns: u64,
    /// Whether this is a copy that was made while the process ran.
    pub is_dump: bool,
    pub(super) ended: bool,
    pub(super) exit_status: i32,
    pub(super) ended_ns: u64,
    pub(super) claimed: u64,
    pub(super) lost: u64,
    /// The slots that the file had when the process wrote it.
    pub(super) slots: u64,
    /// The slots of the ring, if the file became full.
    pub(super) ring: Option<(u64, u64)>,
    pub(super) ring_taken: u64,
}

impl Header {
    /// The value of a variable of the process's environment, if the journal has it.
    pub fn variable(&self, name: &str) -> Option<&str> {
        let mut variables = self.environment.iter();
        let (_, value) = variables.find(|(known, _)| known == name)?;
        Some(value)
    }

    pub fn ordinals(&self) -> impl Iterator<Item = i16> {
        let devices = self.devices.iter();
        devices.filter_map(|device| i16::try_from(device.ordinal).ok())
    }

    pub fn device(&self, ordinal: i16) -> Option<&Device> {
        self.devices.iter().find(|device| device.ordinal == i32::from(ordinal))
    }

    /// The file of a layer that stood between library and driver.
    pub fn layer(&self) -> Option<&str> {
        self.file_of(Refuser::Layer)
    }

    /// The file of the layer that can refuse requests in this place.
    pub fn file_of(&self, refuser: Refuser) -> Option<&str> {
        // The library names them so in the header.
        let (_, path) = self.software.iter().find(|(name, _)| name == refuser.name())?;
        (refuser != Refuser::Driver).then_some(path)
    }

    /// Whether what the header says of the end of the process is not damaged.
    pub fn knows_end(&self) -> bool {
        !self.damaged.contains(&END)
    }

    /// Whether what the header says of the process, the machine and the command is not damaged.
    pub fn knows_process(&self) -> bool {
        !self.damaged.contains(&PROCESS)
    }

    /// Whether what the header says of lost events is not damaged.
    pub fn knows_lost(&self) -> bool {
        !self.damaged.contains(&LOSS)
    }

    /// Whether what the header says of the slots that were taken is not damaged.
    pub(super) fn knows_slots(&self) -> bool {
        !self.damaged.contains(&SLOTS) && !self.damaged.contains(&RING)
    }

    pub fn uses(&self, framework: &str) -> bool {
        let is_it = |(name, value): &(String, String)| name == "framework" && value.starts_with(framework);
        self.software.iter().any(is_it)
    }

    /// The names of the frameworks that the process had loaded, without versions.
    pub fn frameworks(&self) -> impl Iterator<Item = &str> {
        let loaded = self.software.iter().filter(|(name, _)| name == "framework");
        loaded.map(|(_, value)| match value.rsplit_once(' ') {
            Some((name, version)) if version.starts_with(|sign: char| sign.is_ascii_digit()) => name,
            _ => value,
        })
    }
}

/// Reads the header from the first `HEADER_SIZE` bytes of a file.
pub(super) fn parse_header(head: &[u8]) -> Result<Header, Problem> {
    let begins = head.len().min(MAGIC.len());
    if head.iter().all(|&byte| byte == 0) {
        return Err(Problem::NotReady);
    }
    if head.starts_with(&UNRELEASED_MAGIC) {
        return Err(Problem::Unreleased);
    }
    if head[..begins] != MAGIC[..begins] {
        return Err(Problem::NotAJournal);
    }
    if head.len() < HEADER_SIZE {
        return Err(Problem::Short(head.len() as u64));
    }
    let h = typed(head);
    if h.ready.load(Relaxed) != 1 && h.version <= VERSION {
        return Err(Problem::NotReady);
    }
    if h.version != VERSION {
        return Err(Problem::OtherVersion(h.version));
    }
    if (h.header_size, h.record_size) != (HEADER_SIZE as u32, SLOT_SIZE as u32) {
        return Err(Problem::OtherLayout);
    }
    let mut damaged = Vec::new();
    note(&mut damaged, h.fixed_check != fixed_check(head), PROCESS);
    let devices = devices(&h, head, &mut damaged);
    let mut packed = |word: &AtomicU64, name| {
        check::unpack(word.load(Relaxed)).unwrap_or_else(|value| {
            note(&mut damaged, true, name);
            // A damaged count is not known. The places in the file bound what is read.
            if matches!(name, SLOTS | RING) { value } else { 0 }
        })
    };
    let unknown_frees = packed(&h.unknown_frees, "unknown frees");
    let lost = packed(&h.lost, LOSS);
    let alive_ms = packed(&h.alive_ms, "last sign of life");
    let slots = packed(&h.slots, SLOTS);
    let ring_first = packed(&h.ring_first, RING);
    let ring_slots = packed(&h.ring_slots, RING);
    let is_dump = packed(&h.dumped_ms, "time of the copy") > 0;
    // Threads take only slots that the file has.
    let claimed = h.claimed.load(Relaxed);
    note(&mut damaged, slots > 0 && claimed > slots, SLOTS);
    let (exit_status, ended_ns) = (h.exit_status.load(Relaxed), h.ended_ns.load(Relaxed));
    let end_check = h.end_check.load(Relaxed);
    let ended = end_check != 0;
    note(
        &mut damaged,
        ended && end_check != pair_check(exit_status, ended_ns),
        END,
    );
    // The process had not ended yet. A process that is killed as it ends can leave some of these fields.
    note(&mut damaged, !ended && h.ended.load(Relaxed) != 0, END);
    let mut loss = (h.lost_errno.load(Relaxed), h.lost_first_ns.load(Relaxed));
    let loss_is_right = match h.loss_check.load(Relaxed) {
        0 => loss == (0, 0),
        check => check == pair_check(loss.0, loss.1),
    };
    if !loss_is_right {
        note(&mut damaged, true, LOSS);
        loss = (0, 0);
    }
    let software_is_right = match h.software_check.load(Relaxed) {
        // It is not written yet.
        0 => h.software == [0; 1024],
        check => check == check::of_bytes([&h.software[..]]),
    };
    note(&mut damaged, !software_is_right, "software");
    Ok(Header {
        pid: h.pid,
        parent_pid: h.parent_pid,
        start_ticks: h.start_ticks,
        boot_id: h.boot_id,
        wall_start_ns: h.wall_start_ns,
        mono_start_ns: h.mono_start_ns,
        pid_namespace: Some(h.pid_namespace).filter(|&inode| inode > 0),
        host_pid: Some(h.host_pid).filter(|&pid| pid > 0),
        user: h.user.checked_sub(1),
        cgroup: known_text(&h.cgroup),
        strategy: text(&h.strategy),
        host: text(&h.host),
        job: text(&h.job),
        command_line: texts(&h.command_line),
        environment: pairs(&h.environment),
        devices,
        unknown_frees,
        lost_errno: loss.0,
        lost_first_ns: loss.1,
        software: if software_is_right {
            pairs(&h.software)
        } else {
            Vec::new()
        },
        damaged,
        alive_ns: alive_ms.saturating_mul(1_000_000),
        is_dump,
        ended,
        exit_status,
        ended_ns,
        claimed,
        lost,
        slots,
        ring: (ring_first > 0 && ring_slots > 0).then_some((ring_first, ring_slots)),
        ring_taken: h.ring_taken.load(Relaxed),
    })
}

/// Parts of a header that readers ask about, in words: the process with its machine and command, its end, the slots
/// that the file has and that were taken, the place of the ring, and the events that were lost.
const PROCESS: &str = "process";
const END: &str = "end";
const SLOTS: &str = "slots";
const RING: &str = "ring";
const LOSS: &str = "lost events";

fn note(damaged: &mut Vec<&'static str>, is_damaged: bool, part: &'static str) {
    if is_damaged && !damaged.contains(&part) {
        damaged.push(part);
    }
}

/// A copy of the header in these bytes, which are at least as many.
fn typed(head: &[u8]) -> Box<H> {
    let head = &head[..size_of::<H>()];
    let mut header = Box::<H>::new_uninit();
    // SAFETY: both have this many bytes. All fields are numbers or arrays of numbers, so any bytes are a header.
    unsafe {
        ptr::copy_nonoverlapping(head.as_ptr(), header.as_mut_ptr().cast::<u8>(), head.len());
        header.assume_init()
    }
}

fn devices(h: &H, head: &[u8], damaged: &mut Vec<&'static str>) -> Vec<Device> {
    let mut devices = Vec::new();
    for (place, entry) in h.devices.iter().enumerate() {
        let bytes = &head[offset_of!(H, devices) + place * size_of::<DeviceEntry>()..][..size_of::<DeviceEntry>()];
        let limit = h.limits[place].load(Relaxed);
        let check = h.device_checks[place].load(Relaxed);
        if check == 0 {
            // The entry is not complete yet.
            note(damaged, entry.present.load(Relaxed) == 1, "devices");
        } else if check != device_check(bytes, limit) {
            // Nothing is known of this device.
            note(damaged, true, "devices");
        } else {
            devices.push(Device {
                ordinal: entry.ordinal,
                total_memory: entry.total_memory,
                limit: (limit > 0).then_some(limit),
                limit_source: Bits::of_bits(entry.limit_source.into()),
                uuid: entry.uuid,
                name: text(&entry.name),
            });
        }
    }
    devices
}

fn pairs(field: &[u8]) -> Vec<(String, String)> {
    let texts = texts(field);
    let pairs = texts.iter().filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The text in a field, without the padding.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

fn known_text(field: &[u8]) -> Option<String> {
    Some(text(field)).filter(|text| !text.is_empty())
}

/// The NUL-separated texts in a field, without the padding. An empty text between two others is kept.
fn texts(field: &[u8]) -> Vec<String> {
    let end = field.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    if end == 0 {
        return Vec::new();
    }
    field[..end]
        .split(|&byte| byte == 0)
        .map(|item| String::from_utf8_lossy(item).into_owned())
        .collect()
}
