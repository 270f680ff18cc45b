//! All tuned numbers of `auto_growth`. None knows what the job did before.
//!
//! A figure is driver time at headrooms of 4, 1.3 and 1.1, relative to PyTorch's cache without shortage, summed over 20
//! recorded PyTorch jobs with the prices of an H200 (`scripts/frontier`). As they are: 0.62, 0.71, 0.90, and 10 of the 20
//! jobs fit at 1.03. Half or twice of a number changes that to what is said beside it.

/// Memory is short if the device has less than this part of its memory left. Then every free block serves every request,
/// which saves calls, and blocks that stay may pin large memory. 8: 0.75 at 1.3, 1.45 at 1.1,
/// and 9 fit at 1.03. 2: 0.68 at 1.3, and one job fits no more at 1.1.
pub const SHARE_IF_SHORT: u64 = 4;
/// Handles that requests share grow by at most this part of the headroom ... Larger steps cost fewer calls, and leave more
/// unused. 32: 0.77 at 1.3, and one job fits no more at 1.1.
pub const STEP_OF_HEADROOM: u64 = 16;
/// ... and of the reserved memory, because a small job shall not reserve much. 4: 0.55 at 4, and
/// one job fits no more at 1.1; 16: 0.72 at 4, and the same.
pub const STEP_OF_RESERVED: u64 = 8;
/// A large request gets handles of at most this part of the headroom. Smaller ones cost more calls and serve more stitches.
/// 4: 0.82 at 1.1, and 9 jobs fit at 1.03; 16: 1.36 at 1.1, and 13 jobs fit.
pub const HANDLE_OF_HEADROOM: u64 = 8;
/// A stitch must save this part of the headroom: it costs a call for each handle, and new memory costs one. 2: 0.69 at 1.3
/// and 0.86 at 1.1, where one job more fails if its sizes differ by 5%. 8: 0.80 at 1.3, 1.02 at 1.1, and 12 jobs fit at 1.03.
pub const SPARED_OF_HEADROOM: u64 = 4;
/// The most bytes of a small request, which is that of PyTorch's cache. Without small requests (12.9 MiB freed, 1 KiB kept) pins
/// 75% of what is free.
pub const LARGEST_SMALL: u64 = 1 << 20;
/// The most bytes of a middle one: above, a handle of its own costs hardly more than `cudaMalloc`. 8 MiB: 0.67 in place of
/// 0.61 at 4, in an earlier form.
pub const LARGEST_MIDDLE: u64 = 16 << 20;
/// A request gets at most about so many handles. If the device has refused a handle, the same memory is tried as so many, whose
/// sizes are powers of two, which fill what others leave. 256: 2% more time at 1.03, where half of the jobs fail.
pub const SPARING_HANDLES: u64 = 16;
/// A stitch is chosen by looking at all handles. For small requests, so many handles are looked at for each request, or
/// for some of them together; more memory comes in place of further stitches.
pub const LOOKS_PER_REQUEST: u64 = 16;
/// So many stitches are remembered in which no block is live. Each is looked at for a request that no free block serves,
/// which takes about 0.1 us.
pub const MOST_IDLE: usize = 2048;
/// So many of them are unmapped at once if there are too many.
pub const EVICTED: usize = 256;
/// After so many failures in a row of mapped memory, or of the first stitches, it is not tried again.
pub const FAILURES: u32 = 3;
