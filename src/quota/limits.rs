//! Parses the text of memory limits, such as the value of `VRAMSHIM_MEMORY_LIMIT`.
//!
//! `8GiB` or `50%` (of the device's total) holds for every device. `0=8GiB,1=50%` holds for the named devices, by the
//! number that the job gives a device or by its UUID. If several limits fit a device, the limit by UUID wins over the
//! limit by number, which wins over the limit for every device. 0 means no limit.

use std::fmt;

use base::units::{lacks_unit, parse_size};

/// An amount of device memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Bytes(u64),
    /// A share of the device's total, above 0 and at most 1.
    Share(f64),
}

impl Amount {
    /// Reads `8GiB`, `50%` or a number of bytes from 1 MiB on; `None` for any other text.
    fn parse(text: &str) -> Option<Amount> {
        match text.trim().strip_suffix('%') {
            Some(number) => {
                let percent: f64 = number.trim().parse().ok()?;
                (percent > 0.0 && percent <= 100.0).then_some(Amount::Share(percent / 100.0))
            }
            // A small number without a unit was most likely meant with one.
            None => parse_size(text).filter(|_| !lacks_unit(text)).map(Amount::Bytes),
        }
    }

    /// The amount in bytes on a device with `total` bytes; `None` if the amount means no limit.
    fn of(self, total: u64) -> Option<u64> {
        match self {
            Amount::Bytes(0) => None,
            Amount::Bytes(bytes) => Some(bytes),
            // 0 bytes would mean no limit, so the share is at least 1 byte.
            Amount::Share(share) => Some(((total as f64 * share) as u64).max(1)),
        }
    }
}

/// The limits of all devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// The limit of a device that the other two fields do not name.
    every: Option<Amount>,
    by_number: Vec<(u32, Amount)>,
    /// By UUID as NVML writes it, or by the first part of a UUID.
    by_uuid: Vec<(String, Amount)>,
}

impl Limits {
    /// Reads a list of limits; `None` if the text is no such list, or has two limits for one name.
    pub fn parse(text: &str) -> Option<Limits> {
        let mut limits = Limits::default();
        for part in text.split(',') {
            let Some((device, amount)) = part.split_once('=') else {
                let amount = Amount::parse(part)?;
                if limits.every.replace(amount).is_some() {
                    return None;
                }
                continue;
            };
            let (device, amount) = (device.trim(), Amount::parse(amount)?);
            let twice = if let Ok(number) = device.parse::<u32>() {
                let twice = limits.by_number.iter().any(|(other, _)| *other == number);
                limits.by_number.push((number, amount));
                twice
            } else if is_uuid(device) {
                let twice = limits.by_uuid.iter().any(|(other, _)| other == device);
                limits.by_uuid.push((device.to_owned(), amount));
                twice
            } else {
                return None;
            };
            if twice {
                return None;
            }
        }
        Some(limits)
    }

    /// Why a text is refused as a list of limits. `None` if the text has neither a limit above 100% nor two limits for one
    /// device: an amount that cannot be read needs no further reason.
    pub fn problem(text: &str) -> Option<String> {
        let mut seen = Vec::new();
        for part in text.split(',') {
            let (device, amount) = part.split_once('=').unwrap_or(("", part));
            let (device, amount) = (device.trim(), amount.trim());
            let percent = amount
                .strip_suffix('%')
                .and_then(|number| number.trim().parse::<f64>().ok());
            if percent.is_some_and(|percent| percent > 100.0) {
                return Some(format!("{amount} is more than the device; give at most 100%"));
            }
            // One device can be written as 0 and as 00.
            let name = device
                .parse::<u32>()
                .map_or_else(|_| device.to_owned(), |number| number.to_string());
            if seen.contains(&name) {
                return Some(match device {
                    "" => "it has two limits for every device; give one".to_owned(),
                    _ => format!("it has two limits for device {device}; give one"),
                });
            }
            seen.push(name);
        }
        None
    }

    /// The same limit for every device.
    pub fn every(bytes: u64) -> Limits {
        Limits {
            every: Some(Amount::Bytes(bytes)),
            ..Limits::default()
        }
    }

    /// All that the next layer shows of each device.
    pub fn whole_devices() -> Limits {
        Limits {
            every: Some(Amount::Share(1.0)),
            ..Limits::default()
        }
    }

