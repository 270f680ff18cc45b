//! What PyTorch's own cache held when PyTorch last ran out of memory, from the record of `--torch record`. The journal
//! has PyTorch's segments; the tensors in them, and so the free memory between them, are known only from this record.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use journal::format::TensorLine;
use journal::reader::{Journal, TensorFile};

use super::floors::{Floors, Growth};
use super::tensor_records::Tensors;

/// The cache of one device at a failure, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TorchCache {
    /// Nanoseconds since the journal began, by its clock.
    pub time_ns: u64,
    pub device: i16,
    /// Bytes that PyTorch asked for in vain.
    pub requested: u64,
    /// Bytes of segments.
    pub segments: u64,
    /// Free bytes in segments, and the largest free range.
    pub free: u64,
    pub largest: u64,
    /// Tensors that grew steadily up to the failure.
    pub growth: Option<Growth>,
}

impl TorchCache {
    /// The bytes of the segment that PyTorch wanted to obtain for the request. With them the segments would have exceeded
    /// its own limit (`get_allocation_size` in c10/cuda/CUDACachingAllocator.cpp, wheel 2.12).
    pub fn segment_asked(&self) -> u64 {
        const PAGE: u64 = 2 << 20;
        match self.requested {
            0..=0x10_0000 => PAGE,
            0x10_0001..0xa0_0000 => 20 << 20,
            bytes => bytes.checked_next_multiple_of(PAGE).unwrap_or(bytes),
        }
    }
}

/// Addresses and lengths.
type Ranges = BTreeMap<u64, u64>;

#[derive(Default)]
struct Device {
    segments: Ranges,
    tensors: Ranges,
    /// Bytes of `tensors`.
    live: u64,
    floors: Floors,
}

#[derive(Default)]
struct Reading {
    devices: BTreeMap<i16, Device>,
    last: Option<Told>,
}

/// The cache at the last failure that PyTorch recorded beside a journal; `None` if there is none.
pub fn at_last_failure(journal: &Path) -> io::Result<Option<TorchCache>> {
    let Some(mut file) = TensorFile::open(&TensorFile::beside(journal))? else {
        return Ok(None);
    };
    let mut reading = Reading::default();
    while let Some(line) = file.next_line()? {
        reading.apply(&line);
    }
    let Some(last) = reading.last else { return Ok(None) };
    let Ok(journal) = Journal::open(journal) else {
        return Ok(None);
    };
    let clock = Tensors::beside(&journal, &|_| ())?;
    Ok(clock.map(|clock| last.by(|time_us| clock.time_ns(time_us))))
}

/// The last failure with PyTorch's own times, in microseconds since 1970; those of `growth` times 1,000.
struct Told {
    time_us: u64,
    cache: TorchCache,
}

impl Told {
    /// The failure with the times that `time_ns` makes of PyTorch's.
    fn by(self, time_ns: impl Fn(u64) -> u64) -> TorchCache {
        TorchCache {
            time_ns: time_ns(self.time_us),
            growth: self.cache.growth.map(|growth| Growth {
                from_ns: time_ns(growth.from_ns / 1000),
                to_ns: time_ns(growth.to_ns / 1000),
                ..growth
            }),
            ..self.cache
        }
    }
}

impl Reading {
    fn apply(&mut self, line: &TensorLine) {
        match *line {
            TensorLine::SegmentObtained {
                device, address, size, ..
            } => drop(self.of(device).segments.insert(address, size)),
            TensorLine::SegmentReturned { device, address, .. } => drop(self.of(device).segments.remove(&address)),
            TensorLine::Allocated {
                time_us,
                device,
                address,
                size,
                ..
            } => self.of(device).changed(time_us, address, Some(size)),
            TensorLine::Freed {
                time_us,
                device,
                address,
            } => self.of(device).changed(time_us, address, None),
            TensorLine::OutOfMemory {
                time_us, device, size, ..
            } => {
                let of_device = self.of(device);
                let (free, largest) = free_inside(&of_device.segments, &of_device.tensors);
                let growth = of_device.floors.growth();
                let cache = TorchCache {
                    time_ns: 0,
                    device,
                    requested: size,
                    segments: of_device
                        .segments
                        .values()
                        .fold(0, |sum, size| sum.saturating_add(*size)),
                    free,
                    largest,
                    growth,
                };
                self.last = Some(Told { time_us, cache });
            }
            _ => {}
        }
    }

