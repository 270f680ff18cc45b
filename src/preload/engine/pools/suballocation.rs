//! Policies at work for the job: its requests, its frees, and what is asked about its blocks.
//!
//! A request takes one lock, that of its pool. The live blocks of a pool are on no other list than its policy's: that is
//! their entry in the ledger, whose totals are told of every change.

use std::collections::HashMap;
use std::ptr;

use crate::engine::pools::Pool;
use crate::engine::state::ledger::Key;
use crate::engine::state::records::recorded_block;
use crate::engine::{Call, Engine, Place, lock};
use crate::next::{self, INVALID_VALUE, SUCCESS};
use base::api::Class;
use journal::format::Event;
use journal::writer::Claim;
use policy::device_memory::DriverError;
use policy::slabs;
use policy::{self, Backing, Block, Policy};

impl Call {
    /// The pool that serves the calling thread's context; `None` under passthrough, or where there is no context.
    #[inline]
    pub(crate) fn pool(&self) -> Option<&'static Pool> {
        if self.engine.config.strategy == policy::Strategy::Passthrough {
            return None;
        }
        let mut context = ptr::null_mut();
        // SAFETY: this frame's own value.
        if unsafe { next::cuCtxGetCurrent(&mut context) } != SUCCESS || context.is_null() {
            return None;
        }
        self.engine.pool_of(context as u64)
    }

    /// A block of `size` bytes, on the books.
    pub(crate) fn allocate_in(&self, pool: &'static Pool, size: u64, stream: Option<u64>) -> Result<u64, i32> {
        let device = pool.place.device;
        // What contexts take comes first.
        self.engine.saw_device(device);
        let allocated = self.engine.block_from(pool, size, stream);
        match allocated {
            Ok(block) => {
                let stream = self.engine.tensors.number(stream);
                self.engine
                    .write(self.api(), device, Event::Alloc(recorded_block(&block, stream)));
                Ok(block.address)
            }
            Err(DriverError(problem)) => {
                self.failed(Class::Linear, Some(pool.place), size, problem);
                Err(problem)
            }
        }
    }

    /// Frees the block that begins at `address`, where that is in a pool.
    pub(crate) fn free_pooled(&self, address: u64, stream: Option<u64>) -> Freed {
        let Some(pool) = self.engine.pools.perhaps_of(address) else {
            return Freed::NotOurs(None);
        };
        let mut context = ptr::null_mut();
        // SAFETY: this frame's own value.
        match unsafe { next::cuCtxGetCurrent(&mut context) } {
            // As in the driver: freeing takes a context, if not the one that the memory belongs to.
            SUCCESS if context.is_null() => return Freed::Answer(next::INVALID_CONTEXT),
            SUCCESS => {}
            problem => return Freed::Answer(problem),
        }
        self.engine.sharing.freed(address);
        // Its place in the journal comes before the block is free for anybody else.
        let claim = self.engine.claim();
        let freed = self.engine.with_policy(pool, |policy, memory| {
            // A slab is not the job's to free.
            if self.engine.pools.is_lent(pool, address) {
                return Ok(Err(true));
            }
            let Some(block) = policy.free(memory, address, stream) else {
                return Ok(Err(pool.lender.is_some() || policy.owns(address)));
            };
            self.engine.ledger.block_returned(&pool.usage, &block);
            Ok(Ok(block))
        });
        match freed {
            Ok(Ok(block)) => {
                let event = Event::Free {
                    allocation: recorded_block(&block, self.engine.tensors.number(stream)),
                    context_gone: false,
                };
                self.engine.commit(claim, self.api(), pool.place.device, event);
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

fn lacks_memory(result: &Result<Block, DriverError>) -> bool {
    *result == Err(DriverError::OUT_OF_MEMORY)
}

/// What became of a request to free.
pub(crate) enum Freed {
    /// The CUDA result.
    Answer(i32),
    /// No pool has the address. The place in the journal that may have been taken for it.
    NotOurs(Option<Claim>),
}

impl Engine {
    /// A block of this pool or, where it has none, of any pool of its context; of memory that other contexts hold free
    /// at last.
    fn block_from(&self, pool: &'static Pool, size: u64, stream: Option<u64>) -> Result<Block, DriverError> {
        let of = |pool: &'static Pool| {
            self.with_policy(pool, |policy, memory| {
                let block = policy.allocate(memory, size, stream)?;
                self.ledger.block_obtained(pool.place.device, &pool.usage, &block);
                Ok(block)
            })
        };
        let root = pool.root();
        let after_release = || {
            let anything = self.release_idle(root.place.device) > 0 || root.branches.any();
            anything.then(|| of(root))
        };
        let first = if size <= slabs::MOST { pool } else { root };
        let mut result = of(first);
        if lacks_memory(&result) && first.lender.is_some() {
            // There may be room for less than a slab.
            result = of(root);
        }
        if lacks_memory(&result) {
            result = after_release().unwrap_or(result);
        }
        if lacks_memory(&result) {
            let waited = self.between_captures(|| after_release().unwrap_or_else(|| of(root)));
            result = waited.unwrap_or(result);
        }
        if !lacks_memory(&result) || size > slabs::MOST {
            return result;
        }
        let served = root
            .branches
            .all()
            .into_iter()
            .map(of)
            .find(|result| !lacks_memory(result));
        served.unwrap_or(result)
    }

    /// The answer of the policy whose memory may hold `address`.
    fn ask_owner<T>(&self, address: u64, ask: impl FnOnce(&dyn Policy) -> Option<T>) -> Option<T> {
        let pool = self.pools.perhaps_of(address)?;
        ask(lock(&pool.policy).as_deref()?)
    }

    /// The live block of a policy that holds `address`.
    pub(crate) fn pooled_block(&self, address: u64) -> Option<Block> {
        self.ask_owner(address, |policy| policy.find(address))
    }

    /// The live block of a policy that holds `address`, whose it is, and the memory behind it.
    pub(crate) fn pooled_backing(&self, address: u64) -> Option<(Place, Block, Backing)> {
        let pool = self.pools.perhaps_of(address)?;
        let policy = lock(&pool.policy);
        let policy = policy.as_deref()?;
        let block = policy.find(address)?;
        let backing = match pool.lender {
            None => policy.backing(&block),
            Some(lender) => lock(&lender.policy).as_deref()?.backing(&block),
        };
        Some((pool.place, block, backing?))
    }

    /// Gives the devices that may use memory of this one access to what its policies have mapped.
    pub(crate) fn allow_peers(&self, device: i16) {
        for pool in self.pools.all_of(device) {
            // To what is mapped; to what was allocated the driver gives access itself.
            let allowed = self.with_policy(pool, |policy, memory| {
                let mapped = policy.remains().mapped;
                mapped
                    .into_iter()
                    .try_for_each(|(address, size)| memory.allow_access(address, size))
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
    pub(crate) fn is_pooled(&self, address: u64) -> bool {
        self.ask_owner(address, |policy| Some(policy.owns(address)))
            .unwrap_or(false)
    }

    /// Gives memory that holds no block back to the layer below; returns bytes.
    pub fn release_idle(&self, device: i16) -> u64 {
        if self.capturing() {
            return 0;
        }
        let pools = self.pools.all_of(device);
        // A capture that begins now waits until the pool is unlocked.
        let release = |pool: &'static Pool| {
            self.with_policy(pool, |policy, memory| match memory.may_synchronise() {
                true => Ok(policy.release_idle(memory)),
                false => Ok(0),
            })
        };
        // The last of a family is the one that has memory of the layer below.
        let released = |pool: &'static Pool| pool.family().fold(0, |_, one| release(one).unwrap_or(0));
        pools.into_iter().map(released).sum()
    }

    /// For each device with a pool a number that changes with every block obtained or returned.
    pub(crate) fn activity(&self) -> HashMap<i16, u64> {
        let mut sums = HashMap::new();
        for pool in self.pools.contexts().values() {
            let sum: &mut u64 = sums.entry(pool.place.device).or_default();
            *sum = pool
                .family()
                .map(|pool| pool.usage.activity())
                .fold(*sum, u64::wrapping_add);
        }
        sums
    }

    /// Bytes that lie free in the policies' memory of a device, all contexts together, and the largest free block.
    pub fn free_inside(&self, device: i16) -> (u64, u64) {
        let (mut free, mut largest) = (0, 0);
        for root in self.pools.all_of(device) {
            // All at the same time, so that no slab is missed or counted twice on its way; the lender last, as always.
            let family: Vec<_> = root.family().map(|pool| lock(&pool.policy)).collect();
            for one in family.iter().filter_map(|policy| policy.as_deref()) {
                let one = one.statistics();
                free += one.free;
                largest = largest.max(one.largest_free_block);
            }
        }
        (free, largest)
    }
}
