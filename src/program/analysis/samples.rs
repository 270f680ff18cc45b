//! Records for the tests of this folder.

use base::api::{Api, Class};
use base::cuda::DriverError;
use journal::format::{Allocation, Event, Library, Record};

/// A record of `cudaMalloc` on device 0, without a stack.
pub fn record(time_ns: u64, event: Event) -> Record {
    Record {
        slot: time_ns,
        time_ns,
        tid: 1,
        api: Api::cudaMalloc.into(),
        device: 0,
        stack: 0,
        event,
    }
}

/// Linear memory that is as large as was asked for, on stream 1.
pub fn block(address: u64, bytes: u64) -> Allocation {
    Allocation {
        class: Class::Linear.into(),
        address,
        requested: bytes,
        allocated: bytes,
        reserved: Some(bytes),
        cache: Library::NotKnown,
        stream: 1,
    }
}

pub fn free(allocation: Allocation) -> Event {
    Event::Free {
        allocation,
        context_gone: false,
    }
}

/// A request of so many bytes that failed for lack of memory.
pub fn failed(requested: u64) -> Event {
    Event::AllocFailed {
        class: Class::Linear.into(),
        requested,
        result: DriverError::OUT_OF_MEMORY.0,
        over_limit: false,
        guard: None,
    }
}
