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
    let power = |letter: u8| (1..).zip(b"kmgtpe").find(|(_, one)| one.eq_ignore_ascii_case(&letter));
    let scale = match unit.as_bytes() {
        [] | [b'b' | b'B'] => 1,
        [letter] | [letter, b'i' | b'I', b'b' | b'B'] => 1024u64.pow(power(*letter)?.0),
        [letter, b'b' | b'B'] => 1000u64.pow(power(*letter)?.0),
        _ => return None,
    };
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
    fn times_need_a_unit() {
        let texts = ["0", "3ns", "7us", "1.5ms", "2 s", "2m", "2min", "0.5h"];
        let ns = [
            0,
            3,
            7_000,
            1_500_000,
            2_000_000_000,
            120_000_000_000,
            120_000_000_000,
            1_800_000_000_000,
        ];
        assert_eq!(texts.map(parse_time), ns.map(Some));
        for bad in ["", "5", "-1ms", "1 day", "ms", "1e30s", "nan s", "1 MS"] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
    }
}
