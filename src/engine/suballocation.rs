//! Policies at work: one pool for each device and context, found by the context that asks or by an address in it.
//!
//! A request takes one lock, that of its pool. Which pool that is, is known without one: by context from a note of the
//! calling thread, by address from a table of pages. The live blocks of a pool are on no other list than its policy's:
//! that is their entry in the ledger, whose totals are told of every change.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::pages::{Page, Pages};
use super::{BLANK, Call, Engine, Place, lock};
use crate::api::{Api, Class};
use crate::device_memory::{DeviceMemory, DriverError};
use crate::journal::format::{FLAG_CONTEXT_GONE, FLAG_MOVED, Kind, Record};
use crate::journal::writer::Claim;
use crate::ledger::{Key, Usage};
use crate::policy::{self, Backing, Block, Policy, Statistics};
use crate::real::memory::{LiveMemory, Segments};
use crate::real::{self, INVALID_VALUE, SUCCESS};

/// The memory of one context. Never freed: an address may be looked up while its context goes.
pub struct Pool {
    pub place: Place,
    usage: Usage,
    /// `None` once the context is gone.
    policy: Mutex<Option<Box<dyn Policy>>>,
}

/// A pool whose context is about to go, with what it held.
pub struct DetachedPool {
    pool: &'static Pool,
    policy: Box<dyn Policy>,
    segments: Vec<(u64, u64)>,
}

#[derive(Default)]
pub struct Pools {
    by_context: RwLock<Contexts>,
    /// Every segment: first address -> (bytes, pool).
    segments: RwLock<ByAddress>,
    pages: Pages,
}

type Contexts = HashMap<u64, &'static Pool>;
type ByAddress = BTreeMap<u64, (u64, &'static Pool)>;

/// Differs after every change of which pool serves which context, in this process and its parents.
static GENERATION: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The pool that this thread used last: generation, context, pool.
    static LAST: Cell<(u64, u64, *const Pool)> = const { Cell::new((0, 0, ptr::null())) };
}

/// A forked child has pools of its own.
pub fn forget_last() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
}

impl Pools {
    fn contexts(&self) -> RwLockReadGuard<'_, Contexts> {
        self.by_context.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn contexts_mut(&self) -> RwLockWriteGuard<'_, Contexts> {
        GENERATION.fetch_add(1, Ordering::SeqCst);
        self.by_context.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn segments(&self) -> RwLockReadGuard<'_, ByAddress> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn segments_mut(&self) -> RwLockWriteGuard<'_, ByAddress> {
        self.segments.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_range(&self, address: u64, size: u64, pool: &'static Pool) {
        let mut segments = self.segments_mut();
        segments.insert(address, (size, pool));
        self.pages.set(address, size, |before, _| match before {
            Page::Nobody => Page::Perhaps(pool),
            Page::Perhaps(other) if ptr::eq(other, pool) => Page::Perhaps(pool),
            _ => Page::Several,
        });
    }

    /// Takes a range out of the segments, whatever pieces they are in.
    fn remove_range(&self, address: u64, size: u64) {
        let end = address + size;
        let mut segments = self.segments_mut();
        for (start, (bytes, pool)) in pieces_in(&segments, address, size) {
            segments.remove(&start);
            if start < address {
                segments.insert(start, (address - start, pool));
            }
            if start + bytes > end {
                segments.insert(end, (start + bytes - end, pool));
            }
        }
        self.pages.set(address, size, |_, page| {
            let left = pieces_in(&segments, page, Pages::SIZE);
            match left.first() {
                None => Page::Nobody,
                Some(&(_, (_, first))) if left.iter().all(|(_, (_, pool))| ptr::eq(*pool, first)) => {
                    Page::Perhaps(first)
                }
                Some(_) => Page::Several,
            }
        });
    }

    /// The pool one of whose segments may hold `address`.
    #[inline]
    fn perhaps_of(&self, address: u64) -> Option<&'static Pool> {
        match self.pages.at(address) {
            Page::Nobody => None,
            Page::Perhaps(pool) => Some(pool),
            Page::Several => {
                let segments = self.segments();
                let (base, (size, pool)) = segments.range(..=address).next_back()?;
                (address - base < *size).then_some(*pool)
            }
        }
    }

    fn all_of(&self, device: i16) -> Vec<&'static Pool> {
        let pools = self.contexts();
        pools
            .values()
            .filter(|pool| pool.place.device == device)
            .copied()
            .collect()
    }
}

