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
    match rest.strip_suffix("_v2") {
        Some(base) => Variant {
            base,
            generation: 2,
            per_thread,
        },
        None => Variant {
            base: rest,
            generation: 1,
            per_thread,
        },
    }
}
