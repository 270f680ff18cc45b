//! The destruction of contexts, which takes their memory with them, and peer access: one device uses memory of another.

use crate::engine::call::driver_pools::Waited;
use crate::engine::pools::registry;
use crate::engine::pools::teardown::DetachedPool;
use crate::engine::state::allocation::{Allocation, Key};
use crate::engine::state::location::Location;
use crate::engine::state::records;
use crate::engine::{Call, Engine, enter_running, process};
use crate::next::{self, CUcontext, CUgreenCtx};
use base::api::{Api, Class};
use base::cuda::{CudaResult, DriverError, HOST_DEVICE, check};
use journal::format::Event;

/// What a context held when it was taken off the books.
struct Holdings {
    allocations: Vec<(Key, Allocation)>,
    pool: Option<DetachedPool>,
}

impl Engine {
    /// Takes what a context holds off the books *before* the context is destroyed. Right after that, its handle and its
    /// addresses may belong to another context. `lives`: it is not destroyed yet.
    fn take_off_books(
        &self,
        context: u64,
        lives: bool,
        device: i16,
        api: Api,
        belongs_to_it: impl Fn(&Allocation) -> bool,
    ) -> Holdings {
        let state = self.state;
        let destroyed = Event::ContextDestroyed { context };
        state.records.write(destroyed.encode(api, device));
        self.sharing.exports.context_closes(context);
        state.registrations.context_closes(context);
        let mut allocations = state.ledger.select(|_, allocation| belongs_to_it(allocation));
        allocations.retain(|(key, _)| state.ledger.remove_if(*key, &belongs_to_it).is_some());
        for (key, allocation) in &allocations {
            let record = records::freed(api, *key, allocation, true);
            state.records.write(record);
        }
        Holdings {
            allocations,
            pool: self.pools.detach(context, lives, api),
        }
    }

    /// The context is gone, and what it held with it.
    fn context_gone(&self, context: u64, holdings: Holdings) {
        self.sharing.imports.context_gone(context);
        self.state.peers.context_gone(context);
        self.state.captures.context_gone(context);
        self.state.live_streams.context_gone(context);
        if let Some(pool) = holdings.pool {
            self.pools.release_detached(pool);
        }
        for (_, allocation) in &holdings.allocations {
            self.state.refund(allocation);
        }
    }

    /// The context was not destroyed: puts what it holds back on the books.
    fn put_back(&self, holdings: Holdings, api: Api) {
        if let Some(pool) = holdings.pool {
            self.pools.attach(pool, api);
        }
        for (key, allocation) in holdings.allocations {
            self.state.ledger.insert(key, allocation);
            let record = records::obtained(api, key, &allocation);
            self.state.records.write(record);
        }
    }

    /// Gives the peers of a device access to all of its memory that the library has mapped.
    pub(super) fn allow_peers(&self, device: i16) {
        self.pools.allow_peers(device);
        self.sharing
            .imports
            .allow_peers(device, self.state.peers.with_access_to(device));
    }

    /// The device that a context holds memory of; `HOST_DEVICE` if it holds none.
    fn device_of(&self, context: u64) -> i16 {
        self.pools.device_of(context).unwrap_or_else(|| {
            let held = self.state.ledger.select(|_, allocation| allocation.context == context);
            held.iter()
                .map(|(_, allocation)| allocation.device)
                .find(|&device| device != HOST_DEVICE)
                .unwrap_or(HOST_DEVICE)
        })
    }
}

/// The job resets or releases a primary context, maybe before the engine runs. Another thread may start the engine and
/// allocate in the context before the driver ends it, so the books are looked at after the call again.
pub fn primary_released(api: Api, device: i32, ask: impl FnOnce() -> CudaResult) -> CudaResult {
    let is_decided = process::is_decided();
    if let Some(call) = enter_running(api) {
        return call.primary_released(device, ask);
    }
    if is_decided {
        // The library stays out of this process or of this call.
        return ask();
    }
    let _turn = next::primary::turn(device);
    let before = next::active_primary_context(device);
    ask()?;
    if let Some(call) = enter_running(api) {
        call.primary_may_be_gone(before, device);
    }
    Ok(())
}

impl Call {
    /// The current context may use memory of the context `peer` from now on, or no longer may. The driver may answer that it
    /// has access already, which the library need not have seen.
    pub fn peer_access(&self, peer: u64, may: bool, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let result = ask();
        if result.is_err() && (!may || result != Err(DriverError::PEER_ACCESS_ALREADY_ENABLED)) {
            return result;
        }
        if let Some(user) = Location::current() {
            let device = next::device_of_context(peer).unwrap_or(HOST_DEVICE);
            let context = next::owner_of(peer);
            let owner = Location { device, context };
            self.engine.state.peers.note(user, owner, may);
            if may {
                self.engine.allow_peers(device);
            }
        }
        result
    }

    /// The job waits for all work of a context; 0 is the current one.
    pub fn context_waits(&self, context: u64, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let (context, device) = match context {
            0 => {
                let context = next::current_context().map_or(0, |context| context as u64);
                (context, next::current_device().ok().map(|device| device as i16))
            }
            context => (context, None),
        };
        let waits = self.engine.pools.context_waits(context);
        let waited = Waited::Context(device);
        let result = self.engine.unmap_closed_after(context, || self.wait(waited, ask));
        if let Some(waits) = waits
            && result.is_ok()
        {
            waits.end();
        }
        result
    }

