//! Records for the tests of this folder.

use base::api::Api;
use journal::format::{Allocation, Event, Record};

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
        reserved: Some(bytes),
        ..Allocation::linear(address, bytes, bytes, 1)
    }
}
