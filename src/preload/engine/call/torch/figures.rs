//! The figures that PyTorch's own functions report (`torch.cuda.memory_stats` and what is made from it), for tensors
//! that this allocator served.
//!
//! The keys and their meaning are PyTorch's. A request of up to 1 MiB counts for the "small pool", a larger one for
//! the "large pool". Requests are rounded to 512 bytes, as PyTorch rounds them. A tensor is active until it is freed.
//! Reserved memory is that of the ledger, class linear: it includes what other code of the job allocated with
//! `cudaMalloc`. All of it counts for the large pool, because the library does not divide segments by size.
//!
//! Source: `c10/core/CachingDeviceAllocator.h` and `memory_stats` in `torch/cuda/memory.py`, PyTorch 2.12.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::engine::state::totals::{Counter, History, raise};
use base::cuda::MAX_DEVICES;
use base::sync::BriefMutex;

/// PyTorch's `kSmallSize`
const LARGEST_SMALL_BYTES: u64 = 1 << 20;
/// PyTorch's `kMinBlockSize`
const ROUNDING_BYTES: u64 = 512;

/// What is counted of each tensor.
const METRICS: usize = 3;
const COUNT: usize = 0;
const ALLOCATED: usize = 1;
const REQUESTED: usize = 2;

/// The size of a request as PyTorch counts it.
pub fn rounded(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(ROUNDING_BYTES).unwrap_or(bytes)
}

/// A statistic in PyTorch's words.
fn write(text: &mut String, history: &History) {
    let _ = write!(
        text,
        "{{\"current\":{},\"peak\":{},\"allocated\":{},\"freed\":{}}}",
        history.current, history.peak, history.added, history.removed
    );
}

/// The tensors of one device.
#[derive(Default)]
struct Tensors {
    /// Taken while a counter or a peak changes.
    changing: BriefMutex<()>,
    small: [Counter; METRICS],
    large: [Counter; METRICS],
    /// The peaks of small and large together.
    peaks: [AtomicU64; METRICS],
    out_of_memory: AtomicU64,
    /// The bytes that tensors may hold, plus 1; 0 if there is no such limit.
    allowed: AtomicU64,
}

impl Tensors {
    /// The counters of tensors of this size, and those of the others.
    #[inline]
    fn kinds(&self, rounded: u64) -> (&[Counter; METRICS], &[Counter; METRICS]) {
        if rounded <= LARGEST_SMALL_BYTES {
            (&self.small, &self.large)
        } else {
            (&self.large, &self.small)
        }
    }

    fn current(&self, metric: usize) -> u64 {
        self.small[metric].current() + self.large[metric].current()
    }

    fn stats(&self, metric: usize) -> [History; 3] {
        let (small, large) = (self.small[metric].read(), self.large[metric].read());
        let all = History {
            current: small.current + large.current,
            peak: self.peaks[metric].load(Relaxed),
            added: small.added + large.added,
            removed: small.removed + large.removed,
        };
        [all, small, large]
    }

    fn counters(&self) -> impl Iterator<Item = &Counter> {
        self.small.iter().chain(&self.large)
    }
}

pub struct Figures {
    /// By device. They are many, and the thread that starts the library may have a small stack.
    devices: Box<[Tensors]>,
}

impl Default for Figures {
    fn default() -> Self {
        Figures {
            devices: (0..MAX_DEVICES).map(|_| Tensors::default()).collect(),
        }
    }
}

impl Figures {
    fn device(&self, device: i32) -> Option<&Tensors> {
        self.devices.get(usize::try_from(device).ok()?)
    }

    /// Changes what is counted of a tensor of `bytes`: `change` gets the counter of its size, that of other sizes, their
    /// common peak, and the amount.
    #[inline(always)]
    fn change(&self, device: i32, bytes: u64, change: impl Fn(&Counter, &Counter, &AtomicU64, u64)) {
        let Some(tensors) = self.device(device) else { return };
        let rounded = rounded(bytes);
        let (kind, other) = tensors.kinds(rounded);
        let _changing = tensors.changing.lock();
        for (metric, amount) in [(COUNT, 1), (ALLOCATED, rounded), (REQUESTED, bytes)] {
            change(&kind[metric], &other[metric], &tensors.peaks[metric], amount);
        }
    }

    /// A tensor of `bytes` was allocated.
    #[inline]
    pub fn allocated(&self, device: i32, bytes: u64) {
        self.change(device, bytes, |kind, other, peak, amount| {
            raise(peak, kind.add(amount) + other.current());
        });
    }

    /// A tensor of `bytes` was freed.
    #[inline]
    pub fn freed(&self, device: i32, bytes: u64) {
        self.change(device, bytes, |kind, _, _, amount| kind.subtract(amount));
    }

