//! Policies at work: one pool for each device and context, found by the context that asks or by an address in it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{BLANK, Engine, Place, lock};
use crate::api::{Api, Class};
use crate::device_memory::DriverError;
use crate::journal::format::{FLAG_CONTEXT_GONE, Kind, Record};
use crate::ledger::Key;
use crate::policy::{self, Block, Policy, Statistics};
use crate::real::memory::{LiveMemory, Segments};
use crate::real::{INVALID_VALUE, SUCCESS};

pub struct Pool {
    pub place: Place,
    policy: Mutex<Box<dyn Policy>>,
}

/// A pool whose context is about to go, with its segments as (address, bytes).
pub struct DetachedPool {
    pool: Arc<Pool>,
    segments: Vec<(u64, u64)>,
}

#[derive(Default)]
pub struct Pools {
    by_context: RwLock<Contexts>,
    /// Every segment: first address -> (bytes, pool).
    segments: RwLock<ByAddress>,
}

type Contexts = HashMap<u64, Arc<Pool>>;
type ByAddress = BTreeMap<u64, (u64, Arc<Pool>)>;

impl Pools {
    fn contexts(&self) -> RwLockReadGuard<'_, Contexts> {
        self.by_context.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn contexts_mut(&self) -> RwLockWriteGuard<'_, Contexts> {
        self.by_context.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn segments(&self) -> RwLockReadGuard<'_, ByAddress> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn segments_mut(&self) -> RwLockWriteGuard<'_, ByAddress> {
        self.segments.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn all_of(&self, device: i16) -> Vec<Arc<Pool>> {
        let pools = self.contexts();
        pools
            .values()
            .filter(|pool| pool.place.device == device)
            .cloned()
            .collect()
    }
}

/// A pool's segments as the layer below grants them, each told to ledger and journal.
struct Accounted<'a> {
    engine: &'a Engine,
    pool: &'a Arc<Pool>,
}

impl Segments for Accounted<'_> {
    fn obtained(&self, address: u64, size: u64) {
        let mut segments = self.engine.pools.segments_mut();
        segments.insert(address, (size, self.pool.clone()));
        drop(segments);
        self.engine.ledger.segment_obtained(self.pool.place.device, size);
        self.engine.write(segment_record(
            Kind::SegmentAlloc,
            self.pool.place.device,
            address,
            size,
        ));
    }

    fn give_back(&self, address: u64, free: &dyn Fn() -> i32) -> i32 {
        let claim = self.engine.claim();
        let mut segments = self.engine.pools.segments_mut();
        let known = segments.remove(&address);
        drop(segments);
        let result = free();
        let Some((size, pool)) = known else { return result };
        let device = self.pool.place.device;
        if result == SUCCESS {
            self.engine.ledger.segment_returned(device, size);
            self.engine
                .commit(claim, segment_record(Kind::SegmentFree, device, address, size));
        } else {
            let mut segments = self.engine.pools.segments_mut();
            segments.insert(address, (size, pool));
            drop(segments);
            let refused = Record {
                result,
                kind: Kind::FreeFailed as u8,
                ..segment_record(Kind::FreeFailed, device, address, size)
            };
            self.engine.commit(claim, refused);
        }
        result
    }

    fn capturing(&self) -> bool {
        self.engine.capturing()
    }
}

fn segment_record(kind: Kind, device: i16, address: u64, size: u64) -> Record {
    Record {
        kind: kind as u8,
        api: Api::Policy.number(),
        class: Class::Linear.number(),
        device,
        address,
        size,
        allocated: size,
        detail: size,
        ..BLANK
    }
}

impl Engine {
    /// The pool that serves `place`; `None` under passthrough.
    pub(super) fn pool(&self, place: Place) -> Option<Arc<Pool>> {
        let pools = self.pools.contexts();
        if let Some(pool) = pools.get(&place.context) {
            return Some(pool.clone());
        }
        drop(pools);
        let policy = policy::create(self.config.strategy, &self.config.settings)?;
        let mut pools = self.pools.contexts_mut();
        Some(
            pools
                .entry(place.context)
                .or_insert_with(|| {
                    Arc::new(Pool {
                        place,
                        policy: Mutex::new(policy),
                    })
                })
                .clone(),
        )
    }

