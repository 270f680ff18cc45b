//! `VRAMSHIM_SURGE`: how fast memory may grow before the library marks it.

use std::time::Duration;

/// Bytes, or a share of all memory of the device or the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Bytes(u64),
    Share(f64),
}

impl Amount {
    /// The bytes, of `all` bytes; `None` if those are not known and needed.
    pub fn of(self, all: u64) -> Option<u64> {
        match self {
            Amount::Bytes(bytes) => Some(bytes),
            Amount::Share(share) => (all > 0).then_some((all as f64 * share) as u64),
        }
    }
}

/// Growth that is a surge: by `to` within `within`, or from `from` or less to `to` within it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Surge {
    pub from: Option<Amount>,
    pub to: Amount,
    pub within: Duration,
}
