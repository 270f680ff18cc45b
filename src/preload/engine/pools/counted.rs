//! Whether the next layer counts the physical memory that `auto_growth` creates.
//!
//! Some layers hook `cuMemAlloc`, but not `cuMemCreate` (HAMi-core before September 2025, nvshare, vcuda-controller), or
//! forward it without counting. If `auto_growth` mapped memory there, a job would get more than the layer allows.

use policy::device_memory::DeviceMemory;

/// Another process may give memory back at the same moment, and hide the first piece. It seldom hides a large one.
const LARGE_BYTES: u64 = 64 << 20;

/// Whether free memory, as the next layer tells it, falls when memory is created. If no memory can be created, the answer is
/// yes: what cannot be created escapes no limit. `free` asks the next layer for the free bytes of the device.
pub fn is_counted(memory: &impl DeviceMemory, free: impl Fn() -> Option<u64>, granularity: u64) -> bool {
    let falls_with = |size: u64| {
        let Some(before) = free() else { return true };
        let Ok(handle) = memory.create(size) else { return true };
        let after = free();
        // Memory that cannot be released stays charged, and goes with its context.
        let _ = memory.release(handle, size);
        after.is_none_or(|after| after + size / 2 <= before)
    };
    falls_with(granularity) || falls_with(LARGE_BYTES.next_multiple_of(granularity))
}
