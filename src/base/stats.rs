//! The totals that the library answers with. `shim.h` has the same struct for C.

/// `struct vramshim_stats`: one device, or the host as device -1. Bytes, except for the counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub requested: u64,
    pub requested_peak: u64,
    pub allocated: u64,
    pub allocated_peak: u64,
    pub reserved: u64,
    pub reserved_peak: u64,
    /// Free inside our segments, and the largest free block there.
    pub free_inside: u64,
    pub largest_free_block: u64,
    pub live: u64,
    pub failures: u64,
}
