//! Threads that would wait for each other get pools of their own.
//!
//! One pool serves a context, which wastes the least: what one thread frees another can have. Only a thread that often
//! finds it locked branches off. Its branch serves small requests from slabs that it borrows from the pool (see
//! `policy::slabs`); large ones, and all that it has no slab for, go to the pool as before.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::engine::pools::device_memory::LiveMemory;
use crate::engine::pools::growth::Accounted;
use crate::engine::pools::{self, Pool};
use crate::engine::{Engine, lock};
use base::cuda::DriverError;
use policy;
use policy::Policy;
use policy::device_memory::DeviceMemory;
use policy::slabs::{ParentMemory, SlabObserver};

/// Branches of one pool. Threads beyond that share them.
const MOST: usize = 16;
/// A thread is judged each time that it had to wait this often ...
const WAITS: u32 = 16;
/// ... and branches off where that took at least this part of its time.
const TOO_LONG: u32 = 8;

#[derive(Default)]
pub struct Branches {
    list: Mutex<Vec<&'static Pool>>,
    any: AtomicBool,
    /// How many threads were given one.
    given: AtomicUsize,
}

impl Branches {
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    pub fn all(&self) -> Vec<&'static Pool> {
        if self.any() {
            lock(&self.list).clone()
        } else {
            Vec::new()
        }
    }
}

/// How often a thread waited for its pool, since when, and for how long all in all.
#[derive(Clone, Copy)]
struct Waits {
    times: u32,
    since: Option<Instant>,
    took: Duration,
}

const NONE_YET: Waits = Waits {
    times: 0,
    since: None,
    took: Duration::ZERO,
};

thread_local! {
    static WAITED: Cell<Waits> = const { Cell::new(NONE_YET) };
}

struct Slabs<'a> {
    engine: &'a Engine,
    branch: &'static Pool,
}

impl SlabObserver for Slabs<'_> {
    fn borrowed(&self, address: u64, size: u64) {
        self.engine.pools.lend(address, size, self.branch);
    }

    fn returned(&self, address: u64, size: u64) {
        self.engine.pools.take_back(address, size);
    }
}

type Locked = MutexGuard<'static, Option<Box<dyn Policy>>>;

impl Engine {
    /// Runs `work` with the policy of a pool and the memory that it lives on.
    pub(crate) fn with_policy<T>(
        &self,
        pool: &'static Pool,
        work: impl FnOnce(&mut dyn Policy, &dyn DeviceMemory) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let root = pool.root();
        let accounted = Accounted {
            engine: self,
            pool: root,
        };
        let live = LiveMemory::new(i32::from(root.place.device), root.place.context, &accounted);
        let mut policy = self.locked(pool);
        let policy = policy.as_deref_mut().ok_or(DriverError::INVALID_CONTEXT)?;
        if pool.lender.is_none() {
            return work(policy, &live);
        }
        let slabs = Slabs {
            engine: self,
            branch: pool,
        };
        let lent = ParentMemory {
            parent: &root.policy,
            memory: &live,
            observer: &slabs,
        };
        work(policy, &lent)
    }

    #[inline]
    fn locked(&self, pool: &'static Pool) -> Locked {
        match pool.policy.try_lock() {
            Ok(policy) => policy,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.waited_for(pool),
        }
    }

    #[cold]
    fn waited_for(&self, pool: &'static Pool) -> Locked {
        let begin = Instant::now();
        let policy = lock(&pool.policy);
        // Not where it frees a block of another one.
        if !pools::is_last(pool) {
            return policy;
        }
        let mut waits = WAITED.try_with(Cell::get).unwrap_or(NONE_YET);
        let since = *waits.since.get_or_insert(begin);
        waits.times += 1;
        waits.took += begin.elapsed();
        if waits.times == WAITS {
            if waits.took * TOO_LONG >= since.elapsed() {
                self.branch_off(pool.root());
            }
            waits = NONE_YET;
        }
        let _ = WAITED.try_with(|waited| waited.set(waits));
        policy
    }

    fn branch_off(&self, root: &'static Pool) {
        let generation = pools::generation();
        if self
            .pools
            .contexts()
            .get(&root.place.context)
            .is_none_or(|&known| !std::ptr::eq(known, root))
        {
            return;
        }
        let mut list = lock(&root.branches.list);
        let number = root.branches.given.fetch_add(1, Ordering::Relaxed) % MOST;
        let branch = match list.get(number) {
            Some(&branch) => branch,
            None => {
                let branch = Pool::new(root.place, policy::subpool(), Some(root));
                self.ledger.pool_begins(root.place.device, &branch.usage);
                list.push(branch);
                root.branches.any.store(true, Ordering::Release);
                branch
            }
        };
        tracing::debug!("a thread that often waited for others is served by branch {number}");
        pools::ask_from_now_on(generation, branch);
    }
}
