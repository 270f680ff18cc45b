//! A pool: a policy and its memory for one context. Subpools serve single threads from slabs that they borrow from it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

use super::leaving::Leaving;
use super::registry::Registry;
use crate::engine::state::State;
use crate::engine::state::location::Location;
use crate::engine::state::peers::DeviceSet;
use crate::engine::state::totals::Usage;
use base::cuda::{CudaResult, DriverError};
use base::sync::lock;
use policy::device_memory::EventId;
use policy::{Policy, Shared, UnderWay};

/// The most subpools of one pool. More threads than that share them.
const MAX_SUBPOOLS: usize = 16;

/// A pool is never freed: an address may be looked up while its context is destroyed.
pub struct Pool {
    pub location: Location,
    /// The sum of the live blocks.
    pub(super) usage: Usage,
    /// Taken out once the context is gone.
    pub(super) policy: Shared,
    pub(super) leaving: Leaving,
    /// Threads that look for free memory in this context for a request of another context, and call the driver for that.
    pub(super) visits: UnderWay,
    /// The pool that a subpool borrows from; `None` for the pool of a whole context.
    pub(super) parent: Option<&'static Pool>,
    subpools: Mutex<Vec<&'static Pool>>,
    /// How many threads were given a subpool.
    threads_served: AtomicUsize,
    /// Events of the context that are not in use.
    pub(super) events: Mutex<Vec<u64>>,
    /// Events of other contexts that are not in use. They are destroyed when the next event of such a context is made:
    /// `cuEventDestroy` waits while another thread waits inside a copy or a `cuMemFree` (`events_beside_waits` in
    /// tests/assumptions), so a request must not call it.
    pub(super) unused_events_of_others: Mutex<Vec<u64>>,
    /// Events of work that was waited for in vain before a request failed.
    pub(super) stuck: Mutex<Stuck>,
    /// Whether the pool has ever mapped memory.
    pub(super) maps_memory: AtomicBool,
    /// The other devices that have access to all memory that the pool has mapped.
    pub(super) granted: AtomicU32,
    /// The error of the context's work that has failed; 0 as long as none is known.
    fault: AtomicI32,
    pub(super) state: &'static State,
    pub(super) registry: &'static Registry<Pool>,
}

/// Work that was waited for in vain.
#[derive(Default)]
pub(super) struct Stuck {
    pub(super) events: Vec<EventId>,
    /// How often in a row.
    pub(super) waits: u32,
}

impl Pool {
    /// The pool of a whole context, or a subpool of `parent`.
    pub fn new(
        location: Location,
        policy: Box<Policy>,
        parent: Option<&'static Pool>,
        state: &'static State,
        registry: &'static Registry<Pool>,
    ) -> &'static Pool {
        let pool: &'static Pool = Box::leak(Box::new(Pool {
            location,
            usage: Usage::default(),
            policy: Shared::new(policy),
            leaving: Leaving::default(),
            visits: UnderWay::default(),
            parent,
            subpools: Mutex::default(),
            threads_served: AtomicUsize::new(0),
            events: Mutex::default(),
            unused_events_of_others: Mutex::default(),
            stuck: Mutex::default(),
            maps_memory: AtomicBool::new(false),
            granted: AtomicU32::new(0),
            fault: AtomicI32::new(0),
            state,
            registry,
        }));
        state.ledger.device(location.device).pool_begins(&pool.usage);
        pool
    }

    /// The pool of the whole context.
    pub fn root(&'static self) -> &'static Pool {
        self.parent.unwrap_or(self)
    }

    /// Whether the context's work has failed, so that the driver would answer every call with the error here. What the
    /// pool holds goes with the context.
    #[inline]
    pub fn check_fault(&'static self) -> CudaResult {
        match self.root().fault.load(Ordering::Relaxed) {
            0 => Ok(()),
            fault => Err(DriverError(fault)),
        }
    }

    /// Notes the error of a call in the pool's context.
    pub(super) fn note_fault<T>(&self, result: CudaResult<T>) -> CudaResult<T> {
        if let Err(problem) = &result
            && problem.is_fault()
        {
            self.fault.store(problem.0, Ordering::Relaxed);
        }
        result
    }

    #[inline]
    pub fn has_subpools(&self) -> bool {
        self.threads_served.load(Ordering::Acquire) > 0
    }

    pub fn subpools(&self) -> Vec<&'static Pool> {
        if self.has_subpools() {
            lock(&self.subpools).clone()
        } else {
            Vec::new()
        }
    }

    /// The subpools and this pool, in the order in which they are locked: memory that a subpool gives back, its parent
    /// can give back.
    pub fn family(&'static self) -> impl Iterator<Item = &'static Pool> {
        self.subpools().into_iter().chain([self])
    }

    /// The subpool for one more thread, with its number. `policy` makes the policy of a new one.
    pub fn subpool_for_a_thread(&'static self, policy: impl FnOnce() -> Box<Policy>) -> (usize, &'static Pool) {
        let mut list = lock(&self.subpools);
        let number = self.threads_served.fetch_add(1, Ordering::Release) % MAX_SUBPOOLS;
        if let Some(&known) = list.get(number) {
            return (number, known);
        }
        let subpool = Pool::new(self.location, policy(), Some(self), self.state, self.registry);
        list.push(subpool);
        (number, subpool)
    }

    /// An event of the context that is not in use, if there is one.
    pub fn take_event(&self) -> Option<u64> {
        lock(&self.events).pop()
    }

    /// The work of these events was waited for in vain.
    pub(super) fn waited_in_vain(&self, events: Vec<EventId>) {
        let mut stuck = lock(&self.stuck);
        stuck.events.extend(events);
        stuck.waits += 1;
    }

    /// Whether work was waited for in vain, and had not ended when that was last looked at.
    pub fn has_stuck_work(&self) -> bool {
        !lock(&self.stuck).events.is_empty()
    }

    /// Whether the policy may have mapped memory of this pool. The driver treats that otherwise than what it allocated.
    #[inline]
    pub fn maps_memory(&'static self) -> bool {
        self.root().maps_memory.load(Ordering::Acquire)
    }

    /// The other devices that have access to all memory that the pool has mapped, and get access to what it maps.
    pub(super) fn granted(&self) -> DeviceSet {
        DeviceSet(self.granted.load(Ordering::Acquire))
    }

    /// Whether `address` lies in a slab that this pool has lent. Certain while the pool is locked.
    pub fn has_lent(&'static self, address: u64) -> bool {
        self.has_subpools() && self.registry.is_lent(self, address)
    }
}