    pub fn context_destroyed(&self, context: CUcontext, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let context = context as u64;
        if context == 0 {
            return ask();
        }
        let engine = self.engine;
        let device = engine.device_of(context);
        let attached = engine.state.attachments.context_closes(context);
        let _closing = engine.pools.close_context(context);
        let belongs_to_it = |allocation: &Allocation| allocation.context == context;
        let holdings = engine.take_off_books(context, true, device, self.api(), belongs_to_it);
        if let Err(problem) = ask() {
            engine.state.attachments.attached(context, attached);
            engine.put_back(holdings, self.api());
            return Err(problem);
        }
        engine.context_gone(context, holdings);
        match device {
            // The context never had memory, so its device is not known.
            HOST_DEVICE => {
                let used = engine.state.measurements.used_devices();
                used.for_each(|device| engine.measure(device));
            }
            device => engine.measure_last(device),
        }
        Ok(())
    }

    /// The job attaches to its current context, which `attached_to` reads after success.
    pub fn context_attached(
        &self,
        ask: impl FnOnce() -> CudaResult,
        attached_to: impl FnOnce() -> CUcontext,
    ) -> CudaResult {
        let device = next::current_device();
        // No thread detaches between the driver's count and this one.
        let _turn = device.ok().and_then(next::primary::turn);
        ask()?;
        let context = attached_to();
        if device.ok().and_then(next::active_primary_context) != Some(context) {
            self.engine.state.attachments.attached(context as u64, 1);
        }
        Ok(())
    }

    /// The job gives up one reference to its current context. The last one takes the context with it.
    pub fn context_detached(&self, context: CUcontext, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let device = next::current_device();
        let _turn = device.ok().and_then(next::primary::turn);
        // Other code may have retained a primary context, so its references are not counted. After the call the driver is
        // asked whether the context lives on.
        if let Ok(device) = device
            && next::active_primary_context(device) == Some(context)
        {
            return self.primary_released(device, ask);
        }
        let attachments = &self.engine.state.attachments;
        if attachments.detaches(context as u64) {
            ask().inspect_err(|_| attachments.attached(context as u64, 1))
        } else {
            self.context_destroyed(context, ask)
        }
    }

    /// The job is about to create a green context. Its memory will belong to the primary context.
    pub fn green_created(&self, device: i32, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        next::note_green_contexts();
        self.primary_retained(device, ask)
    }

    /// The job destroys a green context. Its memory stays, unless the primary context goes with it. Its streams stay
    /// too, but no call takes them any more, except their destruction (cuda.h 13.5, `cuGreenCtxDestroy`). So they leave
    /// the lists before the call; if the call fails, they come back at their next use.
    pub fn green_destroyed(&self, green: CUgreenCtx, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: the green context is the job's own, and the pointer is to a variable of this frame.
        check(unsafe { next::cuCtxFromGreenCtx(&mut context, green) })?;
        let context = context as u64;
        let engine = self.engine;
        engine.state.live_streams.context_gone(context);
        match next::device_of_context(context) {
            Some(device) => self.primary_released(i32::from(device), ask)?,
            None => ask()?,
        }
        // The handle may be given to another context from now on.
        registry::next_generation();
        engine.state.captures.context_gone(context);
        engine.capture_ended();
        Ok(())
    }

    /// The job retains a primary context, which may make a new one.
    pub fn primary_retained(&self, device: i32, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let turn = next::primary::turn(device);
        let looked = self.engine.look_before_context(device);
        ask()?;
        if looked {
            self.engine.look_after_context(device as i16);
        }
        drop(turn);
        // The context takes memory, even if the job never allocates there.
        self.engine.note_device(device as i16);
        Ok(())
    }

    /// The job resets or releases a primary context. A released context lives on while other users retain it.
    pub fn primary_released(&self, device: i32, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let _turn = next::primary::turn(device);
        let before = next::active_primary_context(device);
        ask()?;
        self.primary_may_be_gone(before, device);
        Ok(())
    }

    /// After a release or a reset of a primary context that was active before; the thread has the device's turn.
    fn primary_may_be_gone(&self, before: Option<CUcontext>, device: i32) {
        if let Some(context) = before
            && !next::is_primary_active(device)
        {
            let (engine, api) = (self.engine, self.api());
            let (context, device) = (context as u64, device as i16);
            // Stream-ordered memory belongs to the device, and goes with its primary context.
            let holdings = engine.take_off_books(context, false, device, api, |allocation| {
                allocation.context == context || (allocation.class == Class::Async && allocation.device == device)
            });
            engine.context_gone(context, holdings);
            engine.stream_ordered.device_gone(engine.state, device, api);
            engine.refresh_graphs(device, api);
            engine.forget_lost_physical(device, api);
            // `measure_last` asks the driver's pools that the library knows. So it comes after `device_gone`, which makes
            // the library forget the pools of this device.
            engine.measure_last(device);
        }
    }
}
