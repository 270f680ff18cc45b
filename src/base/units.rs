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

/// Reads a size: a whole number of bytes, or a number with a binary (KiB) or decimal (KB) unit, which may have a
/// fraction. `None` for any other text, and for values that are negative or too large. Allocates nothing.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = (text[..unit_at].trim(), text[unit_at..].trim());
    const UNITS: [(&[&str], u64); 13] = [
        (&["", "b"], 1),
        (&["kib", "k"], 1 << 10),
        (&["mib", "m"], 1 << 20),
        (&["gib", "g"], 1 << 30),
        (&["tib", "t"], 1 << 40),
        (&["pib", "p"], 1 << 50),
        (&["eib", "e"], 1 << 60),
        (&["kb"], 1_000),
        (&["mb"], 1_000_000),
        (&["gb"], 1_000_000_000),
        (&["tb"], 1_000_000_000_000),
        (&["pb"], 1_000_000_000_000_000),
        (&["eb"], 1_000_000_000_000_000_000),
    ];
    let is_it = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(unit));
    let (_, scale) = *UNITS.iter().find(|(names, _)| is_it(names))?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale);
    }
    let bytes = number
        .parse::<f64>()
        .ok()
        .filter(|value| value.is_finite() && *value >= 0.0)?
        * scale as f64;
    (scale > 1 && bytes < u64::MAX as f64).then_some(bytes as u64)
}

/// How the parts of a sum are printed: all in one unit, and rounded so that the printed figures sum as the bytes do.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    unit: &'static str,
    /// Bytes of the unit.
    bytes: i128,
}

/// Rounds the parts of one sum, in their order.
pub struct RoundedParts {
    unit_bytes: i128,
    sum: i128,
}

impl Scale {
    /// The scale for a sum of this many bytes.
    pub fn of(sum: u64) -> Scale {
        let (unit, bytes) = match sum {
            0x1_0000_0000.. => ("GiB", 1i128 << 30),
            _ => ("MiB", 1 << 20),
        };
        Scale { unit, bytes }
    }

    pub fn unit(&self) -> &'static str {
        self.unit
    }

    pub fn parts(&self) -> RoundedParts {
        RoundedParts {
            unit_bytes: self.bytes,
            sum: 0,
        }
    }

    /// A figure of `RoundedParts`, or a sum of such figures.
    pub fn text(&self, figure: i128) -> String {
        format!("{:.2}", figure as f64 / 100.0)
    }
}

impl RoundedParts {
    /// The next part in hundredths of the unit. What rounding takes from one part, a later one gets.
    pub fn next(&mut self, bytes: i128) -> i128 {
        let rounded = |bytes: i128| (bytes * 100 + self.unit_bytes / 2).div_euclid(self.unit_bytes);
        let before = rounded(self.sum);
        let after = rounded(self.sum + bytes);
        self.sum += bytes;
        after - before
    }
}

/// Whether `text` is a bare number that was most likely meant with a unit: more than 0 and below 1 MiB, which no memory
/// of a GPU is.
pub fn lacks_unit(text: &str) -> bool {
    let number: Option<u64> = text.trim().parse().ok();
    number.is_some_and(|bytes| (1..1 << 20).contains(&bytes))
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
    fn a_small_bare_number_lacks_a_unit() {
        let lacking = ["24", " 8 ", "1048575"];
        assert!(lacking.iter().all(|text| lacks_unit(text)));
        let fine = ["0", "1048576", "8GiB", "24 B", "5k", "", "x"];
        assert!(!fine.iter().any(|text| lacks_unit(text)));
    }

    #[test]
    fn parts_are_rounded_so_that_they_sum() {
        let scale = Scale::of(80 << 30);
        let mut parts = scale.parts();
        let third = (80i128 << 30) / 3;
        let figures: Vec<i128> = (0..3).map(|_| parts.next(third)).collect();
        assert_eq!(scale.text(figures.iter().sum()), "80.00");
        assert_eq!(scale.text(figures[0]), "26.67");
        assert_eq!(scale.text(scale.parts().next(-1 << 30)), "-1.00");
        assert_eq!((scale.unit(), Scale::of(1 << 30).unit()), ("GiB", "MiB"));
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(parse_time("1.5ms"), Some(1_500_000));
        assert_eq!(
            (parse_time("2 s"), parse_time("7us")),
            (Some(2_000_000_000), Some(7_000))
        );
        assert_eq!((parse_time("0"), parse_time("3ns")), (Some(0), Some(3)));
        assert_eq!(parse_time("2m"), parse_time("2min"));
        assert_eq!(
            (parse_time("2m"), parse_time("0.5h")),
            (Some(120_000_000_000), Some(1_800_000_000_000))
        );
        for bad in ["", "5", "-1ms", "1 day", "ms", "1e30s", "nan s", "1 MS"] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
    }
}