    fn of(&mut self, device: i16) -> &mut Device {
        self.devices.entry(device).or_default()
    }
}

impl Device {
    /// A tensor of this size came to the address, or the one that was there went.
    fn changed(&mut self, time_us: u64, address: u64, size: Option<u64>) {
        let before = match size {
            Some(size) => self.tensors.insert(address, size),
            None => self.tensors.remove(&address),
        };
        self.live = self
            .live
            .saturating_sub(before.unwrap_or(0))
            .saturating_add(size.unwrap_or(0));
        self.floors
            .note(self.live, time_us.saturating_mul(1000), size.is_none());
    }
}

/// The free bytes in segments, and the largest free range.
fn free_inside(segments: &Ranges, tensors: &Ranges) -> (u64, u64) {
    let (mut free, mut largest) = (0u64, 0);
    for (&begin, &size) in segments {
        let end = begin.saturating_add(size);
        let mut at = begin;
        let ends = tensors
            .range(begin..end)
            .map(|(&tensor, &size)| (tensor, tensor.saturating_add(size)));
        for (tensor, after) in ends.chain([(end, end)]) {
            let gap = tensor.saturating_sub(at);
            free = free.saturating_add(gap);
            largest = largest.max(gap);
            at = at.max(after.min(end));
        }
    }
    (free, largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gaps_between_tensors_are_free() {
        let mut reading = Reading::default();
        let segment = |address, size| TensorLine::SegmentObtained {
            time_us: 0,
            device: 0,
            address,
            size,
        };
        let tensor = |address, size| TensorLine::Allocated {
            time_us: 0,
            device: 0,
            address,
            size,
            stream: 0,
            stack: 0,
        };
        let failed = TensorLine::OutOfMemory {
            time_us: 9,
            device: 0,
            size: 60,
            stack: 0,
        };
        for line in [
            segment(1000, 100),
            segment(5000, 50),
            tensor(1000, 20),
            tensor(1050, 30),
            tensor(1020, 5),
            TensorLine::Freed {
                time_us: 0,
                device: 0,
                address: 1020,
            },
            failed,
        ] {
            reading.apply(&line);
        }
        let last = reading.last.expect("a failure").cache;
        assert_eq!((last.free, last.largest, last.growth), (30 + 20 + 50, 50, None));
        assert_eq!((last.requested, last.segments), (60, 150));
    }

    #[test]
    fn tensors_that_grow_are_seen_inside_the_segments() {
        let mut reading = Reading::default();
        for step in 0..200 {
            for (address, size) in [(step * 100, 10), (1_000_000, 50)] {
                reading.apply(&TensorLine::Allocated {
                    time_us: step,
                    device: 0,
                    address,
                    size,
                    stream: 0,
                    stack: 0,
                });
            }
            reading.apply(&TensorLine::Freed {
                time_us: step,
                device: 0,
                address: 1_000_000,
            });
        }
        reading.apply(&TensorLine::OutOfMemory {
            time_us: 300,
            device: 0,
            size: 60,
            stack: 0,
        });
        let growth = reading
            .last
            .unwrap()
            .cache
            .growth
            .expect("10 bytes are kept in each step");
        assert!((1000..=2000).contains(&growth.bytes), "{growth:?}");
        assert!(growth.from_ns < growth.to_ns && growth.to_ns <= 200_000, "{growth:?}");
    }
}