    /// Whether the limit is all that the next layer shows of each device.
    pub fn are_whole_devices(&self) -> bool {
        *self == Limits::whole_devices()
    }

    pub fn limit_every(&mut self, bytes: u64) {
        self.every = Some(Amount::Bytes(bytes));
    }

    pub fn limit_number(&mut self, number: u32, bytes: u64) {
        self.by_number.push((number, Amount::Bytes(bytes)));
    }

    pub fn is_empty(&self) -> bool {
        *self == Limits::default()
    }

    /// The names of the devices that are limited by name.
    pub fn names(&self) -> Vec<Name<'_>> {
        let numbers = self.by_number.iter().map(|(number, _)| Name::Number(*number));
        let uuids = self.by_uuid.iter().map(|(uuid, _)| Name::Uuid(uuid));
        numbers.chain(uuids).collect()
    }

    /// The limit of a device in bytes. `number` is the job's number of the device; `None` if the number is not known.
    pub fn of(&self, number: Option<u32>, uuid: &str, total: u64) -> Option<u64> {
        let by_uuid = self.by_uuid.iter().find(|(name, _)| Name::Uuid(name).means(None, uuid));
        let by_number = || {
            let mut by_number = self.by_number.iter();
            by_number
                .find(|(name, _)| Name::Number(*name).means(number, uuid))
                .map(|(_, amount)| *amount)
        };
        by_uuid
            .map(|(_, amount)| *amount)
            .or_else(by_number)
            .or(self.every)?
            .of(total)
    }
}

/// How a limit names a device.
pub enum Name<'a> {
    Number(u32),
    Uuid(&'a str),
}

impl Name<'_> {
    /// Whether this name means the device that has `number` and `uuid`. `uuid` begins with `GPU-`.
    pub fn means(&self, number: Option<u32>, uuid: &str) -> bool {
        match self {
            Name::Number(name) => Some(*name) == number,
            // The first four characters (`GPU-`, `MIG-`) are not compared: `uuid` begins with `GPU-` for a MIG instance
            // too.
            Name::Uuid(name) => uuid
                .get(4..name.len())
                .is_some_and(|begin| begin.eq_ignore_ascii_case(&name[4..])),
        }
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Name::Number(number) => number.fmt(f),
            Name::Uuid(uuid) => uuid.fmt(f),
        }
    }
}

/// Whether the text can be a device's UUID or the first part of a UUID.
fn is_uuid(text: &str) -> bool {
    ["GPU-", "MIG-"].iter().any(|kind| {
        text.strip_prefix(kind).is_some_and(|rest| {
            !rest.is_empty() && rest.len() <= 36 && rest.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const UUID: &str = "GPU-3f2a0000-1111-2222-3333-444444444444";

    #[test]
    fn the_more_particular_limit_wins() {
        let limits = Limits::parse("8GiB, 1=50%, GPU-3F2a=2 GiB").unwrap();
        let other = "GPU-00000000-0000-0000-0000-000000000000";
        assert_eq!(limits.of(Some(0), other, 80 * GIB), Some(8 * GIB));
        assert_eq!(limits.of(Some(1), other, 80 * GIB), Some(40 * GIB));
        assert_eq!(limits.of(Some(1), UUID, 80 * GIB), Some(2 * GIB));
        assert_eq!(limits.of(None, other, 80 * GIB), Some(8 * GIB));
        assert_eq!(Limits::parse("MIG-3f2a=1GiB").unwrap().of(None, UUID, GIB), Some(GIB));
    }

    #[test]
    fn nothing_and_zero_are_no_limit() {
        assert_eq!(Limits::default().of(Some(0), UUID, GIB), None);
        let limits = Limits::parse("4GiB,0=0").unwrap();
        assert_eq!(
            (limits.of(Some(0), UUID, GIB), limits.of(Some(1), UUID, GIB)),
            (None, Some(4 * GIB))
        );
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        for bad in [
            "",
            "8 parsecs",
            "8",
            "-1",
            "0%",
            "101%",
            "nan%",
            "0=",
            "=8GiB",
            "x=8GiB",
            "0=1GiB,0=2GiB",
            "1GiB,2GiB",
            "GPU-=1GiB",
            "GPU-xyz=1GiB",
            "1GiB,",
            "50 %%",
        ] {
            assert_eq!(Limits::parse(bad), None, "{bad}");
        }
    }
}
