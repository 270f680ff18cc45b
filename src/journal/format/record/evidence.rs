//! Records that are written at a failure for lack of memory, and say what the device and its limit held then.

use base::shortage::{Refusal, Refuser};

use super::{MemInfo, RawRecord, flag, result_bits};

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

const BYTES_KNOWN: u8 = 1;
const GROUP: u8 = 1;
const RESULT_KNOWN: u8 = 1;

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
