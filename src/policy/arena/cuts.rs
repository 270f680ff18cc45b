//! Cutting a free block for a request, and freeing it again.

use super::request::{Cut, Request};
use super::segments::Arena;
use super::wait::WaitFor;
use crate::blocks::{Id, Kind, NONE, UNIT};
use crate::device_memory::DeviceMemory;
use crate::policy::Block;

impl Arena {
    /// Cuts a live block for the request out of a free one.
    pub fn carve(&mut self, id: Id, request: &Request, cut: Cut) -> Block {
        let wait = self.unlist(id);
        let rest = self.blocks.units(id) - request.units;
        let skip = match cut {
            Cut::Head => 0,
            Cut::Tail => rest,
            Cut::At(skip) => skip,
        };
        let mut live = id;
        if skip > 0 {
            live = self.blocks.split(id, skip);
            self.list(id, wait);
        }
        if skip < rest {
            let after = self.blocks.split(live, request.units);
            self.list(after, wait);
        }
        self.blocks.make_live(live, request.bytes);
        self.allocated += request.rounded();
        self.blocks.describe(live)
    }

    /// Frees the live block that begins at `address`; returns it, and the free block that it is now a part of.
    pub fn free(&mut self, memory: &dyn DeviceMemory, address: u64, stream: Option<u64>) -> Option<(Block, Id)> {
        let id = self.blocks.make_free(address)?;
        let block = self.blocks.describe(id);
        self.allocated -= block.allocated;
        let wait = self.wait_for(stream);
        let free_block = match memory.may_synchronise() {
            true => self.join(id, wait),
            // A joined block would be dirty as a whole, and nothing could clean it before the capture ends.
            false => {
                self.has_unjoined = true;
                self.join_alike(id, wait)
            }
        };
        Some((block, free_block))
    }

    /// Joins a free block that is in no list with its free neighbours, and puts the result in a list. The joined block
    /// waits for everything that its parts waited for.
    fn join(&mut self, id: Id, wait: WaitFor) -> Id {
        let (mut id, mut wait) = (id, wait);
        let next = self.blocks.next(id);
        if next != NONE && self.blocks.kind(next) == Kind::Free {
            wait = wait.joined_with(self.unlist(next));
            self.blocks.join_next(id);
        }
        let prev = self.blocks.prev(id);
        if prev != NONE && self.blocks.kind(prev) == Kind::Free {
            wait = wait.joined_with(self.unlist(prev));
            self.blocks.join_next(prev);
            id = prev;
        }
        self.list(id, wait);
        id
    }

    /// Like `join`, but only with neighbours that wait for the same.
    fn join_alike(&mut self, id: Id, wait: WaitFor) -> Id {
        let mut id = id;
        let next = self.blocks.next(id);
        if self.is_free(next, wait) {
            self.unlist(next);
            self.blocks.join_next(id);
        }
        let prev = self.blocks.prev(id);
        if self.is_free(prev, wait) {
            self.unlist(prev);
            self.blocks.join_next(prev);
            id = prev;
        }
        self.list(id, wait);
        id
    }

    /// Joins a clean block that is in no list with its clean neighbours.
    pub(super) fn join_clean(&mut self, id: Id) -> Id {
        self.join_alike(id, WaitFor::NOTHING)
    }

    /// Splits the live block that contains `address` in two; the second begins at `address`.
    pub fn split_live(&mut self, address: u64) {
        let Some(id) = self.blocks.containing(address) else {
            return;
        };
        let before = ((address - self.blocks.address(id)) / UNIT) as u32;
        if self.blocks.kind(id) != Kind::Live || before == 0 {
            return;
        }
        let slack = {
            let block = self.blocks.describe(id);
            block.allocated - block.requested
        };
        let rest = self.blocks.split(id, before);
        self.blocks.set_slack(id, 0);
        let requested = u64::from(self.blocks.units(rest)) * UNIT - slack;
        self.blocks.make_live(rest, requested);
    }
}
