//! The free memory inside segments over time: how much, in which pieces.

use base::cuda::HOST_DEVICE;
use journal::format::{Event, Record};

use super::device_ledger::{DeviceLedger, Free};
use super::job::Observer;
use super::ledger::{Ledger, device_of};
use super::out_of_memory::is_out_of_memory;
use super::tally::Tally;

/// The free pieces between one power of two and the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    pub count: u64,
    pub bytes: u64,
}

/// A device at one moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub time_ns: u64,
    pub allocated: u64,
    pub reserved: u64,
    pub free: Free,
    /// Free pieces by the power of two below their length.
    pub pieces: Tally<u32, Pieces>,
    /// The request that failed at this moment.
    pub failed: Option<u64>,
}

impl Sample {
    pub fn of(ledger: &DeviceLedger, time_ns: u64) -> Sample {
        let gaps = ledger.space.gaps();
        let mut pieces = Tally::<u32, Pieces>::default();
        for &gap in &gaps {
            let pieces = pieces.of(gap.ilog2());
            pieces.count += 1;
            pieces.bytes += gap;
        }
        let bytes = ledger.free_bytes();
        Sample {
            time_ns,
            allocated: ledger.all.allocated.current,
            reserved: ledger.all.reserved.current,
            free: Free {
                bytes,
                largest: gaps.into_iter().max().unwrap_or(0).min(bytes),
            },
            pieces,
            failed: None,
        }
    }
}

/// Samples of each device at equal distances in time, and at the last failure for lack of memory.
pub struct Fragmentation {
    pub samples: Vec<(i16, Sample)>,
    pub failure: Option<(i16, Sample)>,
    slice_ns: u64,
    next_ns: u64,
    /// How many moments were sampled, and how many may be.
    moments: u64,
    most: u64,
}

impl Fragmentation {
    /// About `samples` samples for each device; up to twice as many if the job took longer than its header tells.
    pub fn new(duration_ns: u64, samples: u64) -> Fragmentation {
        let slice_ns = (duration_ns / samples.max(1)).max(1);
        Fragmentation {
            samples: Vec::new(),
            failure: None,
            slice_ns,
            next_ns: slice_ns,
            moments: 0,
            most: samples.max(1).saturating_mul(2),
        }
    }

    /// Keeps every second sample.
    fn thin_out(&mut self) {
        self.slice_ns = self.slice_ns.saturating_mul(2);
        self.samples
            .retain(|(_, sample)| sample.time_ns.is_multiple_of(self.slice_ns));
        self.moments /= 2;
    }
}

impl Observer for Fragmentation {
    fn before(&mut self, ledger: &Ledger, record: &Record) {
        if record.time_ns <= self.next_ns {
            return;
        }
        for (&device, of_device) in &ledger.devices {
            if device != HOST_DEVICE {
                self.samples.push((device, Sample::of(of_device, self.next_ns)));
            }
        }
        self.moments += 1;
        if self.moments > self.most {
            self.thin_out();
        }
        self.next_ns = (record.time_ns / self.slice_ns)
            .saturating_add(1)
            .saturating_mul(self.slice_ns);
    }

    fn after(&mut self, ledger: &Ledger, record: &Record) {
        let Event::AllocFailed { result, requested, .. } = record.event else {
            return;
        };
        let device = device_of(record);
        if is_out_of_memory(result)
            && let Some(of_device) = ledger.devices.get(&device)
        {
            let sample = Sample::of(of_device, record.time_ns);
            let failed = Some(requested);
            self.failure = Some((device, Sample { failed, ..sample }));
        }
    }
}
