//! The driver's own memory pools as the library knows them: what each has reserved, and where frees are pending.
//!
//! A pool gives memory back when a thread waits for work, and only after something was freed (cuda.h 13.5,
//! `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`). So after a wait a pool is asked only if it has a free on what was waited for.
//! Each pool has its own lock, which is held while that pool is asked; the list's lock is never held across a call.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::engine::state::captures::relaxed;
use crate::engine::state::limits::Grant;
use crate::engine::state::{State, records};
use crate::next::{self, CUmemoryPool, STREAM_LEGACY, STREAM_PER_THREAD};
use base::api::{Api, Class};
use base::cuda::{CudaResult, HOST_DEVICE};
use base::identity::thread_number;
use base::sync::lock;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`
const RESERVED_CURRENT: u32 = 5;

/// Where memory was freed: a stream handle, and for a default stream the context and the thread too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    Stream(usize),
    OfThread(u64, u64),
    /// The legacy default stream, a stream that was destroyed, or no stream.
    Anywhere,
}

impl Place {
    pub fn of_stream(stream: usize) -> Place {
        match stream {
            0 | STREAM_LEGACY => Place::Anywhere,
            STREAM_PER_THREAD => {
                let context = next::current_context().map_or(0, |context| context as u64);
                Place::OfThread(context, thread_number())
            }
            handle => Place::Stream(handle),
        }
    }
}

/// What a thread has waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    Stream(Place),
    /// All work of a device's context. `None` if it is not known which device that is.
    Context(Option<i16>),
    /// Work of streams that are not known.
    Event,
}

pub struct DriverPool {
    handle: u64,
    /// `HOST_DEVICE` for a pool of host memory, and for managed memory without a preferred location.
    device: i16,
    /// Another process has the pool's memory. The pool is known, and its memory not counted here.
    is_imported: bool,
    /// Bytes. Changes only while the pool is locked.
    reserved: AtomicU64,
    frees: Mutex<HashSet<Place>>,
    /// Allocations that are not freed.
    live: AtomicUsize,
    /// Whether the pool is destroyed. Locked while the pool is asked.
    is_gone: Mutex<bool>,
}

impl DriverPool {
    fn new(handle: u64, device: i16, is_imported: bool) -> Arc<DriverPool> {
        Arc::new(DriverPool {
            handle,
            device,
            is_imported,
            reserved: AtomicU64::new(0),
            frees: Mutex::default(),
            live: AtomicUsize::new(0),
            is_gone: Mutex::new(false),
        })
    }
}

/// Where a live allocation came from.
struct Origin {
    /// `None` if the pool is not known.
    pool: Option<Arc<DriverPool>>,
    /// Whether the next layer charged for it, if that is known.
    is_charged: Option<bool>,
}

/// What is known of memory that is about to be freed.
pub struct Freed {
    origin: Option<Origin>,
    /// The pool, if it was destroyed and this is its last memory. Then `DriverPools::ended` must follow the free.
    pub ended: Option<Arc<DriverPool>>,
}

impl Freed {
    pub fn is_charged(&self) -> Option<bool> {
        self.origin.as_ref()?.is_charged
    }
}

#[derive(Default)]
pub struct DriverPools {
    /// Set once a pool is known, so that a job without pools pays nothing.
    is_used: AtomicBool,
    known: Mutex<HashMap<u64, Arc<DriverPool>>>,
    /// Destroyed pools that have live allocations. "The resources associated with the pool will be released automatically
    /// once there are no more outstanding allocations" (cuda.h 13.0:13558), so until then each keeps what it had.
    ending: Mutex<Vec<Arc<DriverPool>>>,
    /// Where each live allocation came from.
    origins: Mutex<HashMap<u64, Origin>>,
    /// How often memory was freed since the pools were asked last, so that a wait after no free looks no further.
    frees: AtomicUsize,
    /// Bytes that the pools of each device had when they were asked last. Locked while a change is recorded, because
    /// a record tells the whole sum: written in another order, an old sum would stand as the last.
    reserved: Mutex<HashMap<i16, u64>>,
}

impl DriverPools {
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    fn select(&self, chosen: impl Fn(&DriverPool) -> bool) -> Vec<Arc<DriverPool>> {
        lock(&self.known)
            .values()
            .filter(|pool| chosen(pool))
            .cloned()
            .collect()
    }

    /// Notes a pool, on `device` if it is new. Returns the device that it is on, and whether it is new.
    pub fn note(&self, pool: CUmemoryPool, device: i16) -> (i16, bool) {
        self.is_used.store(true, Ordering::Relaxed);
        let handle = pool as u64;
        let mut known = lock(&self.known);
        let before = known.len();
        let new = || DriverPool::new(handle, device, false);
        let device = known.entry(handle).or_insert_with(new).device;
        (device, known.len() > before)
    }

    pub fn note_imported(&self, pool: CUmemoryPool) {
        let handle = pool as u64;
        lock(&self.known).insert(handle, DriverPool::new(handle, HOST_DEVICE, true));
    }

    pub fn device_of(&self, pool: CUmemoryPool) -> Option<i16> {
        lock(&self.known).get(&(pool as u64)).map(|pool| pool.device)
    }

    /// Memory at `address` was obtained from a pool.
    pub fn obtained(&self, address: u64, pool: CUmemoryPool, is_charged: Option<bool>) {
        let pool = lock(&self.known).get(&(pool as u64)).cloned();
        if let Some(pool) = &pool {
            pool.live.fetch_add(1, Ordering::AcqRel);
        }
        lock(&self.origins).insert(address, Origin { pool, is_charged });
    }

    /// Memory at `address` is about to be freed. If it came from a pool, the pool may give memory back when a thread waits.
    pub fn freed(&self, address: u64, place: Place) -> Freed {
        let origin = self.is_used().then(|| lock(&self.origins).remove(&address)).flatten();
        let mut ended = None;
        if let Some(pool) = origin.as_ref().and_then(|origin| origin.pool.as_ref()) {
            lock(&pool.frees).insert(place);
            self.frees.fetch_add(1, Ordering::Release);
            if pool.live.fetch_sub(1, Ordering::AcqRel) == 1 {
                ended = lock(&self.ending).extract_if(.., |one| Arc::ptr_eq(one, pool)).next();
            }
        }
        Freed { origin, ended }
    }

    /// The free failed, so the memory at `address` is live. The pool is asked at the next wait all the same.
    pub fn not_freed(&self, address: u64, Freed { origin, ended }: Freed) {
        let Some(origin) = origin else { return };
        if let Some(pool) = &origin.pool {
            pool.live.fetch_add(1, Ordering::AcqRel);
        }
        lock(&self.ending).extend(ended);
        lock(&self.origins).insert(address, origin);
    }

    /// A stream is about to be destroyed. Nobody can wait for it any more.
    pub fn stream_closes(&self, handle: usize) {
        if self.frees.load(Ordering::Acquire) == 0 {
            return;
        }
        for pool in self.select(|_| true) {
            let mut frees = lock(&pool.frees);
            if frees.remove(&Place::Stream(handle)) {
                frees.insert(Place::Anywhere);
            }
        }
    }

    /// A wait has ended. Asks the pools that it can have changed.
    pub fn waited(&self, state: &State, api: Api, waited: Waited) {
        let frees = self.frees.load(Ordering::Acquire);
        if frees == 0 {
            return;
        }
        let changed = self.select(|pool| {
            let mut frees = lock(&pool.frees);
            match waited {
                // The legacy default stream waits for all blocking streams of its context.
                Waited::Stream(Place::Anywhere) | Waited::Event => !frees.is_empty(),
                Waited::Stream(place) => frees.remove(&place),
                Waited::Context(device) => {
                    let is_of_it = device.is_none_or(|device| device == pool.device) && !frees.is_empty();
                    if is_of_it {
                        frees.clear();
                    }
                    is_of_it
                }
            }
        });
        self.ask(state, api, &changed, None);
        if self.select(|pool| !lock(&pool.frees).is_empty()).is_empty() {
            // Not if another thread has freed memory meanwhile.
            let _ = self
                .frees
                .compare_exchange(frees, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Asks one pool what it has reserved. Growth is paid first from what was `granted`.
    pub fn ask_one(&self, state: &State, api: Api, pool: CUmemoryPool, granted: Option<&mut Grant>) {
        let found = lock(&self.known).get(&(pool as u64)).cloned();
        self.ask(state, api, found.as_slice(), granted);
    }

    pub fn ask_all(&self, state: &State, api: Api) {
        if self.is_used() {
            self.ask(state, api, &self.select(|_| true), None);
        }
    }

    /// Asks pools what they have reserved, and books the difference.
    fn ask(&self, state: &State, api: Api, pools: &[Arc<DriverPool>], mut granted: Option<&mut Grant>) {
        for pool in pools.iter().filter(|pool| !pool.is_imported) {
            let is_gone = lock(&pool.is_gone);
            let handle = pool.handle as CUmemoryPool;
            // SAFETY: the pool is not destroyed while it is locked, and the value has the type of this attribute.
            let ask = |now: *mut u64| unsafe { next::cuMemPoolGetAttribute(handle, RESERVED_CURRENT, now.cast()) };
            // The call invalidates a capture of the thread otherwise (`pool_question_in_capture` in tests/assumptions).
            if !*is_gone && let Ok(now) = relaxed(|| next::told(0, |now| ask(now))) {
                self.book(state, api, pool, now, granted.as_deref_mut());
            }
        }
    }

    /// A pool that is locked, or gone, has `now` bytes reserved.
    fn book(&self, state: &State, api: Api, pool: &DriverPool, now: u64, granted: Option<&mut Grant>) {
        let before = pool.reserved.swap(now, Ordering::Relaxed);
        if before == now {
            return;
        }
        let mut reserved = lock(&self.reserved);
        let sum = reserved.entry(pool.device).or_default();
        *sum = sum.saturating_sub(before).saturating_add(now);
        state.driver_pools_hold(pool.device, Class::Async, before, now, granted);
        let record = records::driver_pools(api, Class::Async, pool.device, *sum, *sum);
        state.records.write(record);
    }

    /// Bytes that the pools of a device had when they were asked last.
    pub fn reserved_on(&self, device: i16) -> u64 {
        lock(&self.reserved).get(&device).copied().unwrap_or(0)
    }

    /// Lets the pools of a device give back what they hold free.
    pub fn trim(&self, device: i16) {
        for pool in self.select(|pool| pool.device == device && !pool.is_imported) {
            let is_gone = lock(&pool.is_gone);
            if !*is_gone {
                // SAFETY: the pool is not destroyed while it is locked.
                unsafe { next::cuMemPoolTrimTo(pool.handle as CUmemoryPool, 0) };
            }
        }
    }

    /// The pools of a device went with its primary context.
    pub fn device_gone(&self, state: &State, device: i16, api: Api) {
        let mut gone = self.select(|pool| pool.device == device);
        gone.extend(lock(&self.ending).extract_if(.., |pool| pool.device == device));
        lock(&self.known).retain(|_, pool| pool.device != device);
        for pool in gone {
            self.ended(state, api, &pool);
        }
    }

    /// The last memory of a destroyed pool was freed, or the pool went with its context.
    pub fn ended(&self, state: &State, api: Api, pool: &Arc<DriverPool>) {
        *lock(&pool.is_gone) = true;
        self.book(state, api, pool, 0, None);
        let is_of_it = |origin: &Origin| origin.pool.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, pool));
        lock(&self.origins).retain(|_, origin| !is_of_it(origin));
    }

    /// Destroys a pool by `ask`. The pool leaves the list before the call, because right after it another pool may have
    /// the same handle. The pool is locked through the call, so that no other thread asks it meanwhile.
    pub fn destroy(&self, state: &State, api: Api, pool: CUmemoryPool, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let Some(known) = lock(&self.known).remove(&(pool as u64)) else {
            return ask();
        };
        let mut is_gone = lock(&known.is_gone);
        let result = ask();
        *is_gone = result.is_ok();
        drop(is_gone);
        if result.is_err() {
            lock(&self.known).insert(pool as u64, known);
            return result;
        }
        let mut ending = lock(&self.ending);
        if known.live.load(Ordering::Acquire) > 0 {
            ending.push(known);
        } else {
            drop(ending);
            self.ended(state, api, &known);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_whose_free_failed_keeps_its_destroyed_pool() {
        const ADDRESS: u64 = 0x1000;
        let (pools, handle) = (DriverPools::default(), 7 as CUmemoryPool);
        pools.note(handle, 0);
        pools.obtained(ADDRESS, handle, Some(true));
        let pool = lock(&pools.known).remove(&(handle as u64)).unwrap();
        lock(&pools.ending).push(pool.clone());
        for _ in 0..2 {
            let freed = pools.freed(ADDRESS, Place::Anywhere);
            assert_eq!(freed.is_charged(), Some(true));
            assert!(freed.ended.as_ref().is_some_and(|ended| Arc::ptr_eq(ended, &pool)));
            pools.not_freed(ADDRESS, freed);
            assert_eq!((pool.live.load(Ordering::Relaxed), lock(&pools.ending).len()), (1, 1));
        }
        let unknown = pools.freed(2 * ADDRESS, Place::Anywhere);
        pools.not_freed(2 * ADDRESS, unknown);
        assert_eq!(lock(&pools.origins).len(), 1);
    }
}
