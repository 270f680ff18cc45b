//! Parses the text of memory limits, such as the value of `VRAMSHIM_MEMORY_LIMIT`.
//!
//! A size, in the dialect of who writes it, or a share: `8GiB` or `50%` (of the device's total) holds for every device. `0=8GiB,1=50%` holds for the named devices, by the
//! number that the job gives a device or by its UUID. If several limits fit a device, the limit by UUID wins over the
//! limit by number, which wins over the limit for every device. 0 means no limit.

use std::fmt;

use base::units::{Dialect, likely_size};

/// A limit below this was most likely meant with another unit: no context is smaller.
const LEAST_BYTES: u64 = 1 << 20;

/// An amount of memory of a device or the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Bytes(u64),
    /// A share of the whole, above 0 and at most 1.
    Share(f64),
}

/// Why a text is no list of limits.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// No further reason is needed.
    #[error("it cannot be read")]
    Unreadable,
    #[error("{0} is more than the device; give at most 100%")]
    MoreThanAll(String),
    #[error("{} is less than 1 MiB{}", .0, likely_size(.0).map_or(String::new(), |size| format!("; type {size}")))]
    TooSmall(String),
    #[error("it has two limits for {}; give one", .0.words())]
    Twice(Name),
}

impl Amount {
    /// Reads a size from 1 MiB on, 0, or a share such as `50%`.
    pub fn parse(text: &str, dialect: Dialect) -> Result<Amount, Refused> {
        let text = text.trim();
        let Some(number) = text.strip_suffix('%') else {
            return match dialect.parse(text).ok_or(Refused::Unreadable)? {
                1..LEAST_BYTES => Err(Refused::TooSmall(text.to_owned())),
                bytes => Ok(Amount::Bytes(bytes)),
            };
        };
        let percent: f64 = number.trim().parse().map_err(|_| Refused::Unreadable)?;
        if percent > 100.0 {
            return Err(Refused::MoreThanAll(text.to_owned()));
        }
        let share = (percent > 0.0).then_some(Amount::Share(percent / 100.0));
        share.ok_or(Refused::Unreadable)
    }

    /// The amount in bytes, of `total` bytes; a share is at least 1.
    pub fn bytes(self, total: u64) -> u64 {
        match self {
            Amount::Bytes(bytes) => bytes,
            Amount::Share(share) => ((total as f64 * share) as u64).max(1),
        }
    }
}

/// The limits of all devices, each under another name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits(Vec<(Name, Amount)>);

impl Limits {
    pub fn parse_in(dialect: Dialect, text: &str) -> Result<Limits, Refused> {
        let mut limits = Limits::default();
        for part in text.split(',') {
            let (name, amount) = match part.split_once('=') {
                Some((name, amount)) => (Name::parse(name.trim()).ok_or(Refused::Unreadable)?, amount),
                None => (Name::Every, part),
            };
            let amount = Amount::parse(amount, dialect)?;
            if limits.0.iter().any(|(other, _)| *other == name) {
                return Err(Refused::Twice(name));
            }
            limits.0.push((name, amount));
        }
        Ok(limits)
    }

    /// The same limit for every device.
    pub fn every(bytes: u64) -> Limits {
        Limits(vec![(Name::Every, Amount::Bytes(bytes))])
    }

    /// All that the next layer shows of each device.
    pub fn whole_devices() -> Limits {
        Limits(vec![(Name::Every, Amount::Share(1.0))])
    }

    pub fn add(&mut self, name: Name, bytes: u64) {
        self.0.push((name, Amount::Bytes(bytes)));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names of the devices that are limited by name.
    pub fn names(&self) -> Vec<Name> {
        let names = self.0.iter().map(|(name, _)| name.clone());
        names.filter(|name| *name != Name::Every).collect()
    }

    /// The limit of a device in bytes. `number` is the job's number of the device; `None` if the number is not known.
    pub fn of(&self, number: Option<u32>, uuid: &str, total: u64) -> Option<u64> {
        let fits = self.0.iter().filter(|(name, _)| name.means(number, uuid));
        let (_, amount) = fits.min_by_key(|(name, _)| match name {
            Name::Uuid(_) => 0,
            Name::Number(_) => 1,
            Name::Every => 2,
        })?;
        // 0 bytes mean no limit.
        Some(amount.bytes(total)).filter(|&bytes| bytes > 0)
    }
}

/// How a limit names a device.
#[derive(Clone, Debug, PartialEq)]
pub enum Name {
    Every,
    Number(u32),
    /// As NVML writes it, or the first part of it.
    Uuid(String),
}

impl Name {
    fn parse(text: &str) -> Option<Name> {
        if let Ok(number) = text.parse() {
            return Some(Name::Number(number));
        }
        let digits = text.strip_prefix("GPU-").or(text.strip_prefix("MIG-"))?;
        let is_digit = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
        (!digits.is_empty() && digits.len() <= 36 && digits.bytes().all(is_digit)).then(|| Name::Uuid(text.to_owned()))
    }

    fn words(&self) -> String {
        let device = if *self == Name::Every { "" } else { "device " };
        format!("{device}{self}")
    }

    /// Whether this name means the device that has `number` and `uuid`. `uuid` begins with `GPU-`.
    pub fn means(&self, number: Option<u32>, uuid: &str) -> bool {
        match self {
            Name::Every => true,
            Name::Number(name) => Some(*name) == number,
            Name::Uuid(name) => begins(name, uuid),
        }
    }
}

/// Whether `name` is a UUID or its first part. The first four characters (`GPU-`, `MIG-`) are not compared: `uuid` begins
/// with `GPU-` for a MIG instance too.
pub fn begins(name: &str, uuid: &str) -> bool {
    let begin = uuid.get(4..name.len());
    begin.is_some_and(|begin| begin.eq_ignore_ascii_case(&name[4..]))
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Name::Every => write!(f, "every device"),
            Name::Number(number) => number.fmt(f),
            Name::Uuid(uuid) => uuid.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_and_zero_are_no_limit() {
        assert_eq!(Limits::default().of(Some(0), "GPU-0", 1), None);
        let limits = Limits::parse_in(Dialect::Own, "4GiB,0=0").unwrap();
        let of = |number| limits.of(Some(number), "GPU-0", 1);
        assert_eq!((of(0), of(1)), (None, Some(4 << 30)));
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        let bad = "|8 parsecs|8|-1|0%|101%|nan%|0=|=8GiB|x=8GiB|0=1GiB,0=2GiB|1GiB,2GiB|GPU-=1GiB|GPU-xyz=1GiB|1GiB,|50 %%|0=1GiB,00=1GiB|8B|1=1023Ki";
        for bad in bad.split('|') {
            assert!(Limits::parse_in(Dialect::Own, bad).is_err(), "{bad}");
        }
    }
}
