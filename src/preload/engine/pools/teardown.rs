//! The teardown of a context's pool: taken off the books before the context is destroyed, put back if it is not.

use std::ptr;
use std::time::Duration;

use super::Pools;
use super::growth::Growth;
use super::pool::Pool;
use crate::engine::state::records;
use crate::next;
use base::api::Api;
use base::cuda::{CudaResult, check};
use base::mutant;
use policy::{Policy, VirtualMemory};

/// How long a thread that looks for free memory may still use a context that is about to be destroyed.
const FOR_VISITS: Duration = Duration::from_secs(10);

/// A pool whose context is about to be destroyed, with what it held.
pub struct DetachedPool {
    pool: &'static Pool,
    /// The policies of the subpools and of the pool, in this order.
    policies: Vec<(&'static Pool, Box<Policy>)>,
    /// First address and bytes of each segment, and whether it is a stitch.
    segments: Vec<(u64, u64, bool)>,
    /// First address and bytes of each slab, and its subpool.
    slabs: Vec<(u64, u64, &'static Pool)>,
}

/// Whether the next layer still has the memory of a context that is gone. The header can be read either way for a primary
/// context that is reset. An H100 keeps the memory (`primary_context_reset_keeps_vmm` in tests/assumptions); whether it
/// stays mapped was not seen. So both are asked.
fn is_left(memory: &VirtualMemory) -> CudaResult<bool> {
    let Some(&(address, _)) = memory.mapped.first() else {
        return Ok(true);
    };
    match memory.handles.first() {
        Some(&handle) if !next::is_mapped(address)? => next::is_handle(handle),
        Some(_) => Ok(true),
        None => next::is_mapped(address),
    }
}

/// Gives back what a policy mapped in a context that is gone. The error is the fault of a context that is current, which
/// the next layer answers to all calls.
fn give_back(memory: &VirtualMemory) -> CudaResult {
    if !is_left(memory)? {
        // The handles and mappings went with the context. Their numbers and addresses may name other memory by now.
        return Ok(());
    }
    // What fails twice stays with the driver.
    // SAFETY: the mappings, handles and ranges belong to the pool. The context is gone, so no work uses them.
    unsafe {
        for (address, size) in memory.runs() {
            let _ = next::retried(|| check(next::cuMemUnmap(address, size as usize)));
        }
        // Mutant 6: a leak.
        for &handle in memory.handles.iter().skip(usize::from(mutant::is(6))) {
            let _ = next::retried(|| check(next::cuMemRelease(handle)));
        }
        for &(address, size) in &memory.ranges {
            let _ = next::retried(|| check(next::cuMemAddressFree(address, size as usize)));
        }
    }
    Ok(())
}

impl Pools {
    /// Takes a context's pool, its blocks and its memory off the books. If the context still lives, waits for threads that
    /// use it.
    pub fn detach(&self, context: u64, lives: bool, api: Api) -> Option<DetachedPool> {
        let pool = self.registry.contexts_mut().remove(&context)?;
        if lives {
            pool.visits.wait_at_most(FOR_VISITS);
        }
        let device = pool.location.device;
        let mut policies = Vec::new();
        for one in pool.family() {
            policies.push((one, one.policy.take()?));
        }
        let slabs = self.registry.slabs_of(|subpool| ptr::eq(subpool.root(), pool));
        for (one, policy) in &policies {
            for block in policy.live() {
                if one.has_lent(block.address) {
                    continue;
                }
                one.usage.returned(&block);
                let record = records::block_freed(api, device, &block, 0, true);
                self.state.records.write(record);
            }
            self.state.ledger.device(device).pool_ends(&one.usage);
        }
        for &(address, size, _) in &slabs {
            self.registry.take_back(address, size);
        }
        let segments = self.registry.segments_of(pool);
        let growth = Growth { pool };
        for &(address, size, again) in &segments {
            growth.lost(address, size, again, true);
        }
        Some(DetachedPool {
            pool,
            policies,
            segments,
            slabs,
        })
    }

    /// Puts a pool back that `detach` took: its context was not destroyed.
    pub fn attach(&self, detached: DetachedPool, api: Api) {
        let DetachedPool {
            pool,
            policies,
            segments,
            slabs,
        } = detached;
        let device = pool.location.device;
        let growth = Growth { pool };
        for (address, size, again) in segments {
            growth.gained(address, size, again);
        }
        for (address, size, subpool) in slabs {
            self.registry.lend(address, size, subpool);
        }
        // The parent pool comes first, because its subpools need it.
        for (one, policy) in policies.into_iter().rev() {
            self.state.ledger.device(device).pool_begins(&one.usage);
            for block in policy.live() {
                if one.has_lent(block.address) {
                    continue;
                }
                self.state.ledger.device(device).block_obtained(&one.usage, &block);
                let record = records::block_obtained(api, device, &block, 0);
                self.state.records.write(record);
            }
            *one.policy.policy.lock() = Some(policy);
        }
        self.registry.contexts_mut().insert(pool.location.context, pool);
    }

    /// The context of a detached pool is gone. Gives back the memory that did not go with the context.
    pub fn release_detached(&self, detached: DetachedPool) {
        let counted = detached.segments.iter().filter(|(_, _, again)| !again);
        let bytes = counted.map(|&(_, size, _)| size).sum();
        // The memory of a subpool belongs to its parent pool.
        for memory in detached.policies.iter().map(|(_, policy)| policy.virtual_memory()) {
            if give_back(&memory).is_err() {
                // A new thread has no current context.
                std::thread::scope(|scope| {
                    let _ = std::thread::Builder::new().spawn_scoped(scope, || give_back(&memory));
                });
            }
        }
        self.state.limits.refund(detached.pool.location.device, bytes);
    }
}
