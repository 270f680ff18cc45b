//! The pools, and which of them an address or a context belongs to.
//!
//! A pool is a policy at work: one for each device and context, and its branches (see `branches`), which live on slabs
//! that they borrow from it. Which pool it is, is known without a lock: by context from a note of the calling thread,
//! by address from a table of pages.

pub mod device_memory;
pub mod growth;
pub mod idle;
pub mod owners;
pub mod suballocation;
pub mod subpools;
pub mod teardown;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::engine::pools::owners::{Page, Pages};
use crate::engine::pools::subpools::Branches;
use crate::engine::state::ledger::Usage;
use crate::engine::{Engine, Place, lock};
use policy::Policy;

/// Memory of one context. Never freed: an address may be looked up while its context goes.
pub struct Pool {
    pub place: Place,
    pub usage: Usage,
    /// `None` once the context is gone.
    pub policy: Mutex<Option<Box<dyn Policy>>>,
    /// The pool that this one branched off, where it did.
    pub lender: Option<&'static Pool>,
    pub branches: Branches,
}

impl Pool {
    pub fn new(place: Place, policy: Box<dyn Policy>, lender: Option<&'static Pool>) -> &'static Pool {
        Box::leak(Box::new(Pool {
            place,
            usage: Usage::default(),
            policy: Mutex::new(Some(policy)),
            lender,
            branches: Branches::default(),
        }))
    }

    /// The pool of the whole context.
    pub fn root(&'static self) -> &'static Pool {
        self.lender.unwrap_or(self)
    }

    /// Its branches and this one, in the order in which they are locked: what a branch gives back, its lender can.
    pub fn family(&'static self) -> impl Iterator<Item = &'static Pool> {
        self.branches.all().into_iter().chain([self])
    }
}

#[derive(Default)]
pub struct Pools {
    by_context: RwLock<Contexts>,
    /// What the layer below granted.
    segments: RwLock<ByAddress>,
    /// What is lent to branches. Changed while the lender is locked.
    slabs: RwLock<ByAddress>,
    pages: Pages,
    /// Contexts on their way out: nobody begins a pool in them any more.
    dying: Mutex<Vec<u64>>,
}

/// Until this is dropped no pool begins in its context.
pub struct Dying<'a> {
    pools: &'a Pools,
    context: u64,
}

impl Drop for Dying<'_> {
    fn drop(&mut self) {
        let mut dying = lock(&self.pools.dying);
        if let Some(place) = dying.iter().position(|&context| context == self.context) {
            dying.swap_remove(place);
        }
    }
}

type Contexts = HashMap<u64, &'static Pool>;
/// First address -> (bytes, pool).
pub type ByAddress = BTreeMap<u64, (u64, &'static Pool)>;

/// Differs after every change of which pool serves which context, in this process and its parents.
static GENERATION: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The pool that this thread asked last: generation, context, pool.
    static LAST: Cell<(u64, u64, *const Pool)> = const { Cell::new((0, 0, ptr::null())) };
}

/// A forked child has pools of its own.
pub fn forget_last() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
}

/// Whether this thread asks `pool` for memory.
pub fn is_last(pool: &'static Pool) -> bool {
    LAST.try_with(|last| ptr::eq(last.get().2, pool)).unwrap_or(false)
}

/// Before a context is looked at whose pool this thread shall ask.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// From now on this thread asks `pool` for memory, until contexts come or go.
pub fn ask_from_now_on(generation: u64, pool: &'static Pool) {
    let _ = LAST.try_with(|last| last.set((generation, pool.place.context, pool)));
}

