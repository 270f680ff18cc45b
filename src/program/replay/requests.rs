//! The requests of a trace, in 24 bytes each, so that a trace of ten million requests is played from 230 MiB; and what serves
//! them.

use std::collections::HashMap;

use base::cuda::DriverError;
use foldhash::fast::RandomState;

/// How the job asked for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As `cuMemAlloc` or `cudaMalloc`: for any stream. The free waits for the work that uses the memory.
    Driver,
    /// As `vramshim_torch_alloc`: for this stream, if the trace names it. The free waits for nothing.
    Tensor(Option<u64>),
}

/// Which work may still use memory when the job frees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastUse {
    /// None, because the free waits for it.
    Awaited,
    /// Work of the stream of the allocation.
    Stream(u64),
    /// Work of the stream of the allocation, which is the first, and of another.
    TwoStreams(u64, u64),
    /// Work of any stream.
    Unknown,
}

/// A request of the job or a free. `id` names the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub id: u64,
    /// The time since the first request of the trace.
    pub at_ns: u64,
    pub action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `size` is in bytes.
    Allocate {
        size: u64,
        way: Way,
    },
    Free(LastUse),
}

impl Way {
    /// The last use of an allocation that no other stream has used.
    pub fn used_alone(self) -> LastUse {
        match self {
            Way::Driver => LastUse::Awaited,
            Way::Tensor(Some(stream)) => LastUse::Stream(stream),
            Way::Tensor(None) => LastUse::Unknown,
        }
    }
}

/// Serves the requests of a trace: a policy, a model of a framework's allocator, or the driver.
pub trait Allocator {
    /// Returns a handle for `size` bytes.
    fn allocate(&mut self, size: u64, way: Way) -> Result<u64, DriverError>;
    fn free(&mut self, handle: u64, last_use: LastUse);
}

/// The requests in their order.
#[derive(Debug, Default)]
pub struct Requests {
    packed: Vec<Packed>,
    /// The streams of the requests, each once: in some traces they are addresses.
    streams: Vec<u64>,
    places: HashMap<u64, u32, RandomState>,
}

#[derive(Clone, Copy, Debug)]
struct Packed {
    at_ns: u64,
    /// The bytes of an allocation; of a free the place of the second stream.
    value: u64,
    id: u32,
    /// The kind, and below it the place of the stream in `Requests::streams`.
    kind_and_stream: u32,
}

/// The bits of `kind_and_stream` that hold the place of the stream.
const STREAM_BITS: u32 = 29;
const STREAM: u32 = (1 << STREAM_BITS) - 1;

const OF_DRIVER: u32 = 0;
const TENSOR: u32 = 1;
const TENSOR_OF_STREAM: u32 = 2;
const FREE_AWAITED: u32 = 3;
const FREE_ON_STREAM: u32 = 4;
const FREE_ON_TWO: u32 = 5;
const FREE_UNKNOWN: u32 = 6;

impl Requests {
    pub fn len(&self) -> usize {
        self.packed.len()
    }

    pub fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }

    pub(super) fn reserve_exact(&mut self, more: usize) {
        self.packed.reserve_exact(more);
    }

    pub(super) fn push(&mut self, request: Request) {
        let packed = self.pack(request);
        self.packed.push(packed);
    }

    pub(super) fn insert(&mut self, index: usize, request: Request) {
        let packed = self.pack(request);
        self.packed.insert(index, packed);
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Request> + ExactSizeIterator {
        self.packed.iter().map(|packed| self.unpack(packed))
    }

    pub fn last(&self) -> Option<Request> {
        self.packed.last().map(|packed| self.unpack(packed))
    }

    /// Gives the requests times at equal distances.
    pub(super) fn space_evenly(&mut self, step_ns: u64) {
        for (request, number) in self.packed.iter_mut().zip(0..) {
            request.at_ns = number * step_ns;
        }
    }

    fn pack(&mut self, request: Request) -> Packed {
        let (kind, stream, value) = match request.action {
            Action::Allocate { size, way } => match way {
                Way::Driver => (OF_DRIVER, 0, size),
                Way::Tensor(None) => (TENSOR, 0, size),
                Way::Tensor(Some(stream)) => (TENSOR_OF_STREAM, self.place(stream), size),
            },
            Action::Free(LastUse::Awaited) => (FREE_AWAITED, 0, 0),
            Action::Free(LastUse::Stream(stream)) => (FREE_ON_STREAM, self.place(stream), 0),
            Action::Free(LastUse::TwoStreams(one, other)) => (FREE_ON_TWO, self.place(one), self.place(other).into()),
            Action::Free(LastUse::Unknown) => (FREE_UNKNOWN, 0, 0),
        };
        Packed {
            at_ns: request.at_ns,
            value,
            // So many requests would take 96 GiB.
            id: u32::try_from(request.id).unwrap_or(u32::MAX),
            kind_and_stream: kind << STREAM_BITS | stream,
        }
    }

    fn place(&mut self, stream: u64) -> u32 {
        let next = self.streams.len() as u32 & STREAM;
        *self.places.entry(stream).or_insert_with(|| {
            self.streams.push(stream);
            next
        })
    }

    fn unpack(&self, packed: &Packed) -> Request {
        let stream = |place: u32| self.streams.get(place as usize).copied().unwrap_or(0);
        let first = stream(packed.kind_and_stream & STREAM);
        let allocate = |way| Action::Allocate {
            size: packed.value,
            way,
        };
        Request {
            id: packed.id.into(),
            at_ns: packed.at_ns,
            action: match packed.kind_and_stream >> STREAM_BITS {
                OF_DRIVER => allocate(Way::Driver),
                TENSOR => allocate(Way::Tensor(None)),
                TENSOR_OF_STREAM => allocate(Way::Tensor(Some(first))),
                FREE_AWAITED => Action::Free(LastUse::Awaited),
                FREE_ON_STREAM => Action::Free(LastUse::Stream(first)),
                FREE_ON_TWO => Action::Free(LastUse::TwoStreams(first, stream(packed.value as u32))),
                _ => Action::Free(LastUse::Unknown),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_again() {
        let size = u64::MAX;
        let (one, other) = (0x7f00_1234_5678, 7);
        let actions = [
            Action::Allocate { size, way: Way::Driver },
            Action::Allocate {
                size,
                way: Way::Tensor(None),
            },
            Action::Allocate {
                size,
                way: Way::Tensor(Some(one)),
            },
            Action::Free(LastUse::Awaited),
            Action::Free(LastUse::Stream(other)),
            Action::Free(LastUse::TwoStreams(one, other)),
            Action::Free(LastUse::TwoStreams(other, one)),
            Action::Free(LastUse::Unknown),
        ];
        let mut requests = Requests::default();
        let expected = (1..).zip(actions).map(|(id, action)| Request {
            id,
            at_ns: id << 40,
            action,
        });
        let expected: Vec<Request> = expected.collect();
        expected.iter().skip(1).for_each(|&request| requests.push(request));
        requests.insert(0, expected[0]);
        assert_eq!(requests.iter().collect::<Vec<_>>(), expected);
        assert_eq!(size_of::<Packed>(), 24);
    }
}
