//! A pool's memory as the layer below grants it, told to ledger and journal.

use crate::engine::Engine;
use crate::engine::pools::Pool;
use crate::engine::pools::device_memory::Segments;
use crate::next::SUCCESS;
use base::api::Api;
use journal::format::Event;
use policy::device_memory::Available;

pub struct Accounted<'a> {
    pub engine: &'a Engine,
    /// The pool of a whole context.
    pub pool: &'static Pool,
}

impl Accounted<'_> {
    pub fn gained(&self, address: u64, size: u64, moved: bool) {
        let device = self.pool.place.device;
        self.engine.pools.add_range(address, size, self.pool);
        self.engine.ledger.segment_obtained(device, size);
        if !moved {
            self.engine.grew(device);
        }
        let event = Event::SegmentAlloc { address, size, moved };
        self.engine.write(Api::Policy, device, event);
    }

    pub fn lost(&self, address: u64, size: u64, moved: bool, context_gone: bool) {
        let device = self.pool.place.device;
        self.engine.pools.remove_range(address, size);
        self.engine.ledger.segment_returned(device, size);
        let event = Event::SegmentFree {
            address,
            size,
            moved,
            context_gone,
        };
        self.engine.write(Api::Policy, device, event);
    }
}

impl Segments for Accounted<'_> {
    fn charge(&self, size: u64) -> bool {
        let device = self.pool.place.device;
        let Some(quota) = self.engine.quota(device) else {
            return true;
        };
        quota.take(size).is_ok()
    }

    fn uncharge(&self, size: u64) {
        self.engine.refund(self.pool.place.device, size);
    }

    fn within_limit(&self, told: Available) -> Available {
        self.engine.within_limit(self.pool.place.device, told)
    }

    fn obtained(&self, address: u64, size: u64) {
        self.gained(address, size, false);
    }

    fn give_back(&self, address: u64, free: &dyn Fn() -> i32) -> i32 {
        let size = self.engine.pools.segments().get(&address).map_or(0, |&(size, _)| size);
        if size == 0 {
            return free();
        }
        // Off the books before it is free: a moment after, the address may be somebody else's.
        self.lost(address, size, false, false);
        let result = free();
        if result == SUCCESS {
            self.uncharge(size);
        } else {
            self.gained(address, size, false);
            let event = Event::FreeFailed {
                address,
                segment: Some(size),
                result,
            };
            self.engine.write(Api::Policy, self.pool.place.device, event);
        }
        result
    }

    fn capturing(&self) -> bool {
        self.engine.capturing()
    }

    fn mapped(&self, address: u64, size: u64, moved: bool) {
        self.gained(address, size, moved);
    }

    fn unmapped(&self, address: u64, size: u64, moved: bool) {
        self.lost(address, size, moved, false);
    }

    fn peers(&self) -> Vec<i32> {
        self.engine.peers.of(self.pool.place.device)
    }

    fn in_chunks(&self, why: &str) {
        tracing::warn!("auto_growth grows in chunks, which can be left fragmented: {why}");
    }
}
