//! A policy at work: the pool's lock is taken, and the policy is given the memory that it lives on.

use std::sync::{MutexGuard, TryLockError};
use std::time::Instant;

use super::contention;
use super::growth::Growth;
use super::pool::Pool;
use super::subpools::{self, BorrowedSlabs};
use super::thread_pool;
use base::cuda::{CudaResult, DriverError};
use base::sync::lock;
use policy::Policy;
use policy::device_memory::DeviceMemory;
use policy::slabs::ParentMemory;

type LockedPolicy = MutexGuard<'static, Option<Box<dyn Policy>>>;

impl Pool {
    /// Runs `work` with the pool's policy and the memory that it lives on: memory of the next layer for the pool of a
    /// context, memory of the parent pool for a subpool.
    pub fn with_policy<T>(
        &'static self,
        work: impl FnOnce(&mut dyn Policy, &dyn DeviceMemory) -> CudaResult<T>,
    ) -> CudaResult<T> {
        let root = self.root();
        let growth = Growth::of(root);
        let mut policy = self.lock_policy();
        let policy = policy.as_deref_mut().ok_or(DriverError::INVALID_CONTEXT)?;
        if self.parent.is_none() {
            return work(policy, &growth);
        }
        let slabs = BorrowedSlabs { subpool: self };
        let borrowed = ParentMemory {
            parent: &root.policy,
            memory: &growth,
            observer: &slabs,
        };
        work(policy, &borrowed)
    }

    #[inline]
    fn lock_policy(&'static self) -> LockedPolicy {
        match self.policy.try_lock() {
            Ok(policy) => policy,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.wait_for_policy(),
        }
    }

    #[cold]
    fn wait_for_policy(&'static self) -> LockedPolicy {
        let start = Instant::now();
        let policy = lock(&self.policy);
        // A wait for a pool that does not serve this thread does not count: the thread frees a block of another thread.
        if thread_pool::asks(self) && contention::note_wait(start) {
            subpools::serve_thread_from_subpool(self.root());
        }
        policy
    }
}
