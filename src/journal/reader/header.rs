//! Reads a journal's header. The values are copied out of the file, and none of them is used as an offset.

use std::mem::offset_of;

use super::error::Problem;
use crate::bytes::{bytes_at, u32_at, u64_at};
use crate::format::header::{device_check, fixed_check, pair_check};
use crate::format::record::Bits;
use crate::format::{
    Device, DeviceEntry, HEADER_SIZE, Header as H, MAGIC, Route, RouteEntry, SLOT_SIZE, SizeDialect, UNRELEASED_MAGIC,
    VERSION, check,
};
use base::api::FIRST_RUNTIME_API;
use base::cuda::MAX_DEVICES;
use base::shortage::Refuser;

/// The header of a journal (`format::Header`). In texts, bytes that are not UTF-8 are replaced by U+FFFD.
#[derive(Clone, Debug)]
pub struct Header {
    pub pid: u32,
    pub parent_pid: u32,
    pub start_ticks: u64,
    pub boot_id: [u8; 16],
    /// CLOCK_REALTIME when the journal was created, in nanoseconds.
    pub wall_start_ns: u64,
    /// CLOCK_MONOTONIC at the same moment.
    pub mono_start_ns: u64,
    /// The inode number of the process's pid namespace, and its pid in the outermost one that it can see.
    pub pid_namespace: Option<u64>,
    pub host_pid: Option<u32>,
    /// The effective user id.
    pub user: Option<u32>,
    pub cgroup: Option<String>,
    pub size_dialect: SizeDialect,
    pub strategy: String,
    pub host: String,
    pub job: String,
    pub command_line: Vec<String>,
    /// `(name, value)`
    pub environment: Vec<(String, String)>,
    pub devices: Vec<Device>,
    /// How the job looked up functions of the library, in the order of `format::Route`.
    pub routes: Vec<HandedOut>,
    /// Successful frees of addresses that the library did not know.
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

/// The functions of the library that one route handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandedOut {
    /// The number of look-ups that got a function of the library.
    pub times: u64,
    /// Bit sets of the functions that were handed out, as in `format::RouteEntry`.
    driver: u64,
    runtime: u64,
}

impl HandedOut {
    /// Whether the route handed out the function with this `Api` number.
    pub fn has(&self, api: u16) -> bool {
        let bit = |word: u64, number: u16| number < 64 && word >> number & 1 == 1;
        match api.checked_sub(FIRST_RUNTIME_API) {
            Some(number) => bit(self.runtime, number),
            None => bit(self.driver, api),
        }
    }
}

impl Header {
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

