//! What calls of the driver cost: a table of prices, and bills of calls.
//!
//! `prices.toml` is the only source of the figures; the simulated GPU includes it too (`src/simgpu/build`). A file of the
//! same form can replace the figures. `Prices` is the table, and `bill` counts calls and adds up their prices.

mod bill;

pub use bill::{Bill, Call};

const BUILT_IN: &str = include_str!("prices.toml");

const GIB: u64 = 1 << 30;
/// The sizes between which the price of access grows with the size of the handle.
const ACCESS_SMALL_BYTES: u64 = 2 << 20;
const ACCESS_LARGE_BYTES: u64 = 128 << 20;

/// No price is longer: 100 seconds.
const MOST_US: f64 = 1e8;

/// Makes the struct of the prices and the list of their names, so that no name can be left out of one of them.
macro_rules! prices {
    ($($name:ident)*) => {
        /// The prices of `prices.toml`.
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        struct Table {
            $($name: f64,)*
        }

        const NAMES: &[&str] = &[$(stringify!($name),)*];

        impl Table {
            fn rows(&self) -> Vec<(&'static str, f64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            fn price(&mut self, name: &str) -> Option<&mut f64> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }
        }
    };
}

prices! {
    create_us create_us_per_gib map_us access_us_small access_us_large unmap_us release_us
    release_us_per_gib allocate_us allocate_us_per_gib free_us free_us_per_gib reserve_us unreserve_us event_us
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices(Table);

impl Default for Prices {
    /// The prices of `prices.toml`.
    fn default() -> Self {
        let mut table = Table::default();
        // The tests of this crate read the file, so a build that passed them never fails here.
        read(BUILT_IN, &mut table).unwrap_or_else(|problem| panic!("prices.toml: {problem}"));
        Prices(table)
    }
}

/// Why a line of a table of prices cannot be read. The first field is the line's number.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum NoPrices {
    #[error("line {0}: {1:?} is no price: expected NAME = MICROSECONDS")]
    NoPrice(usize, String),
    #[error("line {0}: {1:?} is the name of no price: there is {names}", names = NAMES.join(", "))]
    UnknownName(usize, String),
    #[error("line {0}: {1} has a price already: leave one of them out")]
    Twice(usize, String),
    #[error("line {0}: {1} = {2:?} is no time in microseconds: expected 0 to {MOST_US}")]
    NoTime(usize, String, String),
}

impl Prices {
    /// Reads a table of prices. A name that the text leaves out keeps its price in `prices.toml`.
    pub fn parse(text: &str) -> Result<Prices, NoPrices> {
        let Prices(mut table) = Prices::default();
        read(text, &mut table)?;
        Ok(Prices(table))
    }

    pub fn rows(&self) -> Vec<(&'static str, f64)> {
        self.0.rows()
    }

    /// The price in nanoseconds of a call for `size` bytes. For access and unmap it is the price of one handle of this
    /// size in the range.
    pub fn price_ns(&self, call: Call, size: u64) -> u64 {
        let Prices(table) = self;
        let by_size = |base: f64, per_gib: f64| base + per_gib * (size as f64 / GIB as f64);
        let us = match call {
            Call::Create => by_size(table.create_us, table.create_us_per_gib),
            Call::Map => table.map_us,
            Call::SetAccess => table.access(size),
            Call::Unmap => table.unmap_us,
            Call::Release => by_size(table.release_us, table.release_us_per_gib),
            Call::Allocate => by_size(table.allocate_us, table.allocate_us_per_gib),
            Call::Free => by_size(table.free_us, table.free_us_per_gib),
            Call::Reserve => table.reserve_us,
            Call::Unreserve => table.unreserve_us,
            Call::RecordEvent | Call::QueryEvent => table.event_us,
        };
        (us * 1e3).round() as u64
    }
}

impl Table {
    fn access(&self, size: u64) -> f64 {
        let above = size.clamp(ACCESS_SMALL_BYTES, ACCESS_LARGE_BYTES) - ACCESS_SMALL_BYTES;
        let share = above as f64 / (ACCESS_LARGE_BYTES - ACCESS_SMALL_BYTES) as f64;
        self.access_us_small + (self.access_us_large - self.access_us_small) * share
    }
}

/// Reads lines `name = number` into `table`. `#` begins a comment.
fn read(text: &str, table: &mut Table) -> Result<(), NoPrices> {
    let mut seen = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let parts = line.split_once('=');
        let (name, value) = parts.ok_or_else(|| NoPrices::NoPrice(number, line.into()))?;
        let (name, value) = (name.trim(), value.trim());
        let price = table.price(name);
        let price = price.ok_or_else(|| NoPrices::UnknownName(number, name.into()))?;
        if seen.contains(&name) {
            return Err(NoPrices::Twice(number, name.into()));
        }
        seen.push(name);
        let us = value.parse().ok().filter(|us| (0.0..=MOST_US).contains(us));
        *price = us.ok_or_else(|| NoPrices::NoTime(number, name.into(), value.into()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_file_has_each_price_once() {
        let mut table = Table::default();
        read(BUILT_IN, &mut table).expect("prices.toml");
        for name in NAMES {
            let lines = BUILT_IN.lines().filter(|line| line.starts_with(&format!("{name} =")));
            assert_eq!(lines.count(), 1, "{name}");
        }
    }

    #[test]
    fn prices_by_hand() {
        let prices = Prices::default();
        let us = |call, size| prices.price_ns(call, size) as f64 / 1e3;
        assert_eq!(us(Call::Create, 1 << 30), 230.0);
        assert_eq!(us(Call::Map, 128 * MIB), 2.0);
        assert_eq!((us(Call::SetAccess, 1), us(Call::SetAccess, 2 * MIB)), (37.0, 37.0));
        assert_eq!(us(Call::SetAccess, 65 * MIB), 168.5);
        assert_eq!(
            (us(Call::SetAccess, 128 * MIB), us(Call::SetAccess, 1 << 40)),
            (300.0, 300.0)
        );
        assert_eq!((us(Call::Unmap, 1 << 30), us(Call::Release, 1 << 30)), (34.0, 24.0));
        assert_eq!((us(Call::Allocate, 1 << 29), us(Call::Free, 2 << 30)), (185.0, 260.0));
        assert_eq!((us(Call::Reserve, 1 << 40), us(Call::Unreserve, 1 << 40)), (2.0, 2.0));
        assert_eq!(prices.price_ns(Call::Allocate, u64::MAX), 60_000 + (250_000 << 34));
    }
}
