//! Stream captures, the streams that are captured, and memory that CUDA graphs hold. Allocation nodes take it when a graph is
//! launched, from a pool of the driver's own that only the device's graph attributes show.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::engine::state::captures::{is_capturing, relaxed};
use crate::engine::state::location::Location;
use crate::engine::state::{State, records};
use crate::engine::{Call, Engine};
use crate::next;
use base::api::{Api, Class};
use base::cuda::{CudaResult, DriverError, MAX_DEVICES};
use base::sync::lock;

/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT`
const USED_CURRENT: u32 = 0;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`
const RESERVED_CURRENT: u32 = 2;

#[derive(Default)]
pub struct GraphMemory {
    /// Set once a graph has an allocation node, so that other jobs pay nothing at their launches.
    is_used: AtomicBool,
    /// Bytes used and reserved, by device.
    held: Mutex<[(u64, u64); MAX_DEVICES]>,
}

fn graph_memory(device: i16, attribute: u32) -> Option<u64> {
    // SAFETY: the pointer is to a variable of `told`, of the type that these attributes have.
    let ask =
        |value: *mut u64| unsafe { next::cuDeviceGetGraphMemAttribute(i32::from(device), attribute, value.cast()) };
    relaxed(|| next::told(0, |value| ask(value))).ok()
}

impl GraphMemory {
    /// Asks the driver what the graphs of a device hold and books the difference. Returns whether there was one.
    pub(super) fn refresh(&self, state: &State, device: i16, api: Api) -> bool {
        if !self.is_used.load(Relaxed) {
            return false;
        }
        let mut held = lock(&self.held);
        let Some(before) = usize::try_from(device).ok().and_then(|index| held.get_mut(index)) else {
            return false;
        };
        let (Some(used), Some(reserved)) = (
            graph_memory(device, USED_CURRENT),
            graph_memory(device, RESERVED_CURRENT),
        ) else {
            return false;
        };
        if *before == (used, reserved) {
            return false;
        }
        state.ledger.graphs_use(device, before.0, used);
        state.driver_pools_hold(device, Class::Graph, before.1, reserved, None);
        *before = (used, reserved);
        let record = records::driver_pools(api, Class::Graph, device, reserved, used);
        state.records.write(record);
        true
    }
}

impl Engine {
    /// Books what the graphs of a device hold now.
    pub(in crate::engine) fn refresh_graphs(&'static self, device: i16, api: Api) {
        if self.graphs.refresh(self.state, device, api) {
            self.measure_if_due(device);
        }
    }
}

impl Call {
    /// A node that allocates is added to a graph.
    pub fn graph_allocates(&self) -> CudaResult {
        self.may_have_memory()?;
        self.engine.graphs.is_used.store(true, Relaxed);
        Ok(())
    }

    /// After a call that changes what graphs hold on a device; `None` if the thread has none.
    pub fn refresh_graphs(&self, device: Option<i16>, result: CudaResult) -> CudaResult {
        if let Some(device) = device {
            self.engine.refresh_graphs(device, self.api());
        }
        result
    }

    /// A launch obtains the memory of the graph's allocation nodes. If the device has too little, room is made as for
    /// any other request.
    pub fn graph_launched(&self, launch: impl Fn() -> CudaResult) -> CudaResult {
        let launch = || next::of_request(launch(), 0);
        let mut result = launch();
        let lacks_memory = |result: &CudaResult| *result == Err(DriverError::OUT_OF_MEMORY);
        let device = Location::current().map(|location| location.device);
        if lacks_memory(&result)
            && let Some(device) = device
        {
            result = self.engine.pools.find_room(device, 0, result, lacks_memory, launch);
        }
        self.refresh_graphs(device, result)
    }
}

impl Call {
    pub fn capture_begins(&self, stream: usize, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let captures = &self.engine.state.captures;
        captures.mark_used();
        self.engine.state.live_streams.note_before_capture(stream, captures);
        // Noted before the call, because no free may synchronise the context from the moment that the capture is open. If
        // the stream is capturing already, the driver refuses the call, and the stream goes on capturing.
        let (capture, is_new) = captures.begin(stream);
        let result = ask();
        match result {
            Ok(()) => {
                if !is_new {
                    captures.restore(stream, capture);
                }
                self.pool_gets_stream(stream);
            }
            Err(_) => {
                if is_new {
                    captures.end(stream);
                }
                self.capture_failed(None);
            }
        }
        result
    }

    /// A capture ends whatever the result, unless the stream goes on capturing. There is no graph if the capture was
    /// invalidated (cuda.h: "a NULL graph will be returned").
    pub fn capture_ends(&self, stream: usize, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let result = ask();
        if result.is_ok() || !is_capturing(stream) {
            self.engine.state.captures.end(stream);
            self.engine.capture_ended();
            if result.is_err() {
                self.capture_failed(Some(stream));
            }
        }
        result
    }

    pub fn stream_created(&self, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        self.engine.state.captures.any_stream_created.store(true, Relaxed);
        ask()
    }

    /// The capture of a stream goes with the stream. It leaves the list before the call, because right after it another
    /// stream may have the same handle.
    pub fn stream_destroyed(&self, stream: usize, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let captures = &self.engine.state.captures;
        self.engine.state.live_streams.stream_closes(stream);
        self.engine.stream_ordered.stream_closes(stream);
        let ended = captures.any_open().then(|| captures.end(stream)).flatten();
        let result = ask();
        if let Some(capture) = ended
            && result.is_err()
        {
            captures.restore(stream, capture);
        } else if ended.is_some() {
            self.engine.capture_ended();
        }
        result
    }
}

impl Engine {
    /// A capture has left the list. If it was the last one, what had to wait for the end of captures is done now.
    pub(super) fn capture_ended(&self) {
        if !self.state.captures.any_open() {
            self.unmap_closed();
            self.pools.captures_over();
        }
    }
}