/// The segments that have a byte in a range.
fn pieces_in(segments: &ByAddress, address: u64, size: u64) -> Vec<(u64, (u64, &'static Pool))> {
    segments
        .range(..address + size)
        .rev()
        .take_while(|&(&start, &(bytes, _))| start + bytes > address)
        .map(|(&start, &entry)| (start, entry))
        .collect()
}

/// A pool's memory as the layer below grants it, told to ledger and journal.
struct Accounted<'a> {
    engine: &'a Engine,
    pool: &'static Pool,
}

impl Accounted<'_> {
    fn gained(&self, address: u64, size: u64, flags: u8) {
        let device = self.pool.place.device;
        self.engine.pools.add_range(address, size, self.pool);
        self.engine.ledger.segment_obtained(device, size);
        let record = segment_record(Kind::SegmentAlloc, device, address, size);
        self.engine.write(Record { flags, ..record });
    }

    fn lost(&self, address: u64, size: u64, flags: u8) {
        let device = self.pool.place.device;
        self.engine.pools.remove_range(address, size);
        self.engine.ledger.segment_returned(device, size);
        let record = segment_record(Kind::SegmentFree, device, address, size);
        self.engine.write(Record { flags, ..record });
    }
}

impl Segments for Accounted<'_> {
    fn obtained(&self, address: u64, size: u64) {
        self.gained(address, size, 0);
    }

    fn give_back(&self, address: u64, free: &dyn Fn() -> i32) -> i32 {
        let size = self.engine.pools.segments().get(&address).map_or(0, |&(size, _)| size);
        if size == 0 {
            return free();
        }
        // Off the books before it is free: a moment after, the address may be somebody else's.
        self.lost(address, size, 0);
        let result = free();
        if result != SUCCESS {
            self.gained(address, size, 0);
            let record = segment_record(Kind::FreeFailed, self.pool.place.device, address, size);
            self.engine.write(Record { result, ..record });
        }
        result
    }

    fn capturing(&self) -> bool {
        self.engine.capturing()
    }

    fn mapped(&self, address: u64, size: u64, moved: bool) {
        self.gained(address, size, if moved { FLAG_MOVED } else { 0 });
    }

    fn unmapped(&self, address: u64, size: u64, moved: bool) {
        self.lost(address, size, if moved { FLAG_MOVED } else { 0 });
    }

    fn peers(&self) -> Vec<i32> {
        self.engine.peers.of(self.pool.place.device)
    }

    fn in_chunks(&self, why: &str) {
        tracing::warn!("auto_growth grows in chunks, which can be left fragmented: {why}");
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

fn block_record(kind: Kind, api: Api, device: i16, block: &Block) -> Record {
    Record {
        kind: kind as u8,
        api: api.number(),
        class: Class::Linear.number(),
        device,
        address: block.address,
        size: block.requested,
        allocated: block.allocated,
        ..BLANK
    }
}

impl Call {
    /// The pool that serves the calling thread's context; `None` under passthrough, or where there is no context.
    #[inline]
    pub(super) fn pool(&self) -> Option<&'static Pool> {
        if self.engine.config.strategy == policy::Strategy::Passthrough {
            return None;
        }
        let mut context = ptr::null_mut();
        // SAFETY: this frame's own value.
        if unsafe { real::cuCtxGetCurrent(&mut context) } != SUCCESS || context.is_null() {
            return None;
        }
        self.engine.pool_of(context as u64)
    }

    /// A block of `size` bytes, on the books.
    pub(super) fn allocate_in(&self, pool: &'static Pool, size: u64, stream: Option<u64>) -> Result<u64, i32> {
        let allocated = self.engine.with_policy(pool, |policy, memory| {
            let block = policy.allocate(memory, size, stream)?;
            self.engine
                .ledger
                .block_obtained(pool.place.device, &pool.usage, &block);
            Ok(block)
        });
        let device = pool.place.device;
        self.engine.saw_device(device);
        match allocated {
            Ok(block) => {
                self.engine.write(block_record(Kind::Alloc, self.api(), device, &block));
                Ok(block.address)
            }
            Err(DriverError(problem)) => {
                self.failed(Class::Linear, Some(pool.place), size, problem);
                Err(problem)
            }
        }
    }

    /// Frees the block that begins at `address`, where that is in a pool.
    pub(super) fn free_pooled(&self, address: u64, stream: Option<u64>) -> Freed {
        let Some(pool) = self.engine.pools.perhaps_of(address) else {
            return Freed::NotOurs(None);
        };
        let mut context = ptr::null_mut();
        // SAFETY: this frame's own value.
        match unsafe { real::cuCtxGetCurrent(&mut context) } {
            // As in the driver: freeing takes a context, if not the one that the memory belongs to.
            SUCCESS if context.is_null() => return Freed::Answer(real::INVALID_CONTEXT),
            SUCCESS => {}
            problem => return Freed::Answer(problem),
        }
        self.engine.sharing.freed(address);
        // Its place in the journal comes before the block is free for anybody else.
        let claim = self.engine.claim();
        let freed = self.engine.with_policy(pool, |policy, memory| {
            let Some(block) = policy.free(memory, address, stream) else {
                return Ok(Err(policy.owns(address)));
            };
            self.engine.ledger.block_returned(&pool.usage, &block);
            Ok(Ok(block))
        });
        match freed {
            Ok(Ok(block)) => {
                let record = block_record(Kind::Free, self.api(), pool.place.device, &block);
                self.engine.commit(claim, record);
                Freed::Answer(SUCCESS)
            }
            // Freed already, or no block begins there. The layer below must not see it: it knows the address as (part
            // of) a segment, and would take the whole segment away.
            Ok(Err(true)) => {
                self.free_failed(claim, Key::Address(address), INVALID_VALUE);
                Freed::Answer(INVALID_VALUE)
            }
            Ok(Err(false)) | Err(_) => Freed::NotOurs(claim),
        }
    }
}

