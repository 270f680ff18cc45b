//! Stream-ordered memory: `cuMemAllocAsync` and the driver's own pools.
//!
//! The driver keeps these pools (`driver_pools`). What a pool has *reserved* is asked of it after each call that can
//! change it. Calls that synchronise are among them, because a pool gives memory back there.

use crate::engine::call::booking;
use crate::engine::call::driver_pools::{Place, Waited};
use crate::engine::call::linear::FreedPooled;
use crate::engine::call::refused_frees::{Freeing, Learning};
use crate::engine::process::running;
use crate::engine::state::allocation::Key;
use crate::engine::state::captures::is_capturing;
use crate::engine::state::limits::Grant;
use crate::engine::state::location::Location;
use crate::engine::{Call, Engine};
use crate::next::{self, CUmemoryPool, CUstream, STREAM_PER_THREAD};
use base::api::{Api, Class};
use base::cuda::{CudaResult, DriverError, HOST_DEVICE, MAX_DEVICES, check};
use journal::writer::Claim;
use quota::Refusal;

/// No driver is known to let a pool grow in larger steps than this to serve a request.
const POOL_STEP_BYTES: u64 = 32 << 20;

impl Engine {
    /// Books what the driver's pools have reserved now.
    pub(in crate::engine) fn refresh_pools(&self, api: Api) {
        self.stream_ordered.ask_all(self.state, api);
    }

    /// Charges what a pool may grow by to serve `size` bytes. If a limit does not allow that, pools first give back what
    /// they hold free.
    fn grant_to_pool(&'static self, device: i16, size: u64, api: Api) -> Result<Grant<'static>, Refusal> {
        let most = size.checked_next_multiple_of(POOL_STEP_BYTES).unwrap_or(size);
        self.grant(device, most).or_else(|_| {
            self.stream_ordered.trim(device);
            self.refresh_pools(api);
            self.grant(device, most)
        })
    }
}

/// Lets the driver's pools of a device give back what they hold free, for a request that they do not serve. Returns bytes,
/// with those that went back before and that were still on the books.
pub(super) fn trim_pools(device: i16) -> u64 {
    let Some(engine) = running() else { return 0 };
    let closed = engine.refund_closed_descriptors(device, Api::IdleRelease);
    if !engine.stream_ordered.is_used() {
        return closed;
    }
    let known = &engine.stream_ordered;
    let booked = known.reserved_on(device);
    engine.refresh_pools(Api::IdleRelease);
    let before = known.reserved_on(device).max(booked);
    known.trim(device);
    engine.refresh_pools(Api::IdleRelease);
    closed + before.saturating_sub(known.reserved_on(device))
}

impl Call {
    /// Notes a pool of the driver, on `device` if it is new. Returns the device that it is on.
    fn note_pool(&self, pool: CUmemoryPool, device: i16) -> i16 {
        let (device, is_new) = self.engine.stream_ordered.note(pool, device);
        if is_new && device != HOST_DEVICE {
            self.engine.pools.keep_driver_pools(device, trim_pools);
        }
        device
    }

    /// Books what the driver's pools have reserved now.
    pub(super) fn refresh_pools(&self) {
        self.engine.refresh_pools(self.api());
    }

    /// Runs `ask`, which changes a pool, then books what the pool has reserved.
    pub fn change_pool(&self, pool: CUmemoryPool, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let result = ask();
        let engine = self.engine;
        engine.stream_ordered.ask_one(engine.state, self.api(), pool, None);
        result
    }

    /// Runs `ask`, which waits for work, then books what pools have reserved that the wait can have changed.
    pub fn wait(&self, waited: Waited, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        ask()?;
        let engine = self.engine;
        engine.stream_ordered.waited(engine.state, self.api(), waited);
        Ok(())
    }

    /// `cuMemAllocAsync` and `cuMemAllocFromPoolAsync`. A null `pool` is the current pool of the stream's device;
    /// `address` reads what a successful `ask` wrote.
    pub fn allocate_async(
        &self,
        address: impl FnOnce() -> u64,
        size: usize,
        pool: CUmemoryPool,
        stream: usize,
        ask: impl Fn() -> CudaResult,
    ) -> CudaResult {
        if self.in_capture(stream) {
            // The call becomes a node of the captured graph, which allocates when the graph is launched.
            return self.graph_allocates().and_then(|()| ask());
        }
        self.stream.set(Some(stream));
        let is_explicit = !pool.is_null();
        let (pool, device) = self.pool_and_device(pool, stream);
        let charged = Location { device, context: 0 };
        // Before pools are trimmed for it.
        self.pass_guard(Class::Async, charged, size as u64)?;
        let Ok(mut grant) = self.engine.grant_to_pool(charged.device, size as u64, self.api()) else {
            let problem = DriverError::OUT_OF_MEMORY;
            self.failed(Class::Async, Some(charged), size as u64, problem, None);
            return Err(problem);
        };
        let known = &self.engine.stream_ordered;
        let learning = Learning::about_pools(is_explicit);
        let ask = || learning.watch(size as u64, &ask);
        let result = self.obtain(Class::Async, Some(charged), (size as u64, size as u64), ask, || {
            let address = address();
            known.obtained(address, pool, learning.learnt());
            // The reserved bytes are those of the driver's pool.
            let entry = booking::entry_elsewhere(Class::Async, charged, size as u64);
            (Key::Address(address), entry)
        });
        known.ask_one(self.engine.state, self.api(), pool, Some(&mut grant));
        result
    }