    pub fn out_of_memory(&self, device: i32) {
        if let Some(tensors) = self.device(device) {
            tensors.out_of_memory.fetch_add(1, Relaxed);
        }
    }

    /// Limits what tensors may hold (`torch.cuda.set_per_process_memory_fraction`).
    pub fn allow(&self, device: i32, bytes: u64) {
        if let Some(tensors) = self.device(device) {
            tensors.allowed.store(bytes.saturating_add(1), Relaxed);
        }
    }

    /// The limit that a further tensor of `bytes` would exceed.
    #[inline]
    pub fn exceeds(&self, device: i32, bytes: u64) -> Option<u64> {
        let tensors = self.device(device)?;
        let allowed = tensors.allowed.load(Relaxed).checked_sub(1)?;
        let wanted = tensors.current(ALLOCATED).saturating_add(rounded(bytes));
        (wanted > allowed).then_some(allowed)
    }

    /// Bytes of all tensors of a device.
    pub fn allocated_now(&self, device: i32) -> u64 {
        self.device(device).map_or(0, |tensors| tensors.current(ALLOCATED))
    }

    /// Begins all peaks anew.
    pub fn reset_peaks(&self, device: i32) {
        let Some(tensors) = self.device(device) else { return };
        let _changing = tensors.changing.lock();
        tensors.counters().for_each(Counter::reset_peak);
        for (metric, peak) in tensors.peaks.iter().enumerate() {
            peak.store(tensors.current(metric), Relaxed);
        }
    }

    /// Begins all sums and counts of events anew.
    pub fn reset_sums(&self, device: i32) {
        let Some(tensors) = self.device(device) else { return };
        let _changing = tensors.changing.lock();
        tensors.counters().for_each(Counter::reset_sums);
        tensors.out_of_memory.store(0, Relaxed);
    }

    /// The answer to `torch._C._cuda_memoryStats` as JSON. The caller knows the figures of memory, which is not counted by
    /// tensor: the bytes and pieces that are reserved, and the free bytes inside segments.
    pub fn as_json(&self, device: i32, reserved: [History; 2], free_inside: u64) -> String {
        let unused = Tensors::default();
        self.device(device).unwrap_or(&unused).as_json(reserved, free_inside)
    }
}

/// The answer to `torch._C._cuda_memoryStats` before the engine runs.
pub fn no_torch_stats() -> String {
    Tensors::default().as_json(Default::default(), 0)
}

impl Tensors {
    fn as_json(&self, reserved: [History; 2], free_inside: u64) -> String {
        let [mut reserved, segments] = reserved;
        // Under passthrough the driver rounds each request, and only the driver knows to what. PyTorch's readers expect
        // that tensors fit into the reserved memory.
        let [tensors_hold, ..] = self.stats(ALLOCATED);
        reserved.current = reserved.current.max(tensors_hold.current);
        reserved.peak = reserved.peak.max(tensors_hold.peak);
        let free = History {
            current: free_inside,
            peak: free_inside,
            ..History::default()
        };
        // PyTorch's allocator asks a second time before it raises an error.
        let refused = self.out_of_memory.load(Relaxed);
        let undivided = |history: History| [history, History::default(), history];
        let mut text = format!(
            "{{\"num_alloc_retries\":{refused},\"num_ooms\":{refused},\"max_split_size\":-1,\"num_sync_all_streams\":0,\
             \"num_device_alloc\":{},\"num_device_free\":{},\"num_oom_rejections\":0",
            segments.added, segments.removed,
        );
        for (name, stats) in [
            ("allocation", self.stats(COUNT)),
            ("active", self.stats(COUNT)),
            ("allocated_bytes", self.stats(ALLOCATED)),
            ("active_bytes", self.stats(ALLOCATED)),
            ("requested_bytes", self.stats(REQUESTED)),
            ("reserved_bytes", undivided(reserved)),
            ("segment", undivided(segments)),
            ("inactive_split_bytes", undivided(free)),
            ("inactive_split", undivided(History::default())),
        ] {
            let _ = write!(text, ",\"{name}\":");
            for (open, part, history) in [
                ("{", "all", stats[0]),
                (",", "small_pool", stats[1]),
                (",", "large_pool", stats[2]),
            ] {
                let _ = write!(text, "{open}\"{part}\":");
                write(&mut text, &history);
            }
            text.push('}');
        }
        for name in ["oversize_allocations", "oversize_segments"] {
            let _ = write!(text, ",\"{name}\":");
            write(&mut text, &History::default());
        }
        text.push('}');
        text
    }
}
