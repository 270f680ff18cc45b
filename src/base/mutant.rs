//! Planted faults, which show that the tests find such faults (`scripts/torture --mutants`). They exist only in a build with
//! the feature `mutants`, which nothing that is installed has.

/// Whether this process has the fault of this number. VRAMSHIM_TEST_MUTANT chooses it.
#[cfg(feature = "mutants")]
pub fn is(number: u32) -> bool {
    static CHOSEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let choose = || std::env::var("VRAMSHIM_TEST_MUTANT").ok()?.parse().ok();
    *CHOSEN.get_or_init(|| choose().unwrap_or(0)) == number
}

/// No fault is built in.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is(_: u32) -> bool {
    false
}