    pub(super) fn allocate_in(&self, pool: &Arc<Pool>, size: u64) -> Result<Block, DriverError> {
        self.with_policy(pool, |policy, memory| policy.allocate(memory, size))
    }

    fn with_policy<T>(&self, pool: &Arc<Pool>, work: impl FnOnce(&mut dyn Policy, &LiveMemory) -> T) -> T {
        let accounted = Accounted { engine: self, pool };
        let memory = LiveMemory::new(pool.place.context, &accounted);
        work(lock(&pool.policy).as_mut(), &memory)
    }

    /// The pool one of whose segments holds `address`.
    pub(super) fn owning_pool(&self, address: u64) -> Option<Arc<Pool>> {
        let segments = self.pools.segments();
        let (base, (size, pool)) = segments.range(..=address).next_back()?;
        (address - base < *size).then(|| pool.clone())
    }

    /// The live block of a policy that holds `address`.
    pub(super) fn pooled_block(&self, address: u64) -> Option<Block> {
        let pool = self.owning_pool(address)?;
        lock(&pool.policy).find(address)
    }

    pub(super) fn free_pooled(&self, address: u64) -> i32 {
        let Some(pool) = self.owning_pool(address) else {
            return INVALID_VALUE;
        };
        match self.with_policy(&pool, |policy, memory| policy.free(memory, address)) {
            Some(_) => SUCCESS,
            None => INVALID_VALUE,
        }
    }

    /// Gives segments that hold no block back to the layer below; returns bytes.
    pub fn release_idle(&self, device: i16) -> u64 {
        if self.capturing() {
            return 0;
        }
        let pools = self.pools.all_of(device);
        pools
            .iter()
            .map(|pool| self.with_policy(pool, |policy, memory| policy.release_idle(memory)))
            .sum()
    }

    /// What the policies of a device hold, all contexts together; the largest free block is the largest of any.
    pub fn pooled(&self, device: i16) -> Statistics {
        let mut sum = Statistics::default();
        for pool in self.pools.all_of(device) {
            let one = lock(&pool.policy).statistics();
            sum.reserved += one.reserved;
            sum.allocated += one.allocated;
            sum.free += one.free;
            sum.largest_free_block = sum.largest_free_block.max(one.largest_free_block);
            sum.segments += one.segments;
            sum.live_blocks += one.live_blocks;
        }
        sum
    }

    /// Takes a context's pool and its segments off the books.
    pub(super) fn detach_pool(&self, context: u64) -> Option<DetachedPool> {
        let pool = self.pools.contexts_mut().remove(&context)?;
        let mut segments = self.pools.segments_mut();
        let its = |owner: &Arc<Pool>| Arc::ptr_eq(owner, &pool);
        let gone: Vec<(u64, u64)> = segments
            .iter()
            .filter(|(_, (_, owner))| its(owner))
            .map(|(&address, &(size, _))| (address, size))
            .collect();
        segments.retain(|_, (_, owner)| !its(owner));
        drop(segments);
        for &(address, size) in &gone {
            self.ledger.segment_returned(pool.place.device, size);
            let record = segment_record(Kind::SegmentFree, pool.place.device, address, size);
            self.write(Record {
                flags: FLAG_CONTEXT_GONE,
                ..record
            });
        }
        Some(DetachedPool { pool, segments: gone })
    }

    /// Puts a pool back that `detach_pool` took.
    pub(super) fn attach_pool(&self, detached: DetachedPool) {
        let DetachedPool { pool, segments } = detached;
        for (address, size) in segments {
            Accounted {
                engine: self,
                pool: &pool,
            }
            .obtained(address, size);
        }
        let mut pools = self.pools.contexts_mut();
        pools.insert(pool.place.context, pool);
    }

    /// The device of the pool that serves a context.
    pub(super) fn pools_device(&self, context: u64) -> Option<i16> {
        let pools = self.pools.contexts();
        pools.get(&context).map(|pool| pool.place.device)
    }

    /// Whether `address` names a live allocation that lies in a policy's segment.
    pub(super) fn is_pooled(&self, address: u64) -> bool {
        self.ledger
            .get(Key::Address(address))
            .is_some_and(|allocation| allocation.pooled)
            || self.owning_pool(address).is_some()
    }
}
