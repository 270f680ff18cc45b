//! What PyTorch's own cache held when PyTorch last ran out of memory, from the record of `--torch record`. The journal
//! has PyTorch's segments; the tensors in them, and so the free memory between them, are known only from this record.

use super::floors::Growth;
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
    /// The largest free range across segments that touch.
    pub(super) largest_across: u64,
    /// Tensors that grew steadily up to the failure.
    pub growth: Option<Growth>,
}

impl TorchCache {
    /// With PyTorch's own times: `time_ns` and those of `growth` count from 1970. `gaps`: the free ranges.
    pub(super) fn at(
        time_us: u64,
        device: i16,
        requested: u64,
        segments: &Ranges,
        gaps: Vec<(u64, u64)>,
        growth: Option<Growth>,
    ) -> TorchCache {
        let mut joined = Ranges::default();
        gaps.iter().for_each(|&(start, end)| joined.insert_joined(start, end));
        TorchCache {
            time_ns: time_us.saturating_mul(1000),
            device,
            requested,
            segments: segments.iter().map(length).sum(),
            free: gaps.iter().copied().map(length).sum(),
            largest: gaps.into_iter().map(length).max().unwrap_or(0),
            largest_across: joined.iter().map(length).max().unwrap_or(0),
            growth,
        }
    }

    /// The same with the times of the journal. PyTorch joins what it maps side by side, but not what it allocated.
    pub(super) fn by_clock_of(self, tensors: &Tensors) -> TorchCache {
        let time_ns = |unix_ns: u64| tensors.time_ns(unix_ns / 1000);
        TorchCache {
            time_ns: time_ns(self.time_ns),
            largest: if tensors.are_expandable() {
                self.largest_across
            } else {
                self.largest
            },
            growth: self.growth.map(|growth| Growth {
                from_ns: time_ns(growth.from_ns),
                to_ns: time_ns(growth.to_ns),
                ..growth
            }),
            ..self
        }
    }

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

pub(super) fn length((start, end): (u64, u64)) -> u64 {
    end - start
}
