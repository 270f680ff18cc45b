//! What the job asks of its pools: blocks, frees, and questions about addresses.
//!
//! A request takes one lock, that of its pool. Only the policy lists the live blocks of a pool; the ledger knows their
//! sum.

use std::collections::HashMap;

use super::Pools;
use super::growth::Growth;
use super::pool::Pool;
use crate::engine::state::location::Location;
use base::cuda::{CudaResult, DriverError};
use base::sync::lock;
use policy::device_memory::DeviceMemory;
use policy::{Backing, Block, Policy, UsedBy, WaitTicket, WantedEvents, slabs};

/// The outcome of a request to free.
pub enum Freed {
    /// The block is free, and clean when the wait has ended. `None` if there is no wait.
    Block(Block, Option<WaitTicket>),
    /// The address lies in memory of the pool, but no live block begins there.
    NoBlock,
    /// The address does not lie in memory of the pool.
    NotPooled,
}

fn lacks_memory(result: &CudaResult<Block>) -> bool {
    *result == Err(DriverError::OUT_OF_MEMORY)
}

impl Pool {
    /// A block of this very pool. `stream` is the identity of the stream that the block will be used on, if that is
    /// known.
    fn allocate(&'static self, size: u64, stream: Option<u64>) -> CudaResult<Block> {
        let (block, wanted) = self.with_policy(|policy, memory| {
            let block = policy.allocate(memory, size, stream)?;
            self.state
                .ledger
                .block_obtained(self.location.device, &self.usage, &block);
            Ok((block, policy.take_wanted_events()))
        })?;
        self.record_events(wanted);
        Ok(block)
    }

    /// Frees the block that begins at `address`. A wait begins if the block is awaited.
    pub fn free(&'static self, address: u64, used_by: UsedBy) -> Freed {
        let mut wanted = Vec::new();
        let freed = self.with_policy(|policy, memory| {
            // To the policy a slab is a live block, but the job did not allocate it.
            if self.has_lent(address) {
                return Ok(Freed::NoBlock);
            }
            Ok(match policy.free(memory, address, used_by) {
                Some(block) => {
                    self.usage.returned(&block);
                    wanted = policy.take_wanted_events();
                    let is_awaited = used_by == UsedBy::Awaited;
                    Freed::Block(block, is_awaited.then(|| policy.begin_wait()).flatten())
                }
                None if self.parent.is_some() || policy.owns(address) => Freed::NoBlock,
                None => Freed::NotPooled,
            })
        });
        self.record_events(wanted);
        // An error means that the pool's context is gone.
        freed.unwrap_or(Freed::NotPooled)
    }

    /// Records the events that the policy wants. The policy is not locked meanwhile, because the queue of a stream may be
    /// full.
    fn record_events(&'static self, wanted: Vec<WantedEvents>) {
        for wanted in wanted {
            let recorded = wanted.record(&Growth::of(self.root()));
            let _ = self.with_policy(|policy, memory| {
                policy.events_recorded(memory, wanted, recorded);
                Ok(())
            });
        }
    }

    fn begin_wait(&'static self) -> Option<WaitTicket> {
        self.with_policy(|policy, _| Ok(policy.begin_wait())).ok().flatten()
    }

    /// A wait for all work that may use memory of this pool has ended.
    pub fn end_wait(&'static self, ticket: WaitTicket) {
        // If the context is gone meanwhile, nothing is left to do.
        let _ = self.with_policy(|policy, memory| {
            policy.end_wait(memory, ticket);
            Ok(())
        });
    }

    /// Whether the device has so much memory at all.
    fn may_ever_serve(&'static self, size: u64) -> bool {
        let available = Growth::of(self).available();
        available.is_ok_and(|available| size <= available.total)
    }

    /// See `Growth::wait_for_users`.
    pub fn wait_for_users(&'static self) -> CudaResult<bool> {
        Growth::of(self.root()).wait_for_users()
    }

    /// See `Growth::has_context_events`.
    pub fn has_context_events() -> bool {
        Growth::has_context_events()
    }
}

