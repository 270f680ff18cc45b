//! What PyTorch's own cache held when PyTorch last ran out of memory, from the record of `--torch record`. The journal
//! has PyTorch's segments; the tensors in them, and so the free memory between them, are known only from this record.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use journal::format::TensorLine;
use journal::reader::TensorFile;

/// The cache of one device at a failure, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TorchCache {
    /// Microseconds since 1970.
    pub time_us: u64,
    pub device: i16,
    /// Free bytes in segments, and the largest free range.
    pub free: u64,
    pub largest: u64,
}

/// Addresses and lengths.
type Ranges = BTreeMap<u64, u64>;

#[derive(Default)]
struct Reading {
    /// By device: segments, and tensors.
    devices: BTreeMap<i16, (Ranges, Ranges)>,
    last: Option<TorchCache>,
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
    Ok(reading.last)
}

impl Reading {
    fn apply(&mut self, line: &TensorLine) {
        match *line {
            TensorLine::SegmentObtained {
                device, address, size, ..
            } => drop(self.of(device).0.insert(address, size)),
            TensorLine::SegmentReturned { device, address, .. } => drop(self.of(device).0.remove(&address)),
            TensorLine::Allocated {
                device, address, size, ..
            } => drop(self.of(device).1.insert(address, size)),
            TensorLine::Freed { device, address, .. } => drop(self.of(device).1.remove(&address)),
            TensorLine::OutOfMemory { time_us, device, .. } => {
                let (segments, tensors) = self.of(device);
                let (free, largest) = free_inside(segments, tensors);
                self.last = Some(TorchCache {
                    time_us,
                    device,
                    free,
                    largest,
                });
            }
            _ => {}
        }
    }

    fn of(&mut self, device: i16) -> &mut (Ranges, Ranges) {
        self.devices.entry(device).or_default()
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
        let last = reading.last.expect("a failure");
        assert_eq!((last.free, last.largest), (30 + 20 + 50, 50));
    }
}
