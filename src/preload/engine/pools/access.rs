//! A pool as the holder of its policy: how the policy is locked, and the memory that it lives on.
//!
//! One pool serves a context, because that wastes the least memory: a block that one thread frees serves the next request
//! of another. Only a thread that often finds the pool locked (`thread_pool`) gets a subpool. A subpool serves small requests
//! from slabs that it borrows from the pool (see `policy::slabs`). Large requests, and requests that no slab can serve, go to
//! the pool as before.

use std::time::Instant;

use super::growth::Growth;
use super::pool::Pool;
use super::thread_pool;
use base::cancellation::Uncancelled;
use base::cuda::{CudaResult, DriverError};
use base::sync::BriefGuard;
use policy::device_memory::DeviceMemory;
use policy::{Growing, Holder, ParentMemory, Policy, UnderWay};

type LockedPolicy<'a> = BriefGuard<'a, Option<Box<Policy>>>;

impl Holder for Pool {
    #[inline(always)]
    fn with_policy<T>(&self, step: impl FnOnce(&mut Policy) -> CudaResult<T>) -> CudaResult<T> {
        let mut policy = self.lock_policy();
        step(policy.as_mut().ok_or(DriverError::INVALID_CONTEXT)?)
    }

    fn growing(&self) -> CudaResult<Growing<'_>> {
        match self.parent {
            None => self.policy.growing(),
            // The context's pool serves what a subpool does not.
            Some(_) => self.policy.growing_at_once(),
        }
    }

    fn returns(&self) -> Option<&UnderWay> {
        self.policy.returns()
    }
}

impl Pool {
    /// Runs `work` with the memory that the pool's policy lives on: memory of the next layer for the pool of a context,
    /// memory of the parent pool for a subpool.
    #[cold]
    pub fn with_memory<T>(&'static self, work: impl FnOnce(&dyn DeviceMemory) -> T) -> T {
        let _uncancelled = Uncancelled::begin();
        let root = self.root();
        let growth = Growth { pool: root };
        if self.parent.is_none() {
            return work(&growth);
        }
        work(&ParentMemory {
            parent: &root.policy,
            memory: &growth,
            borrowed: &|address, size| self.registry.lend(address, size, self),
            returned: &|address, size| self.registry.take_back(address, size),
        })
    }

    #[inline(always)]
    fn lock_policy(&self) -> LockedPolicy<'_> {
        match self.policy.policy.try_lock() {
            Some(policy) => policy,
            None => self.wait_for_policy(),
        }
    }

    #[cold]
    fn wait_for_policy(&self) -> LockedPolicy<'_> {
        let _uncancelled = Uncancelled::begin();
        let start = Instant::now();
        let policy = self.policy.policy.lock();
        // A wait for a pool that does not serve this thread does not count: the thread frees a block of another thread.
        if let Some(own) = thread_pool::asked_last(self)
            && thread_pool::note_wait(start)
        {
            serve_thread_from_subpool(own.root());
        }
        policy
    }
}

/// From now on a subpool of `root` serves the calling thread, unless the pool's context is being destroyed.
fn serve_thread_from_subpool(root: &'static Pool) {
    if let Some(generation) = thread_pool::generation_served_by(root) {
        let (number, subpool) = root.subpool_for_a_thread(Policy::of_subpool);
        base::say::debug!("a thread that often waited for others is served by subpool {number}");
        thread_pool::replace(generation, subpool);
    }
}
