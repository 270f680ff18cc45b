//! Memory that graphs hold: allocation nodes take it when a graph is launched, from a pool of the driver's own that only
//! the device's graph attributes show.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::{Call, Engine, Place, lock};
use crate::next::{self, SUCCESS};
use base::api::{Api, Class};
use base::cuda::MAX_DEVICES;

/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT`
const USED_CURRENT: u32 = 0;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`
const RESERVED_CURRENT: u32 = 2;

#[derive(Default)]
pub struct GraphMemory {
    /// Set once a graph has an allocation node, so that other jobs pay nothing at their launches.
    used: AtomicBool,
    /// Bytes used and reserved, by device.
    held: Mutex<[(u64, u64); MAX_DEVICES]>,
}

impl GraphMemory {
    pub fn used(&self) {
        self.used.store(true, Ordering::Relaxed);
    }
}

impl Engine {
    /// Asks the driver what the graphs of a device hold and books the difference.
    pub fn refresh_graphs(&self, device: i16, api: Api) {
        if !self.graphs.used.load(Ordering::Relaxed) {
            return;
        }
        let ask = |attribute| {
            let mut value = 0u64;
            // SAFETY: a value of the size these attributes have.
            let asked =
                unsafe { next::cuDeviceGetGraphMemAttribute(i32::from(device), attribute, (&raw mut value).cast()) };
            (asked == SUCCESS).then_some(value)
        };
        let mut held = lock(&self.graphs.held);
        let Some(before) = usize::try_from(device).ok().and_then(|index| held.get_mut(index)) else {
            return;
        };
        let (Some(used), Some(reserved)) = (ask(USED_CURRENT), ask(RESERVED_CURRENT)) else {
            return;
        };
        if *before == (used, reserved) {
            return;
        }
        self.ledger.graph_used(device, before.0, used);
        self.pool_reserved(device, Class::Graph, before.1, reserved, None);
        *before = (used, reserved);
        self.pool_record(api, Class::Graph, device, reserved, used);
        self.saw_device(device);
    }
}

impl Call {
    /// A node that allocates was added to a graph.
    pub fn graph_allocates(&self) {
        self.engine.graphs.used();
    }

    /// After a call that changes what graphs hold on the current device.
    pub fn refresh_graphs(&self, result: i32) -> i32 {
        if let Some(place) = Place::current() {
            self.engine.refresh_graphs(place.device, self.api());
        }
        result
    }

    pub fn refresh_graphs_of(&self, device: i32, result: i32) -> i32 {
        self.engine.refresh_graphs(device as i16, self.api());
        result
    }
}
