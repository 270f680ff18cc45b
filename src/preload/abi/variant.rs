//! The names of driver functions, taken apart: version and per-thread-stream variant.

/// The parts of a name in the table: `cuMemAllocAsync_ptsz` is `cuMemAllocAsync`, generation 1, per thread.
pub struct Variant<'a> {
    pub base: &'a str,
    pub generation: u32,
    pub per_thread: bool,
}

pub fn variant(name: &str) -> Variant<'_> {
    let (rest, per_thread) = match name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")) {
        Some(rest) => (rest, true),
        None => (name, false),
    };
    let later = |suffix, generation| Some((rest.strip_suffix(suffix)?, generation));
    let (base, generation) = later("_v2", 2).or_else(|| later("_v3", 3)).unwrap_or((rest, 1));
    Variant {
        base,
        generation,
        per_thread,
    }
}
