//! What PyTorch's own cache held when PyTorch last ran out of memory, from the record of `--torch record`. The journal
//! has PyTorch's segments; the tensors in them, and so the free memory between them, are known only from this record.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use journal::format::TensorLine;
use journal::reader::{Journal, TensorFile};

use super::floors::{Floors, Growth};
use super::space::Ranges;
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

#[derive(Default)]
struct Device {
    segments: Ranges,
    /// Addresses and lengths.
    tensors: BTreeMap<u64, u64>,
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
    Ok(clock.map(|tensors| last.by(&tensors)))
}

/// The last failure with PyTorch's own times, in microseconds since 1970; those of `growth` times 1,000.
struct Told {
    time_us: u64,
    cache: TorchCache,
    /// The largest free range across segments that touch.
    largest_across: u64,
}

impl Told {
    /// The failure with the times of the journal. PyTorch joins what it maps side by side, but not what it allocated.
    fn by(self, tensors: &Tensors) -> TorchCache {
        TorchCache {
            time_ns: tensors.time_ns(self.time_us),
            largest: match tensors.are_expandable() {
                true => self.largest_across,
                false => self.cache.largest,
            },
            growth: self.cache.growth.map(|growth| Growth {
                from_ns: tensors.time_ns(growth.from_ns / 1000),
                to_ns: tensors.time_ns(growth.to_ns / 1000),
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
            } => {
                let (segments, end) = (&mut self.of(device).segments, address.saturating_add(size));
                segments.cut(address, end);
                segments.insert(address, end);
            }
            // Of what it maps, PyTorch may unmap several segments at once, or a part of one.
            TensorLine::SegmentReturned {
                device, address, size, ..
            } => drop(self.of(device).segments.cut(address, address.saturating_add(size))),
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
                let gaps = gaps(&of_device.segments, &of_device.tensors);
                let mut joined = Ranges::default();
                gaps.iter().for_each(|&(start, end)| joined.insert_joined(start, end));
                let growth = of_device.floors.growth();
                let cache = TorchCache {
                    time_ns: 0,
                    device,
                    requested: size,
                    segments: of_device.segments.iter().map(length).sum(),
                    free: gaps.iter().copied().map(length).sum(),
                    largest: gaps.into_iter().map(length).max().unwrap_or(0),
                    growth,
                };
                self.last = Some(Told {
                    time_us,
                    cache,
                    largest_across: joined.iter().map(length).max().unwrap_or(0),
                });
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

/// The free ranges in segments, as start and end. None reaches from one segment into the next, but a tensor may.
fn gaps(segments: &Ranges, tensors: &BTreeMap<u64, u64>) -> Vec<(u64, u64)> {
    let mut tensors = tensors.iter().peekable();
    let (mut gaps, mut at) = (Vec::new(), 0u64);
    for (begin, end) in segments.iter() {
        at = at.max(begin);
        while let Some((&tensor, &size)) = tensors.next_if(|(tensor, _)| **tensor < end) {
            if tensor > at {
                gaps.push((at, tensor));
            }
            at = at.max(tensor.saturating_add(size));
        }
        if end > at {
            gaps.push((at, end));
            at = end;
        }
    }
    gaps
}

fn length((start, end): (u64, u64)) -> u64 {
    end - start
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
            allocated: None,
            pool: None,
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
    fn mapped_segments_are_given_back_in_other_pieces_than_they_came() {
        let (device, time_us) = (0, 0);
        let obtained = |address, size| TensorLine::SegmentObtained {
            time_us,
            device,
            address,
            size,
        };
        let returned = |address, size| TensorLine::SegmentReturned {
            time_us,
            device,
            address,
            size,
        };
        let mut reading = Reading::default();
        for line in [
            obtained(1000, 300),
            obtained(5000, 200),
            obtained(5200, 100),
            // The tensor lies in two mappings.
            TensorLine::Allocated {
                time_us,
                device,
                address: 5150,
                size: 100,
                stream: 0,
                stack: 0,
                allocated: None,
                pool: None,
            },
            returned(1100, 50),
            returned(5260, 40),
            TensorLine::OutOfMemory {
                time_us,
                device,
                size: 60,
                stack: 0,
            },
        ] {
            reading.apply(&line);
        }
        let last = reading.last.take().expect("a failure");
        assert_eq!((last.cache.segments, last.cache.free), (250 + 260, 250 + 150 + 10));
        assert_eq!((last.cache.largest, last.largest_across), (150, 150));

        for line in [
            TensorLine::Freed {
                time_us,
                device,
                address: 5150,
            },
            TensorLine::OutOfMemory {
                time_us,
                device,
                size: 60,
                stack: 0,
            },
            returned(5000, 260),
            returned(1000, 300),
            TensorLine::OutOfMemory {
                time_us,
                device,
                size: 70,
                stack: 0,
            },
        ] {
            reading.apply(&line);
            if let Some(Told {
                cache, largest_across, ..
            }) = &reading.last
            {
                let across = if cache.requested == 60 { 260 } else { 0 };
                assert_eq!(*largest_across, across);
                assert_eq!(cache.segments, if cache.requested == 60 { 510 } else { 0 });
            }
            reading.last.take();
        }
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
                    allocated: None,
                    pool: None,
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
