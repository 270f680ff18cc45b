//! Sizes in bytes and times as people write and read them, for example `1.50 GiB` and `20ms`.

/// The least bound of the host guard. A smaller one would refuse what every program needs to start.
pub const LEAST_HOST_GUARD_BYTES: u64 = 1 << 20;

/// A size with a binary unit. From 1 KiB on it has at least three significant digits.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // A value that would be printed as 1024.0 gets the next unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if value < 10.0 { 2 } else { 1 };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// How a text writes a size. Each reader of sizes has its dialect; docs/limits.md compares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Options and variables of vramshim: `8GiB`, `8Gi` and `8G` are one size, and `8GB` is 8 x 10^9 bytes.
    Own,
    /// Quantities of Kubernetes (`resource.Quantity`): `8G` and `8e9` are 8 x 10^9 bytes, and `m` is a thousandth, which is
    /// refused. `8GiB` and `8GB` are read as in `Own`.
    Kubernetes,
    /// As HAMi-core reads it (`get_limit_from_env` in its `multiprocess_memory_limit.c`): the whole number at the beginning,
    /// times the unit if the last character is K, M or G. So `1.5g` is 1 GiB there, and `2gb` are 2 bytes.
    HamiCore,
    /// As vgpu-manager reads it (`iec_to_bytes` in its `util.c`): the number at the beginning, times the unit if the next
    /// character is K, M, G or T. What follows is not read, so `2gb` and `2GiB` are 2 GiB.
    VgpuManager,
}

impl Dialect {
    /// Reads a size in bytes. `None` for any other text, and for values that are negative or too large. Allocates nothing.
    pub fn parse(self, text: &str) -> Option<u64> {
        use Dialect::{HamiCore, Kubernetes, VgpuManager};
        let text = text.trim();
        let is_behind_number = |c: char| match self {
            HamiCore => !c.is_ascii_digit(),
            VgpuManager => !c.is_ascii_digit() && c != '.',
            _ => c.is_ascii_alphabetic(),
        };
        let (number, unit) = text.split_at(text.find(is_behind_number).unwrap_or(text.len()));
        let power = |base: u64, letter: u8, letters: &[u8]| {
            let at = letters.iter().position(|one| *one == letter)?;
            Some(base.pow(at as u32 + 1))
        };
        let scale = match (self, unit.trim().as_bytes()) {
            (_, [] | [b'b' | b'B']) => 1,
            (HamiCore, [.., last]) => power(1024, last.to_ascii_lowercase(), b"kmg").unwrap_or(1),
            (VgpuManager, [first, ..]) => power(1024, first.to_ascii_lowercase(), b"kmgt").unwrap_or(1),
            (Kubernetes, [letter]) => power(1000, *letter, b"kMGTPE")?,
            (Kubernetes, [letter, b'i']) => power(1024, *letter, b"KMGTPE")?,
            (Kubernetes, [b'e' | b'E', b'0'..=b'9' | b'+', ..]) => 10u64.checked_pow(unit.trim()[1..].parse().ok()?)?,
            (_, [letter] | [letter, b'i' | b'I'] | [letter, b'i' | b'I', b'b' | b'B']) => {
                power(1024, letter.to_ascii_lowercase(), b"kmgtpe")?
            }
            (_, [letter, b'b' | b'B']) => power(1000, letter.to_ascii_lowercase(), b"kmgtpe")?,
            _ => return None,
        };
        let number = number.trim();
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale);
        }
        let value: f64 = number.parse().ok()?;
        // Half a byte is no size, and not 0, which is no limit. vgpu-manager takes it for none.
        let bytes = value * scale as f64;
        let is_size = bytes >= 1.0 || (value == 0.0 && value.is_sign_positive()) || self == VgpuManager && bytes > 0.0;
        ((scale > 1 || self == VgpuManager) && is_size && bytes < u64::MAX as f64).then_some(bytes as u64)
    }
}

/// Reads a size of an option or a variable of vramshim (`Dialect::Own`).
pub fn parse_size(text: &str) -> Option<u64> {
    Dialect::Own.parse(text)
}

/// The size that a bare number was most likely meant to be, if it is more than 0 and below 1 MiB, which no memory of a GPU
/// is. No GPU has 512 GiB.
pub fn likely_size(text: &str) -> Option<String> {
    let number: u64 = text.trim().parse().ok()?;
    let unit = if number < 512 { "GiB" } else { "MiB" };
    (1..1 << 20).contains(&number).then(|| format!("{number}{unit}"))
}