impl Pools {
    pub fn begins_to_die(&self, context: u64) -> Dying<'_> {
        lock(&self.dying).push(context);
        Dying { pools: self, context }
    }

    pub fn contexts(&self) -> RwLockReadGuard<'_, Contexts> {
        self.by_context.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn contexts_mut(&self) -> RwLockWriteGuard<'_, Contexts> {
        let contexts = self.by_context.write().unwrap_or_else(PoisonError::into_inner);
        // Not before: who reads the new number reads the new list.
        GENERATION.fetch_add(1, Ordering::SeqCst);
        contexts
    }

    pub fn segments(&self) -> RwLockReadGuard<'_, ByAddress> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn segments_mut(&self) -> RwLockWriteGuard<'_, ByAddress> {
        self.segments.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn slabs(&self) -> RwLockReadGuard<'_, ByAddress> {
        self.slabs.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn slabs_mut(&self) -> RwLockWriteGuard<'_, ByAddress> {
        self.slabs.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add_range(&self, address: u64, size: u64, pool: &'static Pool) {
        let mut segments = self.segments_mut();
        segments.insert(address, (size, pool));
        self.pages.set(address, size, |before, _| match before {
            Page::Nobody => Page::Perhaps(pool),
            Page::Perhaps(other) if ptr::eq(other, pool) => Page::Perhaps(pool),
            _ => Page::Several,
        });
    }

    pub fn remove_range(&self, address: u64, size: u64) {
        let mut segments = self.segments_mut();
        take_out(&mut segments, address, size);
        let slabs = self.slabs();
        self.pages.set(address, size, |_, page| says(&segments, &slabs, page));
    }

    pub fn lend(&self, address: u64, size: u64, branch: &'static Pool) {
        let segments = self.segments();
        let mut slabs = self.slabs_mut();
        slabs.insert(address, (size, branch));
        self.pages.set(address, size, |_, page| says(&segments, &slabs, page));
    }

    pub fn take_back(&self, address: u64, size: u64) {
        let segments = self.segments();
        let mut slabs = self.slabs_mut();
        take_out(&mut slabs, address, size);
        self.pages.set(address, size, |_, page| says(&segments, &slabs, page));
    }

    /// The pool whose memory `address` may lie in.
    #[inline]
    pub fn perhaps_of(&self, address: u64) -> Option<&'static Pool> {
        match self.pages.at(address) {
            Page::Nobody => None,
            Page::Perhaps(pool) => Some(pool),
            Page::Several => {
                // One guard at a time: others take them in the other order.
                let lent = at(&self.slabs(), address);
                lent.or_else(|| at(&self.segments(), address))
            }
        }
    }

    /// Whether `address` lies in a slab that this pool has lent. Certain while the pool is locked.
    pub fn is_lent(&self, pool: &'static Pool, address: u64) -> bool {
        let is_its_own = |page: Page| matches!(page, Page::Perhaps(other) if ptr::eq(other, pool));
        pool.branches.any() && !is_its_own(self.pages.at(address)) && at(&self.slabs(), address).is_some()
    }

    /// The segments of a pool: first address and bytes.
    pub fn segments_of(&self, pool: &'static Pool) -> Vec<(u64, u64)> {
        let segments = self.segments();
        let its = segments.iter().filter(|(_, (_, owner))| ptr::eq(*owner, pool));
        its.map(|(&address, &(size, _))| (address, size)).collect()
    }

    pub fn all_of(&self, device: i16) -> Vec<&'static Pool> {
        let pools = self.contexts();
        pools
            .values()
            .filter(|pool| pool.place.device == device)
            .copied()
            .collect()
    }
}

/// Takes a range out, whatever pieces it is in.
fn take_out(ranges: &mut ByAddress, address: u64, size: u64) {
    let end = address + size;
    for (start, (bytes, pool)) in pieces_in(ranges, address, size) {
        ranges.remove(&start);
        if start < address {
            ranges.insert(start, (address - start, pool));
        }
        if start + bytes > end {
            ranges.insert(end, (start + bytes - end, pool));
        }
    }
}

/// The entries that have a byte in a range.
fn pieces_in(ranges: &ByAddress, address: u64, size: u64) -> Vec<(u64, (u64, &'static Pool))> {
    ranges
        .range(..address + size)
        .rev()
        .take_while(|&(&start, &(bytes, _))| start + bytes > address)
        .map(|(&start, &entry)| (start, entry))
        .collect()
}

fn at(ranges: &ByAddress, address: u64) -> Option<&'static Pool> {
    let (start, (size, pool)) = ranges.range(..=address).next_back()?;
    (address - start < *size).then_some(*pool)
}

fn says(segments: &ByAddress, slabs: &ByAddress, page: u64) -> Page {
    let lent = pieces_in(slabs, page, Pages::SIZE);
    let found = match lent.first() {
        None => pieces_in(segments, page, Pages::SIZE),
        Some(&(start, (size, _))) if start <= page && start + size >= page + Pages::SIZE => lent,
        Some(_) => return Page::Several,
    };
    match found.first() {
        None => Page::Nobody,
        Some(&(_, (_, first))) if found.iter().all(|(_, (_, pool))| ptr::eq(*pool, first)) => Page::Perhaps(first),
        Some(_) => Page::Several,
    }
}

impl Engine {
    /// The pool that serves the calling thread in this context.
    #[inline]
    pub(crate) fn pool_of(&'static self, context: u64) -> Option<&'static Pool> {
        let generation = generation();
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
        let policy = self.config.strategy.create(&self.config.settings)?;
        let mut pools = self.pools.contexts_mut();
        if lock(&self.pools.dying).contains(&context) {
            return None;
        }
        let pool = pools.entry(context).or_insert_with(|| {
            let pool = Pool::new(place, policy, None);
            self.ledger.pool_begins(place.device, &pool.usage);
            pool
        });
        self.watch_idle_pools();
        Some(pool)
    }

    /// The device of the pool that serves a context.
    pub(crate) fn pools_device(&self, context: u64) -> Option<i16> {
        let pools = self.pools.contexts();
        pools.get(&context).map(|pool| pool.place.device)
    }
}
