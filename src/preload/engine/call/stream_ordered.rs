//! Stream-ordered memory: `cuMemAllocAsync` and the driver's own pools.
//!
//! The driver keeps these pools. What a pool has *reserved* is asked of it after each call that can change it. Calls that
//! synchronise are among them, because a pool gives memory back there.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::call::booking;
use crate::engine::state::allocation::{Allocation, Key};
use crate::engine::state::captures::is_capturing;
use crate::engine::state::limits::Grant;
use crate::engine::state::location::Location;
use crate::engine::state::{State, records};
use crate::engine::{Call, Engine};
use crate::next::{self, CUmemLocation, CUmemPoolProps, CUmemoryPool, CUstream, LOCATION_DEVICE, STREAM_PER_THREAD};
use base::api::{Api, Class};
use base::cuda::{CudaResult, DriverError, HOST_DEVICE, MAX_DEVICES, check};
use base::sync::lock;
use quota::Refusal;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`
const RESERVED_CURRENT: u32 = 5;
/// No driver is known to let a pool grow in larger steps than this to serve a request.
const POOL_STEP_BYTES: u64 = 32 << 20;

/// What is known of the driver's own pools.
#[derive(Default)]
pub struct StreamOrdered {
    /// Set once a pool is known, so that a job without pools pays nothing at its synchronisations.
    is_used: AtomicBool,
    pools: Mutex<HashMap<u64, DriverPool>>,
}

#[derive(Clone, Copy)]
struct DriverPool {
    /// `HOST_DEVICE` for a pool of host memory, and for managed memory without a preferred location.
    device: i16,
    /// Another process has the pool's memory. It is known, and not counted here.
    is_imported: bool,
    /// Bytes.
    reserved: u64,
}

/// Bytes that the known pools of a device have reserved together.
fn reserved_on(pools: &HashMap<u64, DriverPool>, device: i16) -> u64 {
    pools
        .values()
        .filter(|pool| pool.device == device)
        .map(|pool| pool.reserved)
        .sum()
}

impl StreamOrdered {
    /// Notes a pool, on `device` if it is new. Returns the device that it is on.
    fn note(&self, pool: CUmemoryPool, device: i16) -> i16 {
        self.is_used.store(true, Ordering::Relaxed);
        lock(&self.pools)
            .entry(pool as u64)
            .or_insert(DriverPool {
                device,
                is_imported: false,
                reserved: 0,
            })
            .device
    }

    /// Notes a pool that another process shares.
    fn note_imported(&self, pool: CUmemoryPool) {
        let imported = DriverPool {
            device: HOST_DEVICE,
            is_imported: true,
            reserved: 0,
        };
        lock(&self.pools).insert(pool as u64, imported);
    }

    /// The device of a pool that is known.
    fn device_of(&self, pool: CUmemoryPool) -> Option<i16> {
        lock(&self.pools).get(&(pool as u64)).map(|pool| pool.device)
    }

    /// Asks every known pool what it has reserved and books the difference. Growth of a device is paid first from what
    /// was `granted` for it.
    fn refresh(&self, state: &State, api: Api, mut granted: Option<(i16, &mut Grant)>) {
        if !self.is_used.load(Ordering::Relaxed) {
            return;
        }
        let mut pools = lock(&self.pools);
        let mut changed = HashSet::new();
        for (&handle, pool) in pools.iter_mut().filter(|(_, pool)| !pool.is_imported) {
            let mut now = 0u64;
            let out = (&raw mut now).cast();
            // SAFETY: the pool was not destroyed, and the value has the type of this attribute.
            let asked = check(unsafe { next::cuMemPoolGetAttribute(handle as CUmemoryPool, RESERVED_CURRENT, out) });
            if asked.is_ok() && now != pool.reserved {
                let grant = match &mut granted {
                    Some((device, grant)) if *device == pool.device => Some(&mut **grant),
                    _ => None,
                };
                state.driver_pools_hold(pool.device, Class::Async, pool.reserved, now, grant);
                pool.reserved = now;
                changed.insert(pool.device);
            }
        }
        for device in changed {
            Self::record(state, api, device, reserved_on(&pools, device));
        }
    }

    fn record(state: &State, api: Api, device: i16, size: u64) {
        let record = records::driver_pools(api, Class::Async, device, size, size);
        state.records.write(record);
    }

    /// Lets the pools of a device give back what they hold free.
    fn trim(&self, device: i16) {
        let pools = lock(&self.pools);
        for (&handle, _) in pools.iter().filter(|(_, pool)| pool.device == device) {
            // SAFETY: the pool was not destroyed.
            unsafe { next::cuMemPoolTrimTo(handle as CUmemoryPool, 0) };
        }
    }

    /// The pools of a device went with its primary context.
    pub fn device_gone(&self, state: &State, device: i16, api: Api) {
        let mut pools = lock(&self.pools);
        let before = reserved_on(&pools, device);
        pools.retain(|_, pool| pool.device != device);
        drop(pools);
        if before > 0 {
            state.driver_pools_hold(device, Class::Async, before, 0, None);
            Self::record(state, api, device, 0);
        }
    }

    /// Destroys a pool by `ask`. The lock is held through the call, so that no other thread asks a pool that is being
    /// destroyed.
    fn destroy(&self, state: &State, api: Api, pool: CUmemoryPool, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let mut pools = lock(&self.pools);
        ask()?;
        if let Some(gone) = pools.remove(&(pool as u64)) {
            state.driver_pools_hold(gone.device, Class::Async, gone.reserved, 0, None);
            Self::record(state, api, gone.device, reserved_on(&pools, gone.device));
        }
        Ok(())
    }
}

impl Engine {
    /// Books what the driver's pools have reserved now.
    pub(in crate::engine) fn refresh_pools(&self, api: Api) {
        self.stream_ordered.refresh(self.state, api, None);
    }

    /// Charges what a pool may grow by to serve `size` bytes. If a limit does not allow that, pools first give back what
    /// they hold free.
    fn grant_to_pool(&self, device: i16, size: u64, api: Api) -> Result<Grant<'static>, Refusal> {
        let most = size.checked_next_multiple_of(POOL_STEP_BYTES).unwrap_or(size);
        self.grant(device, most).or_else(|_| {
            self.stream_ordered.trim(device);
            self.refresh_pools(api);
            self.grant(device, most)
        })
    }
}

impl Call {
    /// Books what the driver's pools have reserved now.
    pub(super) fn refresh_pools(&self) {
        self.engine.refresh_pools(self.api());
    }

    /// Runs `ask`, then books what the driver's pools have reserved.
    pub fn then_refresh(&self, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let result = ask();
        self.refresh_pools();
        result
    }

    /// `cuMemAllocAsync` and `cuMemAllocFromPoolAsync`. A null `pool` is the current pool of the stream's device;
    /// `address` reads what a successful `ask` wrote.
    pub fn allocate_async(
        &self,
        address: impl FnOnce() -> u64,
        size: usize,
        pool: CUmemoryPool,
        stream: CUstream,
        capture_status: impl Fn(*mut u32) -> CudaResult,
        ask: impl Fn() -> CudaResult,
    ) -> CudaResult {
        if self.in_capture(capture_status) {
            // The call becomes a node of the captured graph, which allocates when the graph is launched.
            self.engine.graphs.mark_used();
            return ask();
        }
        let charged = Location {
            device: self.device_of_pool(pool, stream),
            context: 0,
        };
        let Ok(mut grant) = self.engine.grant_to_pool(charged.device, size as u64, self.api()) else {
            self.failed(Class::Async, Some(charged), size as u64, DriverError::OUT_OF_MEMORY);
            return Err(DriverError::OUT_OF_MEMORY);
        };
        let result = self.obtain(Class::Async, Some(charged), size as u64, ask, || {
            // The reserved bytes are those of the driver's pool.
            let allocation = Allocation {
                allocated: size as u64,
                ..booking::entry(Class::Async, charged, size as u64, 0)
            };
            (Key::Address(address()), allocation)
        });
        let granted = Some((charged.device, &mut grant));
        self.engine
            .stream_ordered
            .refresh(self.engine.state, self.api(), granted);
        result
    }

    /// The device of the pool that a request goes to, or `HOST_DEVICE`. A null pool is the current pool of the stream's
    /// device.
    fn device_of_pool(&self, pool: CUmemoryPool, stream: CUstream) -> i16 {
        let known = &self.engine.stream_ordered;
        let device = device_of_stream(stream);
        if !pool.is_null() {
            return match known.device_of(pool) {
                Some(device) => device,
                None => known.note(pool, device_with(pool).unwrap_or(device)),
            };
        }
        let mut current = std::ptr::null_mut();
        // SAFETY: the pointer is to a variable of this frame.
        match check(unsafe { next::cuDeviceGetMemPool(&mut current, i32::from(device)) }) {
            Ok(()) => known.note(current, device),
            Err(_) => device,
        }
    }

    fn in_capture(&self, capture_status: impl Fn(*mut u32) -> CudaResult) -> bool {
        self.engine.state.captures.any_open() && is_capturing(capture_status)
    }

    pub fn free_async(
        &self,
        address: u64,
        capture_status: impl Fn(*mut u32) -> CudaResult,
        ask: impl FnOnce() -> CudaResult,
    ) -> CudaResult {
        if self.in_capture(capture_status) {
            return ask();
        }
        if self.engine.pools.is_pooled(address) {
            // To the job this is not stream-ordered memory. The next layer must not free it either.
            let result = Err(DriverError::INVALID_VALUE);
            self.free_failed(None, Key::Address(address), result);
            return result;
        }
        let result = self.free_direct(Key::Address(address), ask);
        self.refresh_pools();
        result
    }

    /// # Safety
    /// `out` is null or writable, `properties` null or readable.
    pub unsafe fn create_pool(&self, out: *mut CUmemoryPool, properties: *const CUmemPoolProps) -> CudaResult {
        // SAFETY: the job's own arguments go to the function that the job called.
        check(unsafe { next::cuMemPoolCreate(out, properties) })?;
        if !out.is_null() && !properties.is_null() {
            // SAFETY: both are readable after success.
            let (pool, device) = unsafe { (*out, device_at(&raw const (*properties).location)) };
            self.engine.stream_ordered.note(pool, device);
        }
        Ok(())
    }

    /// `cuMemGetDefaultMemPool` and `cuMemGetMemPool`: a pool that the job did not create, of a device or of the host.
    ///
    /// # Safety
    /// `out` is null or writable, `location` null or readable.
    pub unsafe fn gets_pool(
        &self,
        out: *mut CUmemoryPool,
        location: *const CUmemLocation,
        ask: impl FnOnce() -> CudaResult,
    ) -> CudaResult {
        ask()?;
        if !out.is_null() && !location.is_null() {
            // SAFETY: both are readable after success.
            let (pool, device) = unsafe { (*out, device_at(location)) };
            self.engine.stream_ordered.note(pool, device);
        }
        Ok(())
    }

    /// `cuMemSetMemPool`: the pool's location is the one that is named.
    ///
    /// # Safety
    /// `location` is null or readable.
    pub unsafe fn sets_pool(
        &self,
        pool: CUmemoryPool,
        location: *const CUmemLocation,
        ask: impl FnOnce() -> CudaResult,
    ) -> CudaResult {
        ask()?;
        if !location.is_null() {
            // SAFETY: by contract.
            let device = unsafe { device_at(location) };
            self.engine.stream_ordered.note(pool, device);
        }
        Ok(())
    }

    /// `cuMemPoolImportFromShareableHandle`: the process that shares the pool counts its memory.
    ///
    /// # Safety
    /// `out` is null or writable.
    pub unsafe fn imports_pool(&self, out: *mut CUmemoryPool, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        ask()?;
        if !out.is_null() {
            // SAFETY: it is readable after success.
            self.engine.stream_ordered.note_imported(unsafe { *out });
        }
        Ok(())
    }

    /// A destroyed pool takes its memory with it once its allocations are freed. Those still live stay on the ledger.
    pub fn destroy_pool(&self, pool: CUmemoryPool, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let engine = self.engine;
        engine.stream_ordered.destroy(engine.state, self.api(), pool, ask)
    }
}

/// The device of a location, or `HOST_DEVICE`.
///
/// # Safety
/// `location` is readable.
unsafe fn device_at(location: *const CUmemLocation) -> i16 {
    // SAFETY: by contract. The enum is read as a number.
    unsafe {
        match (&raw const (*location).type_).cast::<u32>().read() {
            LOCATION_DEVICE => (*location).id as i16,
            _ => HOST_DEVICE,
        }
    }
}

/// The device of a stream; for the default streams, the device of the current context.
fn device_of_stream(stream: CUstream) -> i16 {
    let current = Location::current();
    let here = current.map_or(HOST_DEVICE, |location| location.device);
    if stream as usize <= STREAM_PER_THREAD {
        return here;
    }
    let mut context = std::ptr::null_mut();
    // SAFETY: the stream is the job's own, and the pointer is to a variable of this frame.
    let asked = check(unsafe { next::cuStreamGetCtx(stream, &mut context) });
    let context = context as u64;
    if asked.is_err() || current.is_some_and(|location| location.context == context) {
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