    /// The pool that a request goes to, and its device or `HOST_DEVICE`. A null pool is the current pool of the
    /// stream's device; it stays null if that is not known.
    fn pool_and_device(&self, pool: CUmemoryPool, stream: usize) -> (CUmemoryPool, i16) {
        let known = &self.engine.stream_ordered;
        let device = device_of_stream(stream);
        if !pool.is_null() {
            let device = match known.device_of(pool) {
                Some(device) => device,
                None => self.note_pool(pool, device_with(pool).unwrap_or(device)),
            };
            return (pool, device);
        }
        // SAFETY: the pointer is to a variable of `told`.
        let ask = |current: &mut CUmemoryPool| unsafe { next::cuDeviceGetMemPool(current, i32::from(device)) };
        match next::told(pool, ask) {
            Ok(current) => (current, self.note_pool(current, device)),
            Err(_) => (pool, device),
        }
    }

    fn in_capture(&self, stream: usize) -> bool {
        self.engine.state.captures.any_open() && is_capturing(stream)
    }

    pub fn free_async(&self, address: u64, stream: usize, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        if self.in_capture(stream) {
            return ask();
        }
        let claim = match self.free_block_in_order(address, stream) {
            FreedPooled::Done(result) => return result,
            FreedPooled::NotPooled(claim) => claim,
        };
        self.free_unpooled(address, Some(stream), claim, ask)
    }

    /// Frees memory that no pool of ours has, but a driver's may. `stream` is that of `cuMemFreeAsync`.
    pub(super) fn free_unpooled(
        &self,
        address: u64,
        stream: Option<usize>,
        claim: Option<Claim>,
        ask: impl FnOnce() -> CudaResult,
    ) -> CudaResult {
        let known = &self.engine.stream_ordered;
        // Before the free, because another thread may be given the same address right after it.
        let freed = known.freed(address, Place::of_stream(stream.unwrap_or(0)));
        let freeing = Freeing {
            address,
            stream: stream.map(|stream| stream as CUstream),
            is_charged: freed.is_charged(),
        };
        let result = self.give_back_claimed(claim, Key::Address(address), ask, |allocation, refusal| {
            freeing.after_refusal(allocation, refusal)
        });
        if result.is_err() {
            known.not_freed(address, freed);
        } else if let Some(pool) = freed.ended {
            known.ended(self.engine.state, self.api(), &pool);
        }
        result
    }

    /// A call by which a pool is made, found or set for a device, or for the host. `pool` reads what a successful `ask` wrote.
    pub fn pool_on(
        &self,
        device: Option<i16>,
        pool: impl FnOnce() -> CUmemoryPool,
        ask: impl FnOnce() -> CudaResult,
    ) -> CudaResult {
        ask()?;
        if let Some(device) = device {
            self.note_pool(pool(), device);
        }
        Ok(())
    }

    /// `cuMemPoolImportFromShareableHandle`: the process that shares the pool counts its memory.
    pub fn imports_pool(&self, pool: impl FnOnce() -> CUmemoryPool, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        ask()?;
        self.engine.stream_ordered.note_imported(pool());
        Ok(())
    }

    /// A destroyed pool takes its memory with it once its allocations are freed. Those still live stay on the ledger.
    pub fn destroy_pool(&self, pool: CUmemoryPool, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let engine = self.engine;
        engine.stream_ordered.destroy(engine.state, self.api(), pool, ask)
    }
}

/// The device of a stream; for the default streams, the device of the current context.
fn device_of_stream(stream: usize) -> i16 {
    let current = Location::current();
    let here = current.map_or(HOST_DEVICE, |location| location.device);
    if stream <= STREAM_PER_THREAD {
        return here;
    }
    let context = next::context_of_stream(stream);
    if context == 0 || current.is_some_and(|location| location.context == context) {
        return here;
    }
    next::device_of_context(context).unwrap_or(here)
}

/// The device whose default pool or current pool this is. The job created no such pool.
fn device_with(pool: CUmemoryPool) -> Option<i16> {
    (0..MAX_DEVICES as i16).find(|&device| {
        let mut own: [CUmemoryPool; 2] = [std::ptr::null_mut(); 2];
        // SAFETY: the pointers are to variables of this frame.
        let asked = unsafe {
            [
                check(next::cuDeviceGetDefaultMemPool(&mut own[0], i32::from(device))),
                check(next::cuDeviceGetMemPool(&mut own[1], i32::from(device))),
            ]
        };
        asked.contains(&Ok(())) && own.contains(&pool)
    })
}