/// What became of a request to free.
pub(super) enum Freed {
    /// The CUDA result.
    Answer(i32),
    /// No pool has the address. The place in the journal that may have been taken for it.
    NotOurs(Option<Claim>),
}

impl Engine {
    #[inline]
    fn pool_of(&'static self, context: u64) -> Option<&'static Pool> {
        let generation = GENERATION.load(Ordering::Acquire);
        let last = LAST.try_with(Cell::get).unwrap_or((0, 0, ptr::null()));
        if (last.0, last.1) == (generation, context) {
            // SAFETY: a pool is never freed, and was noted for this engine: a fork changes the generation.
            return Some(unsafe { &*last.2 });
        }
        let pool = self.find_pool(context)?;
        let _ = LAST.try_with(|last| last.set((generation, context, pool)));
        Some(pool)
    }

    fn find_pool(&'static self, context: u64) -> Option<&'static Pool> {
        if let Some(&pool) = self.pools.contexts().get(&context) {
            return Some(pool);
        }
        let place = Place::current().filter(|place| place.context == context)?;
        let policy = policy::create(self.config.strategy, &self.config.settings)?;
        let mut pools = self.pools.contexts_mut();
        let pool = pools.entry(context).or_insert_with(|| {
            let pool: &'static Pool = Box::leak(Box::new(Pool {
                place,
                usage: Usage::default(),
                policy: Mutex::new(Some(policy)),
            }));
            self.ledger.pool_begins(place.device, &pool.usage);
            pool
        });
        self.watch_idle_pools();
        Some(pool)
    }

    fn with_policy<T>(
        &self,
        pool: &'static Pool,
        work: impl FnOnce(&mut dyn Policy, &LiveMemory) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let accounted = Accounted { engine: self, pool };
        let memory = LiveMemory::new(i32::from(pool.place.device), pool.place.context, &accounted);
        match lock(&pool.policy).as_deref_mut() {
            Some(policy) => work(policy, &memory),
            None => Err(DriverError(real::INVALID_CONTEXT)),
        }
    }

    /// The answer of the policy whose memory may hold `address`.
    fn ask_owner<T>(&self, address: u64, ask: impl FnOnce(&dyn Policy) -> Option<T>) -> Option<T> {
        let pool = self.pools.perhaps_of(address)?;
        ask(lock(&pool.policy).as_deref()?)
    }

    /// The live block of a policy that holds `address`.
    pub(super) fn pooled_block(&self, address: u64) -> Option<Block> {
        self.ask_owner(address, |policy| policy.find(address))
    }

    /// The live block of a policy that holds `address`, whose it is, and the memory behind it.
    pub(super) fn pooled_backing(&self, address: u64) -> Option<(Place, Block, Backing)> {
        let pool = self.pools.perhaps_of(address)?;
        let policy = lock(&pool.policy);
        let policy = policy.as_deref()?;
        Some((pool.place, policy.find(address)?, policy.backing(address)?))
    }

    /// Gives the devices that may use memory of this one access to what its policies have mapped.
    pub(super) fn allow_peers(&self, device: i16) {
        for pool in self.pools.all_of(device) {
            let allowed = self.with_policy(pool, |_, memory| {
                let segments = self.pools.segments();
                let its = segments.iter().filter(|(_, (_, owner))| ptr::eq(*owner, pool));
                let ranges: Vec<(u64, u64)> = its.map(|(&address, &(size, _))| (address, size)).collect();
                drop(segments);
                for (address, size) in ranges {
                    match memory.allow_access(address, size) {
                        // Not mapped but allocated: the driver gave access itself.
                        Ok(()) | Err(DriverError::INVALID_VALUE) => {}
                        problem => return problem,
                    }
                }
                Ok(())
            });
            if let Err(DriverError(problem)) = allowed {
                tracing::warn!(
                    "cuCtxEnablePeerAccess: memory of device {device} stays invisible to its peers (CUDA error \
                     {problem}); run the job with FLAGS_allocator_strategy=naive_best_fit"
                );
            }
        }
    }

    /// Whether `address` lies in memory of a policy, in a live block or not.
    pub(super) fn is_pooled(&self, address: u64) -> bool {
        self.ask_owner(address, |policy| Some(policy.owns(address)))
            .unwrap_or(false)
    }

    /// Gives memory that holds no block back to the layer below; returns bytes.
    pub fn release_idle(&self, device: i16) -> u64 {
        if self.capturing() {
            return 0;
        }
        let pools = self.pools.all_of(device);
        let release = |pool: &&'static Pool| self.with_policy(pool, |policy, memory| Ok(policy.release_idle(memory)));
        pools.iter().map(|pool| release(pool).unwrap_or(0)).sum()
    }

    /// For each device with a pool a number that changes with every block obtained or returned.
    pub(super) fn activity(&self) -> HashMap<i16, u64> {
        let mut sums = HashMap::new();
        for pool in self.pools.contexts().values() {
            let sum: &mut u64 = sums.entry(pool.place.device).or_default();
            *sum = sum.wrapping_add(pool.usage.activity());
        }
        sums
    }

    /// What the policies of a device hold, all contexts together; the largest free block is the largest of any.
    pub fn pooled(&self, device: i16) -> Statistics {
        let mut sum = Statistics::default();
        for pool in self.pools.all_of(device) {
            let Some(one) = lock(&pool.policy).as_deref().map(Policy::statistics) else {
                continue;
            };
            sum.reserved += one.reserved;
            sum.allocated += one.allocated;
            sum.free += one.free;
            sum.largest_free_block = sum.largest_free_block.max(one.largest_free_block);
            sum.remapped += one.remapped;
            sum.segments += one.segments;
            sum.live_blocks += one.live_blocks;
            sum.synchronisations += one.synchronisations;
        }
        sum
    }

    /// Takes a context's pool, its blocks and its memory off the books.
    pub(super) fn detach_pool(&self, context: u64, api: Api) -> Option<DetachedPool> {
        let pool = self.pools.contexts_mut().remove(&context)?;
        let policy = lock(&pool.policy).take()?;
        let device = pool.place.device;
        for block in policy.live() {
            self.ledger.block_returned(&pool.usage, &block);
            let record = block_record(Kind::Free, api, device, &block);
            let flags = FLAG_CONTEXT_GONE;
            self.write(Record { flags, ..record });
        }
        self.ledger.pool_ends(device, &pool.usage);
        let segments: Vec<(u64, u64)> = (self.pools.segments().iter())
            .filter(|(_, (_, owner))| ptr::eq(*owner, pool))
            .map(|(&address, &(size, _))| (address, size))
            .collect();
        let accounted = Accounted { engine: self, pool };
        for &(address, size) in &segments {
            accounted.lost(address, size, FLAG_CONTEXT_GONE);
        }
        Some(DetachedPool { pool, policy, segments })
    }

    /// Puts a pool back that `detach_pool` took.
    pub(super) fn attach_pool(&self, detached: DetachedPool, api: Api) {
        let DetachedPool { pool, policy, segments } = detached;
        let accounted = Accounted { engine: self, pool };
        for (address, size) in segments {
            accounted.gained(address, size, 0);
        }
        self.ledger.pool_begins(pool.place.device, &pool.usage);
        for block in policy.live() {
            self.ledger.block_obtained(pool.place.device, &pool.usage, &block);
            self.write(block_record(Kind::Alloc, api, pool.place.device, &block));
        }
        *lock(&pool.policy) = Some(policy);
        self.pools.contexts_mut().insert(pool.place.context, pool);
    }

    /// The context of a detached pool is gone: gives back what did not go with it.
    pub(super) fn bury_pool(&self, detached: DetachedPool) {
        let remains = detached.policy.remains();
        // SAFETY: mappings, handles and ranges of the pool's own, and no work is left that could use them.
        unsafe {
            for (address, size) in remains.mapped {
                real::cuMemUnmap(address, size as usize);
            }
            for handle in remains.handles {
                real::cuMemRelease(handle);
            }
            for (address, size) in remains.ranges {
                real::cuMemAddressFree(address, size as usize);
            }
        }
    }

    /// The device of the pool that serves a context.
    pub(super) fn pools_device(&self, context: u64) -> Option<i16> {
        let pools = self.pools.contexts();
        pools.get(&context).map(|pool| pool.place.device)
    }
}
