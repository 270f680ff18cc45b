//! Contexts die, and take their memory with them.

use crate::engine::pools::teardown::DetachedPool;
use crate::engine::state::ledger::{Allocation, Key};
use crate::engine::state::records::recorded;
use crate::engine::{Call, Engine};
use crate::next::{self, CUcontext, SUCCESS};
use base::api::{Api, Class};
use base::cuda::HOST_DEVICE;
use journal::format::Event;

/// A device's primary context, where it is active.
fn primary(device: i32) -> Option<CUcontext> {
    let (mut flags, mut active, mut context) = (0u32, 0i32, std::ptr::null_mut());
    // SAFETY: this frame's own values; the retain is given back at once.
    unsafe {
        if next::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) != SUCCESS || active == 0 {
            return None;
        }
        if next::cuDevicePrimaryCtxRetain(&mut context, device) != SUCCESS {
            return None;
        }
        next::cuDevicePrimaryCtxRelease_v2(device);
    }
    Some(context)
}

/// What was booked for a context, taken off the books.
struct Departed {
    allocations: Vec<(Key, Allocation)>,
    pool: Option<DetachedPool>,
}

impl Engine {
    /// Takes everything of a context off the books *before* the context goes: a moment after, its handle and its
    /// addresses may be somebody else's.
    fn depart(&self, context: u64, device: i16, api: Api, is_gone: impl Fn(&Allocation) -> bool) -> Departed {
        self.write(api, device, Event::ContextDestroyed { context });
        self.sharing.context_goes(context);
        let mut allocations = self.ledger.select(|_, allocation| is_gone(allocation));
        allocations.retain(|(key, _)| self.ledger.remove(*key).is_some());
        for (key, allocation) in &allocations {
            self.freed(self.claim(), api, *key, allocation, true);
        }
        Departed {
            allocations,
            pool: self.detach_pool(context, api),
        }
    }

    fn context_gone(&self, context: u64) {
        self.sharing.context_gone(context);
        self.peers.context_gone(context);
        self.captures.context_gone(context);
    }

    /// The context is gone, and with it what was booked for it.
    fn bury(&self, departed: Departed) {
        if let Some(pool) = departed.pool {
            self.bury_pool(pool);
        }
        for (_, allocation) in &departed.allocations {
            self.refund_allocation(allocation);
        }
    }

    /// The context is still there: puts everything back.
    fn stay(&self, departed: Departed, api: Api) {
        if let Some(pool) = departed.pool {
            self.attach_pool(pool, api);
        }
        for (key, allocation) in departed.allocations {
            self.ledger.insert(key, allocation);
            self.write(api, allocation.device, Event::Alloc(recorded(key, &allocation)));
        }
    }
}

impl Call {
    pub fn context_destroyed(&self, context: CUcontext, ask: impl FnOnce() -> i32) -> i32 {
        let context = context as u64;
        if context == 0 {
            return ask();
        }
        let device = self.engine.device_of(context);
        let _dying = self.engine.pools.begins_to_die(context);
        let departed = self
            .engine
            .depart(context, device, self.api(), |allocation| allocation.context == context);
        let result = ask();
        if result != SUCCESS {
            self.engine.stay(departed, self.api());
            return result;
        }
        self.engine.context_gone(context);
        self.engine.bury(departed);
        match device {
            // One that never had memory, of any device.
            HOST_DEVICE => self.engine.measure_all(),
            device => self.engine.measure(device),
        }
        result
    }

    /// A primary context was released (it lives on while others retain it) or reset.
    pub fn primary_released(&self, device: i32, ask: impl FnOnce() -> i32) -> i32 {
        let before = primary(device);
        let result = ask();
        if let (SUCCESS, Some(context), None) = (result, before, primary(device)) {
            let (context, device) = (context as u64, device as i16);
            // Stream-ordered memory belongs to the device, and goes with its primary context.
            let departed = self.engine.depart(context, device, self.api(), |allocation| {
                allocation.context == context || (allocation.class == Class::Async && allocation.device == device)
            });
            self.engine.context_gone(context);
            self.engine.bury(departed);
            self.engine.forget_stream_pools(device, self.api());
            self.engine.refresh_graphs(device, self.api());
            // Last: it asks the pools that are known, and those of the device are no more.
            self.engine.measure_last(device);
        }
        result
    }
}
