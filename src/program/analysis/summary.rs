//! The figures of `torch.cuda.memory_summary()`, for any job.
//!
//! PyTorch serves requests of at most 1 MiB from a small pool, and all others from a large one. Here the size of the
//! request decides in the same way, and for segments their size: the small pool has segments of 2 MiB.

use base::cuda::HOST_DEVICE;
use journal::format::{Event, Record};

use super::job::Observer;
use super::ledger::{Ledger, device_of};
use super::tally::Tally;

/// The largest request of the small pool, in bytes.
const SMALL_REQUEST: u64 = 1 << 20;
/// The segments of the small pool, in bytes.
const SMALL_SEGMENT: u64 = 2 << 20;

/// One cell of the table in its four columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metric {
    pub current: u64,
    pub peak: u64,
    pub allocated: u64,
    pub freed: u64,
}

impl Metric {
    fn add(&mut self, amount: u64) {
        self.current = self.current.saturating_add(amount);
        self.allocated = self.allocated.saturating_add(amount);
        self.peak = self.peak.max(self.current);
    }

    fn subtract(&mut self, amount: u64) {
        self.current = self.current.saturating_sub(amount);
        self.freed = self.freed.saturating_add(amount);
    }

    fn set(&mut self, amount: u64) {
        match amount.checked_sub(self.current) {
            Some(more) => self.add(more),
            None => self.subtract(self.current - amount),
        }
    }
}

/// A metric of both pools, of the large one and of the small one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    pub all: Metric,
    pub large: Metric,
    pub small: Metric,
}

impl Pools {
    fn change(&mut self, is_small: bool, change: impl Fn(&mut Metric)) {
        change(&mut self.all);
        change(if is_small { &mut self.small } else { &mut self.large });
    }
}

/// The table of one device.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceSummary {
    pub allocated: Pools,
    pub requested: Pools,
    pub allocations: Pools,
    pub reserved: Metric,
    /// Pieces of memory that were obtained from the driver: segments, and requests that the driver served itself.
    pub segments: Pools,
    /// Free bytes inside segments.
    pub free_inside: Metric,
    /// Requests that failed for lack of memory, repetitions included.
    pub out_of_memory: u64,
}

#[derive(Default)]
pub struct Summary {
    pub devices: Tally<i16, DeviceSummary>,
}

impl Observer for Summary {
    fn after(&mut self, ledger: &Ledger, record: &Record) {
        let device = device_of(record);
        let Some(of_device) = ledger.devices.get(&device) else {
            return;
        };
        if device == HOST_DEVICE {
            return;
        }
        if let Some(gone) = ledger.gone().filter(|gone| gone.counts()) {
            let summary = self.devices.of(gone.device);
            let small = gone.size <= SMALL_REQUEST;
            summary
                .allocated
                .change(small, |metric| metric.subtract(gone.allocated));
            summary.requested.change(small, |metric| metric.subtract(gone.size));
            summary.allocations.change(small, |metric| metric.subtract(1));
            if gone.reserved > 0 {
                summary.segments.change(small, |metric| metric.subtract(1));
            }
        }
        let summary = self.devices.of(device);
        match record.event {
            Event::Alloc(allocation) if allocation.class.known().is_some_and(|class| class.is_device_memory()) => {
                let small = allocation.requested <= SMALL_REQUEST;
                summary
                    .allocated
                    .change(small, |metric| metric.add(allocation.allocated));
                summary
                    .requested
                    .change(small, |metric| metric.add(allocation.requested));
                summary.allocations.change(small, |metric| metric.add(1));
                if allocation.reserved.is_some_and(|reserved| reserved > 0) {
                    summary.segments.change(small, |metric| metric.add(1));
                }
            }
            Event::SegmentAlloc { size, again: false, .. } => {
                summary.segments.change(size <= SMALL_SEGMENT, |metric| metric.add(1));
            }
            Event::SegmentFree { size, again: false, .. } => {
                summary
                    .segments
                    .change(size <= SMALL_SEGMENT, |metric| metric.subtract(1));
            }
            Event::AllocFailed { result, .. } if super::out_of_memory::is_out_of_memory(result) => {
                summary.out_of_memory += 1;
            }
            _ => {}
        }
        summary.reserved.set(of_device.all.reserved.current);
        summary.free_inside.set(of_device.free_bytes());
    }
}
