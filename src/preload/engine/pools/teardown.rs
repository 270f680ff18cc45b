//! A pool whose context goes: off the books first, back on them where the context stays after all.

use std::ptr;

use crate::engine::pools::Pool;
use crate::engine::pools::growth::Accounted;
use crate::engine::state::records::recorded_block;
use crate::engine::{Engine, lock};
use crate::next;
use base::api::Api;
use journal::format::Event;
use policy::Policy;

/// A pool whose context is about to go, with what it held.
pub struct DetachedPool {
    pool: &'static Pool,
    /// Its own, and those of its branches.
    policies: Vec<(&'static Pool, Box<dyn Policy>)>,
    segments: Vec<(u64, u64)>,
    slabs: Vec<(u64, u64, &'static Pool)>,
}

impl Engine {
    /// Takes a context's pool, its blocks and its memory off the books.
    pub(crate) fn detach_pool(&self, context: u64, api: Api) -> Option<DetachedPool> {
        let pool = self.pools.contexts_mut().remove(&context)?;
        let mut policies = Vec::new();
        for one in pool.family() {
            policies.push((one, lock(&one.policy).take()?));
        }
        let slabs: Vec<_> = (self.pools.slabs().iter())
            .filter(|(_, (_, branch))| ptr::eq(branch.root(), pool))
            .map(|(&address, &(size, branch))| (address, size, branch))
            .collect();
        for (one, policy) in &policies {
            for block in policy.live() {
                if self.pools.is_lent(one, block.address) {
                    continue;
                }
                self.ledger.block_returned(&one.usage, &block);
                let event = Event::Free {
                    allocation: recorded_block(&block, 0),
                    context_gone: true,
                };
                self.write(api, pool.place.device, event);
            }
            self.ledger.pool_ends(pool.place.device, &one.usage);
        }
        for &(address, size, _) in &slabs {
            self.pools.take_back(address, size);
        }
        let segments = self.pools.segments_of(pool);
        let accounted = Accounted { engine: self, pool };
        for &(address, size) in &segments {
            accounted.lost(address, size, false, true);
        }
        Some(DetachedPool {
            pool,
            policies,
            segments,
            slabs,
        })
    }

    /// Puts a pool back that `detach_pool` took.
    pub(crate) fn attach_pool(&self, detached: DetachedPool, api: Api) {
        let DetachedPool {
            pool,
            policies,
            segments,
            slabs,
        } = detached;
        let device = pool.place.device;
        let accounted = Accounted { engine: self, pool };
        for (address, size) in segments {
            accounted.gained(address, size, false);
        }
        for (address, size, branch) in slabs {
            self.pools.lend(address, size, branch);
        }
        // The lender first: a branch cannot do without.
        for (one, policy) in policies.into_iter().rev() {
            self.ledger.pool_begins(device, &one.usage);
            for block in policy.live() {
                if self.pools.is_lent(one, block.address) {
                    continue;
                }
                self.ledger.block_obtained(device, &one.usage, &block);
                self.write(api, device, Event::Alloc(recorded_block(&block, 0)));
            }
            *lock(&one.policy) = Some(policy);
        }
        self.pools.contexts_mut().insert(pool.place.context, pool);
    }

    /// The context of a detached pool is gone: gives back what did not go with it.
    pub(crate) fn bury_pool(&self, detached: DetachedPool) {
        let bytes = detached.segments.iter().map(|&(_, size)| size).sum();
        // What a branch has is its lender's.
        for remains in detached.policies.iter().map(|(_, policy)| policy.remains()) {
            // SAFETY: mappings, handles and ranges of the pool's own, and no work is left that could use them.
            unsafe {
                for (address, size) in remains.mapped {
                    next::cuMemUnmap(address, size as usize);
                }
                for handle in remains.handles {
                    next::cuMemRelease(handle);
                }
                for (address, size) in remains.ranges {
                    next::cuMemAddressFree(address, size as usize);
                }
            }
        }
        self.refund(detached.pool.place.device, bytes);
    }
}
