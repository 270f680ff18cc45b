//! Stream-ordered memory (`cuMemAllocAsync` and pools). The driver keeps the pools; what a pool has *reserved* is asked
//! of it after each call that can change it, the synchronising ones included (there a pool gives memory back).

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::pools::device_memory;
use crate::engine::state::captures::captures;
use crate::engine::state::ledger::{Allocation, Key};
use crate::engine::state::limits::Grant;
use crate::engine::{Call, Engine, Place, booking, lock};
use crate::next::{self, CUmemPoolProps, CUmemoryPool, CUstream, SUCCESS};
use base::api::{Api, Class};
use base::cuda::{HOST_DEVICE, MAX_DEVICES};
use journal::format::Event;
use quota::Refusal;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`
const RESERVED_CURRENT: u32 = 5;
/// Pools take memory in steps; no driver was seen to take larger ones for a request than this.
const POOL_STEP: u64 = 32 << 20;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
const LOCATION_DEVICE: u32 = 1;

#[derive(Default)]
pub struct StreamOrdered {
    /// Set once a pool is known, so that a job without pools pays nothing at its synchronisations.
    used: AtomicBool,
    pools: Mutex<HashMap<u64, PoolState>>,
}

#[derive(Clone, Copy)]
struct PoolState {
    device: i16,
    reserved: u64,
}

impl Engine {
    /// Notes a pool, on `device` where it is new; returns the device it is on.
    fn knows_pool(&self, pool: u64, device: i16) -> i16 {
        self.stream_ordered.used.store(true, Ordering::Relaxed);
        lock(&self.stream_ordered.pools)
            .entry(pool)
            .or_insert(PoolState { device, reserved: 0 })
            .device
    }

    fn device_of_known(&self, pool: u64) -> Option<i16> {
        lock(&self.stream_ordered.pools).get(&pool).map(|state| state.device)
    }

    /// Asks every known pool what it has reserved and books the difference.
    pub fn refresh_pools(&self, api: Api) {
        self.refresh_pools_within(api, None);
    }

    /// As `refresh_pools`, spending first what was granted for growth on its device.
    fn refresh_pools_within(&self, api: Api, mut granted: Option<(i16, &mut Grant)>) {
        if !self.stream_ordered.used.load(Ordering::Relaxed) {
            return;
        }
        let mut pools = lock(&self.stream_ordered.pools);
        let mut changed = HashSet::new();
        for (&pool, state) in pools.iter_mut() {
            let mut now = 0u64;
            // SAFETY: a pool that was not destroyed, and a value of the size this attribute has.
            let asked =
                unsafe { next::cuMemPoolGetAttribute(pool as CUmemoryPool, RESERVED_CURRENT, (&raw mut now).cast()) };
            if asked == SUCCESS && now != state.reserved {
                self.pool_reserved(
                    state.device,
                    Class::Async,
                    state.reserved,
                    now,
                    match &mut granted {
                        Some((device, grant)) if *device == state.device => Some(grant),
                        _ => None,
                    },
                );
                state.reserved = now;
                changed.insert(state.device);
            }
        }
        for device in changed {
            let size = reserved_on(&pools, device);
            self.pool_record(api, Class::Async, device, size, size);
        }
    }

    /// The driver's own pools hold `now` bytes of a device where they held `before`.
    pub(crate) fn pool_reserved(&self, device: i16, class: Class, before: u64, now: u64, grant: Option<&mut Grant>) {
        self.ledger.pool_reserved(device, class, before, now);
        self.refund(device, before.saturating_sub(now));
        let grown = now.saturating_sub(before);
        match (grant, self.quota(device)) {
            (Some(grant), _) => grant.spend(grown),
            (None, Some(quota)) => quota.add(grown),
            (None, None) => {}
        }
        if grown > 0 {
            self.grew(device);
        }
    }

    /// What a pool may grow by to serve `size` bytes; where that is more than a limit allows, after pools gave back what
    /// they hold free.
    fn grant_to_pool(&self, device: i16, size: u64, api: Api) -> Result<Grant<'static>, Refusal> {
        let most = size.checked_next_multiple_of(POOL_STEP).unwrap_or(size);
        self.grant(device, most).or_else(|_| {
            let pools = lock(&self.stream_ordered.pools);
            let of_device = pools.iter().filter(|(_, state)| state.device == device);
            for (&pool, _) in of_device {
                // SAFETY: a pool that was not destroyed.
                unsafe { next::cuMemPoolTrimTo(pool as CUmemoryPool, 0) };
            }
            drop(pools);
            self.refresh_pools(api);
            self.grant(device, most)
        })
    }

    pub(crate) fn pool_record(&self, api: Api, class: Class, device: i16, size: u64, used: u64) {
        let event = Event::PoolReserved {
            class: class.into(),
            reserved: size,
            used,
        };
        self.write(api, device, event);
    }

    /// The pools of a device went with its primary context.
    pub(crate) fn forget_stream_pools(&self, device: i16, api: Api) {
        let mut pools = lock(&self.stream_ordered.pools);
        let before = reserved_on(&pools, device);
        pools.retain(|_, state| state.device != device);
        drop(pools);
        if before > 0 {
            self.pool_reserved(device, Class::Async, before, 0, None);
            self.pool_record(api, Class::Async, device, 0, 0);
        }
    }
}

impl Call {
    pub fn refresh_pools(&self) {
        self.engine.refresh_pools(self.api());
    }

    /// `cuMemAllocAsync` and `cuMemAllocFromPoolAsync`; `pool` is null for the current one of the stream's device,
    /// `address` reads what a successful `ask` wrote.
    pub fn allocate_async(
        &self,
        address: impl FnOnce() -> u64,
        size: usize,
        pool: CUmemoryPool,
        stream: CUstream,
        capture_status: impl Fn(*mut u32) -> i32,
        ask: impl Fn() -> i32,
    ) -> i32 {
        if self.in_capture(capture_status) {
            // The call becomes a node of the graph being captured; it allocates when the graph is launched.
            self.engine.graphs.used();
            return ask();
        }
        let charged = Place {
            device: self.device_of_pool(pool, stream),
            context: 0,
        };
        let Ok(mut grant) = self.engine.grant_to_pool(charged.device, size as u64, self.api()) else {
            self.failed(Class::Async, Some(charged), size as u64, next::OUT_OF_MEMORY);
            return next::OUT_OF_MEMORY;
        };
        let result = self.obtain(Class::Async, Some(charged), size as u64, ask, || {
            // Charged to the device by way of its pool, which is what holds the reserved bytes.
            let allocation = Allocation {
                allocated: size as u64,
                ..booking(Class::Async, charged, size as u64, 0)
            };
            (Key::Address(address()), allocation)
        });
        self.engine
            .refresh_pools_within(self.api(), Some((charged.device, &mut grant)));
        result
    }

    /// The device (or host) of the pool a request goes to; null is the current pool of the stream's device.
    fn device_of_pool(&self, pool: CUmemoryPool, stream: CUstream) -> i16 {
        let device = device_of_stream(stream);
        let mut pool = pool;
        if !pool.is_null() {
            return match self.engine.device_of_known(pool as u64) {
                Some(known) => known,
                None => self.engine.knows_pool(pool as u64, device_with(pool).unwrap_or(device)),
            };
        }
        // SAFETY: this frame's own value.
        match unsafe { next::cuDeviceGetMemPool(&mut pool, i32::from(device)) } {
            SUCCESS => self.engine.knows_pool(pool as u64, device),
            _ => device,
        }
    }

    fn in_capture(&self, capture_status: impl Fn(*mut u32) -> i32) -> bool {
        self.engine.capturing() && captures(capture_status)
    }

    pub fn free_async(&self, address: u64, capture_status: impl Fn(*mut u32) -> i32, ask: impl FnOnce() -> i32) -> i32 {
        if self.in_capture(capture_status) {
            return ask();
        }
        if self.engine.is_pooled(address) {
            // Not stream-ordered memory for the job, and not the layer below's to free.
            self.free_failed(None, Key::Address(address), next::INVALID_VALUE);
            return next::INVALID_VALUE;
        }
        let result = self.free_direct(Key::Address(address), ask);
        self.refresh_pools();
        result
    }

    /// # Safety
    /// `out` is null or writable, `properties` null or readable.
    pub unsafe fn create_pool(&self, out: *mut CUmemoryPool, properties: *const CUmemPoolProps) -> i32 {
        // SAFETY: the job's own arguments.
        let result = unsafe { next::cuMemPoolCreate(out, properties) };
        if result == SUCCESS && !out.is_null() && !properties.is_null() {
            // SAFETY: both readable after success; the enum is read as a number.
            let (pool, device) = unsafe {
                let location = &raw const (*properties).location;
                let device = match (&raw const (*location).type_).cast::<u32>().read() {
                    LOCATION_DEVICE => (*location).id as i16,
                    _ => HOST_DEVICE,
                };
                (*out, device)
            };
            self.engine.knows_pool(pool as u64, device);
        }
        result
    }

    /// A destroyed pool takes its memory with it once its allocations are freed; those still live stay on the ledger.
    /// The lock is held through the call, so that no other thread asks a pool that is going.
    pub fn destroy_pool(&self, pool: CUmemoryPool, ask: impl FnOnce() -> i32) -> i32 {
        let mut pools = lock(&self.engine.stream_ordered.pools);
        let result = ask();
        if result == SUCCESS
            && let Some(gone) = pools.remove(&(pool as u64))
        {
            self.engine
                .pool_reserved(gone.device, Class::Async, gone.reserved, 0, None);
            let left = reserved_on(&pools, gone.device);
            self.engine
                .pool_record(self.api(), Class::Async, gone.device, left, left);
        }
        result
    }
}

/// The device of a stream; that of the current context for the default streams.
fn device_of_stream(stream: CUstream) -> i16 {
    let current = Place::current();
    let here = current.map_or(HOST_DEVICE, |place| place.device);
    if stream as usize <= next::STREAM_PER_THREAD {
        return here;
    }
    let mut context = std::ptr::null_mut();
    // SAFETY: the job's own stream, this frame's own value.
    let asked = unsafe { next::cuStreamGetCtx(stream, &mut context) };
    let context = context as u64;
    if asked != SUCCESS || current.is_some_and(|place| place.context == context) {
        return here;
    }
    device_memory::device_of(context).map_or(here, |device| device as i16)
}

/// The device that has this pool, which nobody of the job created, for its own: its default one, or its current one.
fn device_with(pool: CUmemoryPool) -> Option<i16> {
    (0..MAX_DEVICES as i32)
        .find(|&device| {
            let mut own: [CUmemoryPool; 2] = [std::ptr::null_mut(); 2];
            // SAFETY: this frame's own values.
            let asked = unsafe {
                [
                    next::cuDeviceGetDefaultMemPool(&mut own[0], device),
                    next::cuDeviceGetMemPool(&mut own[1], device),
                ]
            };
            asked.contains(&SUCCESS) && own.contains(&pool)
        })
        .map(|device| device as i16)
}

/// What the known pools of a device have reserved together.
fn reserved_on(pools: &HashMap<u64, PoolState>, device: i16) -> u64 {
    pools
        .values()
        .filter(|state| state.device == device)
        .map(|state| state.reserved)
        .sum()
}