/// What is wrong with a small number without a unit.
pub fn lacks_unit(size: &str) -> Option<String> {
    let (number, likely) = (size.trim(), likely_size(size)?);
    let unit = &likely[number.len()..];
    Some(format!(
        "{number} is {number} bytes; type {likely} for {unit}, or {number}B if you mean bytes"
    ))
}

/// Reads a time: a number with a unit (`ns`, `us`, `ms`, `s`, `min` or `m`, `h`), or 0. Returns nanoseconds; `None` for any
/// other text, and for values that are negative or too large.
pub fn parse_time(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let number: f64 = text[..unit_at].trim().parse().ok()?;
    let scale_ns = match text[unit_at..].trim() {
        "" if number == 0.0 => 1.0,
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" | "m" => 60e9,
        "h" => 3600e9,
        _ => return None,
    };
    let ns = number * scale_ns;
    (0.0..1e18).contains(&ns).then_some(ns.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_and_without_units() {
        assert_eq!(parse_size("4096"), Some(4096));
        assert_eq!(parse_size("1.5GiB"), Some(3 << 29));
        assert_eq!(parse_size("2 GB"), Some(2_000_000_000));
        for units in 0..7 {
            let bytes = 1 << (10 * units);
            assert_eq!(parse_size(&size(bytes)), Some(bytes), "what is printed can be read");
        }
        for bad in ["", "-1", "1.5", "GiB", "5 parsecs", "1e30GiB", "99999999999TiB", "nan"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }

    #[test]
    fn each_dialect_has_its_own_letters() {
        use Dialect::{HamiCore, Kubernetes, Own, VgpuManager};
        const GB: Option<u64> = Some(1_000_000_000);
        const GIB: Option<u64> = Some(1 << 30);
        // What Own, Kubernetes, HAMi-core and vgpu-manager make of it.
        for (text, bytes) in [
            ("1Gi", [GIB, GIB, Some(1), GIB]),
            ("1G", [GIB, GB, GIB, GIB]),
            ("1GB", [GB, GB, Some(1), GIB]),
            ("1GiB", [GIB, GIB, Some(1), GIB]),
            ("1g", [GIB, None, GIB, GIB]),
            ("1024m", [GIB, None, GIB, GIB]),
            ("1024Mi", [GIB, GIB, Some(1024), GIB]),
            ("1.5Gi", [Some(3 << 29), Some(3 << 29), Some(1), Some(3 << 29)]),
            (
                "2gb",
                [Some(2_000_000_000), Some(2_000_000_000), Some(2), Some(2 << 30)],
            ),
            ("1e9", [None, GB, Some(1), Some(1)]),
            ("1e99", [None, None, Some(1), Some(1)]),
            ("1e+7", [None, Some(10_000_000), Some(1), Some(1)]),
            // Neither is 0, which is no limit.
            ("-0Gi", [None; 4]),
            ("0.0000000001Gi", [None, None, Some(0), Some(0)]),
            ("0.5", [None, None, Some(0), Some(0)]),
            ("2t", [Some(2 << 40), None, Some(2), Some(2 << 40)]),
            ("2000", [Some(2000); 4]),
            ("1K", [Some(1024), None, Some(1024), Some(1024)]),
            ("1k", [Some(1024), Some(1000), Some(1024), Some(1024)]),
            ("1E", [Some(1 << 60), Some(10u64.pow(18)), Some(1), Some(1)]),
            ("one", [None; 4]),
        ] {
            let read = [Own, Kubernetes, HamiCore, VgpuManager].map(|dialect| dialect.parse(text));
            assert_eq!(read, bytes, "{text}");
        }
    }

    #[test]
    fn a_small_bare_number_lacks_a_unit() {
        let likely = ["24", " 8 ", "2000", "1048575"].map(likely_size);
        assert_eq!(likely.map(Option::unwrap), ["24GiB", "8GiB", "2000MiB", "1048575MiB"]);
        for fine in ["0", "1048576", "8GiB", "24 B", "5k", "", "x"] {
            assert_eq!(likely_size(fine), None, "{fine}");
        }
    }

    #[test]
    fn times_need_a_unit() {
        let rows = "0=0, 3ns=3, 7us=7000, 1.5ms=1500000, 2 s=2000000000, \
                    2m=120000000000, 2min=120000000000, 0.5h=1800000000000";
        for row in rows.split(", ") {
            let (text, ns) = row.split_once('=').unwrap();
            assert_eq!(parse_time(text), Some(ns.parse().unwrap()), "{text}");
        }
        for bad in ["", "5", "-1ms", "1 day", "ms", "1e30s", "nan s", "infs", "1 MS"] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
    }
}