/// Waits that have begun in pools.
pub struct Waits(Vec<(&'static Pool, WaitTicket)>);

impl Waits {
    /// The work that was submitted before the waits began is done.
    pub fn end(self) {
        for (pool, ticket) in self.0 {
            pool.end_wait(ticket);
        }
    }
}

impl Pools {
    /// A block of `pool`, which serves the calling thread; a large one of its context's pool. If that pool has no memory,
    /// idle memory of all contexts is given back, and the other pools of the context are asked.
    pub fn allocate(&self, pool: &'static Pool, size: u64, stream: Option<u64>) -> CudaResult<Block> {
        let root = pool.root();
        // If a call has told of a fault meanwhile, that is the driver's answer, and not what the policy makes of it.
        let from = |pool: &'static Pool| {
            root.check_fault()?;
            let result = pool.allocate(size, stream);
            result.map_err(|problem| root.check_fault().err().unwrap_or(problem))
        };
        let after_release = || {
            let (cleaned, released) = self.reclaim(root.location.device);
            let may_help = cleaned || released > 0 || root.has_subpools();
            may_help.then(|| from(root))
        };
        let first = if size <= slabs::LARGEST_REQUEST_BYTES {
            pool
        } else {
            root
        };
        let mut result = from(first);
        if lacks_memory(&result) && first.parent.is_some() {
            // The context's pool may have room for the request, but not for a slab.
            result = from(root);
        }
        if lacks_memory(&result) && !root.may_ever_serve(size) {
            return result;
        }
        if lacks_memory(&result) {
            result = after_release().unwrap_or(result);
        }
        if lacks_memory(&result) {
            let captures = &self.state.captures;
            let waited = captures.run_between(|| after_release().unwrap_or_else(|| from(root)));
            result = waited.unwrap_or(result);
        }
        if !lacks_memory(&result) || size > slabs::LARGEST_REQUEST_BYTES {
            return result;
        }
        let served = root
            .subpools()
            .into_iter()
            .map(from)
            .find(|result| !lacks_memory(result));
        served.unwrap_or(result)
    }

    /// What the policy whose memory may hold `address` answers.
    fn ask_owner<T>(&self, address: u64, ask: impl FnOnce(&dyn Policy) -> Option<T>) -> Option<T> {
        let pool = self.possible_owner(address)?;
        ask(lock(&pool.policy).as_deref()?)
    }

    /// The live block that holds `address`.
    pub fn block_at(&self, address: u64) -> Option<Block> {
        self.ask_owner(address, |policy| policy.find(address))
    }

    /// The live block that holds `address`, its device and context, and the memory behind it.
    pub fn backing_at(&self, address: u64) -> Option<(Location, Block, Backing)> {
        let pool = self.possible_owner(address)?;
        let policy = lock(&pool.policy);
        let policy = policy.as_deref()?;
        let block = policy.find(address)?;
        let backing = match pool.parent {
            None => policy.backing(&block),
            Some(parent) => lock(&parent.policy).as_deref()?.backing(&block),
        };
        Some((pool.location, block, backing?))
    }

    /// Whether `address` lies in memory of a pool, in a live block or not.
    pub fn is_pooled(&self, address: u64) -> bool {
        self.ask_owner(address, |policy| Some(policy.owns(address)))
            .unwrap_or(false)
    }

    /// Gives the peers of a device access to all memory that its pools have mapped.
    pub fn allow_peers(&self, device: i16) {
        for pool in self.of_device(device) {
            // Only mapped memory needs this. The driver itself gives access to memory that it allocated.
            let allowed = pool.with_policy(|policy, memory| {
                let mapped = policy.virtual_memory().mapped;
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

    /// Gives memory of a device without live blocks back to the next layer; returns bytes. Waits for the work that may
    /// use free memory.
    pub fn release_idle(&self, device: i16) -> u64 {
        self.reclaim(device).1
    }

    /// Waits until the free memory of a device is clean, and gives back what holds no live block. Returns whether dirty
    /// memory became clean, and how many bytes were given back. Does nothing while a capture is open.
    fn reclaim(&self, device: i16) -> (bool, u64) {
        if self.state.captures.any_open() {
            return (false, 0);
        }
        let mut cleaned = false;
        for root in self.of_device(device) {
            if let Some(waits) = self.begin_waits(root)
                && root.wait_for_users() == Ok(true)
            {
                waits.end();
                cleaned = true;
            }
        }
        let release = |pool: &'static Pool| {
            pool.with_policy(|policy, memory| match memory.is_capturing() {
                false => Ok(policy.release_idle(memory)),
                true => Ok(0),
            })
        };
        // The last of a family is the pool of the context. Only what that gives back reaches the next layer.
        let released = |pool: &'static Pool| pool.family().fold(0, |_, one| release(one).unwrap_or(0));
        (cleaned, self.of_device(device).into_iter().map(released).sum())
    }

    /// Begins a wait in each pool of a context that has dirty memory. `None` if there is no such pool.
    fn begin_waits(&self, root: &'static Pool) -> Option<Waits> {
        let begin = |pool: &'static Pool| pool.begin_wait().map(|ticket| (pool, ticket));
        let begun: Vec<_> = root.family().filter_map(begin).collect();
        (!begun.is_empty()).then_some(Waits(begun))
    }

    /// The last open capture has ended. Events can be recorded again on the streams of what was freed meanwhile.
    pub fn captures_over(&self) {
        for pool in self.select(|_| true).into_iter().flat_map(Pool::family) {
            let wanted = pool.with_policy(|policy, _| {
                policy.want_events();
                Ok(policy.take_wanted_events())
            });
            pool.record_events(wanted.unwrap_or_default());
        }
    }

    /// The job is about to wait for all work of a context. `None` if that cleans no memory of pools.
    pub fn context_waits(&self, context: u64) -> Option<Waits> {
        let root = *self.registry.contexts().get(&context)?;
        let has_peers = !self.state.peers.users_of(context).is_empty();
        if has_peers { None } else { self.begin_waits(root) }
    }

    /// For each device with a pool, a number that changes with every block obtained or returned.
    pub fn activity(&self) -> HashMap<i16, u64> {
        let mut sums = HashMap::new();
        for pool in self.select(|_| true) {
            let sum: &mut u64 = sums.entry(pool.location.device).or_default();
            *sum = pool
                .family()
                .map(|pool| pool.usage.activity())
                .fold(*sum, u64::wrapping_add);
        }
        sums
    }

    /// Bytes that lie free in the pools of a device, all contexts together, and the largest free block.
    pub fn free_inside(&self, device: i16) -> (u64, u64) {
        let (mut free, mut largest) = (0, 0);
        for root in self.of_device(device) {
            // All locks at the same time, so that no slab is missed or counted twice while it changes hands. The parent's
            // lock comes last, as always.
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