    /// Whether the job used this framework.
    pub fn uses(&self, framework: &str) -> bool {
        let is_it = |(name, value): &(String, String)| name == "framework" && value.starts_with(framework);
        self.software.iter().any(is_it)
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
    let u32_of = |offset| u32_at(head, offset);
    let u64_of = |offset| u64_at(head, offset);
    let version = u32_of(offset_of!(H, version));
    if u32_of(offset_of!(H, ready)) != 1 && version <= VERSION {
        return Err(Problem::NotReady);
    }
    if version != VERSION {
        return Err(Problem::OtherVersion(version));
    }
    let sizes = (u32_of(offset_of!(H, header_size)), u32_of(offset_of!(H, record_size)));
    if sizes != (HEADER_SIZE as u32, SLOT_SIZE as u32) {
        return Err(Problem::OtherLayout);
    }
    let mut damage = Damage::default();
    damage.note(u64_of(offset_of!(H, fixed_check)) != fixed_check(head), PROCESS);
    let devices = devices(head, &mut damage);
    let mut packed = |offset, name| {
        check::unpack(u64_of(offset)).unwrap_or_else(|value| {
            damage.note(true, name);
            // A damaged count is not known. The places in the file bound what is read.
            if matches!(name, SLOTS | RING) { value } else { 0 }
        })
    };
    let unknown_frees = packed(offset_of!(H, unknown_frees), "unknown frees");
    let lost = packed(offset_of!(H, lost), LOSS);
    let alive_ms = packed(offset_of!(H, alive_ms), "last sign of life");
    let slots = packed(offset_of!(H, slots), SLOTS);
    let ring_first = packed(offset_of!(H, ring_first), RING);
    let ring_slots = packed(offset_of!(H, ring_slots), RING);
    let is_dump = packed(offset_of!(H, dumped_ms), "time of the copy") > 0;
    // Threads take only slots that the file has.
    let claimed = u64_of(offset_of!(H, claimed));
    damage.note(slots > 0 && claimed > slots, SLOTS);
    let exit_status = u32_of(offset_of!(H, exit_status)) as i32;
    let ended_ns = u64_of(offset_of!(H, ended_ns));
    let end_check = u64_of(offset_of!(H, end_check));
    let ended = end_check != 0;
    damage.note(ended && end_check != pair_check(exit_status, ended_ns), END);
    // The process had not ended yet. A process that is killed as it ends can leave some of these fields.
    damage.note(!ended && u32_of(offset_of!(H, ended)) != 0, END);
    let mut loss = (
        u32_of(offset_of!(H, lost_errno)) as i32,
        u64_of(offset_of!(H, lost_first_ns)),
    );
    let loss_is_right = match u64_of(offset_of!(H, loss_check)) {
        0 => loss == (0, 0),
        check => check == pair_check(loss.0, loss.1),
    };
    if !loss_is_right {
        damage.note(true, LOSS);
        loss = (0, 0);
    }
    let software = bytes_at::<1024>(head, offset_of!(H, software));
    let software_is_right = match u64_of(offset_of!(H, software_check)) {
        // It is not written yet.
        0 => software == [0; 1024],
        check => check == check::of_bytes([&software[..]]),
    };
    damage.note(!software_is_right, "software");
    let routes = Route::ALL.map(|route| {
        let entry = offset_of!(H, routes) + route as usize * size_of::<RouteEntry>();
        HandedOut {
            times: u64_of(entry + offset_of!(RouteEntry, handed_out)),
            driver: u64_of(entry + offset_of!(RouteEntry, driver)),
            runtime: u64_of(entry + offset_of!(RouteEntry, runtime)),
        }
    });
    let namespace = u64_of(offset_of!(H, pid_namespace));
    let host_pid = u32_of(offset_of!(H, host_pid));
    Ok(Header {
        pid: u32_of(offset_of!(H, pid)),
        parent_pid: u32_of(offset_of!(H, parent_pid)),
        start_ticks: u64_of(offset_of!(H, start_ticks)),
        boot_id: bytes_at(head, offset_of!(H, boot_id)),
        wall_start_ns: u64_of(offset_of!(H, wall_start_ns)),
        mono_start_ns: u64_of(offset_of!(H, mono_start_ns)),
        pid_namespace: (namespace > 0).then_some(namespace),
        host_pid: (host_pid > 0).then_some(host_pid),
        user: u32_of(offset_of!(H, user)).checked_sub(1),
        cgroup: known_text(&bytes_at::<256>(head, offset_of!(H, cgroup))),
        size_dialect: Bits::of_bits(u32_of(offset_of!(H, size_dialect)).into()),
        strategy: text(&bytes_at::<32>(head, offset_of!(H, strategy))),
        host: text(&bytes_at::<64>(head, offset_of!(H, host))),
        job: text(&bytes_at::<128>(head, offset_of!(H, job))),
        command_line: texts(&bytes_at::<4096>(head, offset_of!(H, command_line))),
        environment: pairs(&bytes_at::<4096>(head, offset_of!(H, environment))),
        devices,
        routes: routes.to_vec(),
        unknown_frees,
        lost_errno: loss.0,
        lost_first_ns: loss.1,
        software: if software_is_right {
            pairs(&software)
        } else {
            Vec::new()
        },
        damaged: damage.parts,
        alive_ns: alive_ms.saturating_mul(1_000_000),
        is_dump,
        ended,
        exit_status,
        ended_ns,
        claimed,
        lost,
        slots,
        ring: (ring_first > 0 && ring_slots > 0).then_some((ring_first, ring_slots)),
        ring_taken: u64_of(offset_of!(H, ring_taken)),
    })
}

/// The part of a header that tells how the process ended.
const END: &str = "end";
/// The part that tells how many slots the file has, and how many of them were taken.
const SLOTS: &str = "slots";
/// The part that tells where the ring is.
const RING: &str = "ring";
/// The part that tells of lost events.
const LOSS: &str = "lost events";
/// The part that tells of the process, the machine, the job and its command.
const PROCESS: &str = "process";

/// The parts of a header whose checksum does not match.
#[derive(Default)]
struct Damage {
    parts: Vec<&'static str>,
}

impl Damage {
    fn note(&mut self, is_damaged: bool, part: &'static str) {
        if is_damaged && !self.parts.contains(&part) {
            self.parts.push(part);
        }
    }
}

fn devices(head: &[u8], damage: &mut Damage) -> Vec<Device> {
    let mut devices = Vec::new();
    for place in 0..MAX_DEVICES {
        let entry = &head[offset_of!(H, devices) + place * size_of::<DeviceEntry>()..][..size_of::<DeviceEntry>()];
        let limit = u64_at(head, offset_of!(H, limits) + place * size_of::<u64>());
        let check = u64_at(head, offset_of!(H, device_checks) + place * size_of::<u64>());
        if check == 0 {
            // The entry is not complete yet.
            damage.note(u32_at(entry, offset_of!(DeviceEntry, present)) == 1, "devices");
        } else if check != device_check(entry, limit) {
            // Nothing is known of this device.
            damage.note(true, "devices");
        } else {
            devices.push(Device {
                ordinal: u32_at(entry, offset_of!(DeviceEntry, ordinal)) as i32,
                total_memory: u64_at(entry, offset_of!(DeviceEntry, total_memory)),
                limit: (limit > 0).then_some(limit),
                limit_source: Bits::of_bits(u32_at(entry, offset_of!(DeviceEntry, limit_source)).into()),
                uuid: bytes_at(entry, offset_of!(DeviceEntry, uuid)),
                name: text(&bytes_at::<64>(entry, offset_of!(DeviceEntry, name))),
                physical: u32_at(entry, offset_of!(DeviceEntry, physical)).checked_sub(1),
                bus_id: known_text(&bytes_at::<16>(entry, offset_of!(DeviceEntry, bus_id))),
            });
        }
    }
    devices
}

/// The `NAME=value` texts in a field.
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
