//! `VRAMSHIM_HOST_GUARD`, read at the first request.

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Requests of more bytes are refused. 0 as long as the variable was not read, `NONE` if nothing is refused.
static BOUND: AtomicUsize = AtomicUsize::new(0);
const NONE: usize = usize::MAX;
const VARIABLE: &CStr = c"VRAMSHIM_HOST_GUARD";

/// Whether a request of this size is too large. Costs a load and a comparison.
#[inline(always)]
pub fn refuses(size: usize) -> bool {
    size > BOUND.load(Relaxed) && is_above(size)
}

/// The bound, for messages.
pub fn bytes() -> usize {
    BOUND.load(Relaxed)
}

#[cold]
fn is_above(size: usize) -> bool {
    let mut bound = BOUND.load(Relaxed);
    if bound == 0 {
        bound = match read() {
            Some(bound) => bound,
            // The loader asks for memory before the environment is there.
            None => return false,
        };
        BOUND.store(bound, Relaxed);
    }
    size > bound
}

/// `None` as long as there is no environment.
fn read() -> Option<usize> {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    // SAFETY: glibc defines the variable, and sets it before the process has a second thread.
    if unsafe { environ }.is_null() {
        return None;
    }
    // SAFETY: the name is a C string.
    let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if value.is_null() {
        return Some(NONE);
    }
    // SAFETY: `getenv` gives a C string, which nobody changes while the first requests are made.
    let value = unsafe { CStr::from_ptr(value) };
    // `vramshim run` refuses a text that is no size. Without it, such a text guards nothing.
    Some(
        value
            .to_str()
            .ok()
            .and_then(parse)
            .filter(|&bytes| bytes > 0)
            .unwrap_or(NONE),
    )
}

/// A size as the other variables have it (`base::units`), without allocating.
fn parse(text: &str) -> Option<usize> {
    const UNITS: [(&str, f64); 11] = [
        ("", 1.0),
        ("b", 1.0),
        ("kib", 1024.0),
        ("mib", 1048576.0),
        ("gib", 1073741824.0),
        ("tib", 1099511627776.0),
        ("kb", 1e3),
        ("mb", 1e6),
        ("gb", 1e9),
        ("tb", 1e12),
        ("bytes", 1.0),
    ];
    let text = text.trim();
    let end = text
        .find(|letter: char| letter.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let number: f64 = number.trim().parse().ok()?;
    let (_, factor) = UNITS.iter().find(|(name, _)| unit.trim().eq_ignore_ascii_case(name))?;
    let bytes = number * factor;
    // A conversion of a float saturates.
    (bytes >= 0.0 && bytes.is_finite()).then_some(bytes as usize)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_are_those_of_the_other_variables() {
        assert_eq!(parse("256GiB"), Some(256 << 30));
        assert_eq!(parse(" 1.5 KiB "), Some(1536));
        assert_eq!(
            (parse("2MB"), parse("1048576"), parse("0")),
            (Some(2_000_000), Some(1 << 20), Some(0))
        );
        for bad in ["", "GiB", "1XB", "-1GiB", "1e999", "NaN"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
