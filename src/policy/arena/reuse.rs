//! Which free block serves a request, and the synchronisation that cleans dirty blocks.

use base::cuda::DriverError;

use super::request::{Region, Request};
use super::segments::Arena;
use super::wait::WaitFor;
use crate::blocks::Id;
use crate::device_memory::DeviceMemory;
use crate::free_index::FreeIndex;

/// A usable block is taken although a dirty block is a better fit, if it is longer than the request by at most 1/16 of
/// the request. A synchronisation stalls the device, which costs more than that. The factor is a judgement: the
/// recorded and generated traces use one stream, and on them it makes no difference.
const USABLE_EXCESS_DIVISOR: u32 = 16;

impl Arena {
    fn index_of(&self, stream: u64) -> Option<usize> {
        self.streams.iter().position(|&known| known == stream)
    }

    /// What a block waits for if it is freed on this stream. A stream that is new is noted. If the stream is not known,
    /// or if too many streams were noted, the block waits for the whole context.
    pub(super) fn wait_for(&mut self, stream: Option<u64>) -> WaitFor {
        let Some(stream) = stream else {
            return WaitFor::CONTEXT;
        };
        if let Some(index) = self.index_of(stream) {
            return WaitFor::stream(index);
        }
        if self.streams.len() == WaitFor::MOST_STREAMS {
            return WaitFor::CONTEXT;
        }
        let wait = WaitFor::stream(self.streams.len());
        self.streams.push(stream);
        for region in [Region::Main, Region::Small] {
            self.lists.push(FreeIndex::new(wait.list(region)));
        }
        wait
    }

    /// What blocks wait for if they were freed on this stream. It is `NOTHING` if no block was freed on it.
    fn wait_for_own(&self, stream: Option<u64>) -> WaitFor {
        let index = stream.and_then(|stream| self.index_of(stream));
        index.map_or(WaitFor::NOTHING, WaitFor::stream)
    }

    fn free_list(&self, region: Region, wait: WaitFor) -> &FreeIndex {
        &self.lists[wait.list(region) as usize]
    }

    fn smallest_of(&self, region: Region, units: u32, waits: impl Iterator<Item = WaitFor>) -> Option<Id> {
        waits
            .filter_map(|wait| self.free_list(region, wait).best(units))
            .min_by_key(|&id| self.blocks.units(id))
    }

    /// The best fit that may be used now, and the best fit that would need a synchronisation first.
    fn candidates(&self, memory: &dyn DeviceMemory, region: Region, request: &Request) -> (Option<Id>, Option<Id>) {
        // Captured work runs later, perhaps on another stream, so the order of the stream promises nothing.
        let stream = request.stream.filter(|_| memory.may_synchronise());
        let own = self.wait_for_own(stream);
        let others = WaitFor::each(self.streams.len()).filter(|&wait| wait != own);
        let own = Some(own).filter(|&own| own != WaitFor::NOTHING);
        let usable = own.into_iter().chain([WaitFor::NOTHING]);
        (
            self.smallest_of(region, request.units, usable),
            self.smallest_of(region, request.units, others),
        )
    }

    /// The best fit for a request, after a synchronisation if a dirty block fits better. The block is not cut yet, see
    /// `carve`. `None` if no block is long enough, or if none may be used now.
    pub fn best(
        &mut self,
        memory: &dyn DeviceMemory,
        region: Region,
        request: &Request,
    ) -> Result<Option<Id>, DriverError> {
        let (usable, dirty) = self.candidates(memory, region, request);
        let good_enough = match (usable, dirty) {
            (Some(_), None) => true,
            // A synchronisation helps only if it joins neighbours.
            (None, None) => !self.has_unjoined,
            (None, Some(_)) => false,
            (Some(usable), Some(dirty)) => {
                let (found, better) = (self.blocks.units(usable), self.blocks.units(dirty));
                found <= better || found - request.units <= request.units / USABLE_EXCESS_DIVISOR
            }
        };
        if good_enough || !self.synchronise(memory)? {
            return Ok(usable);
        }
        Ok(self.candidates(memory, region, request).0)
    }

    /// The best fit for a request among the blocks that may be used now.
    pub fn best_now(&self, memory: &dyn DeviceMemory, region: Region, request: &Request) -> Option<Id> {
        self.candidates(memory, region, request).0
    }

    /// Makes every free block clean. Returns false if no synchronisation is allowed now.
    pub fn synchronise(&mut self, memory: &dyn DeviceMemory) -> Result<bool, DriverError> {
        if self.all_clean() {
            return Ok(true);
        }
        if !memory.may_synchronise() {
            return Ok(false);
        }
        match memory.synchronise() {
            // A stream capture is open that the library has not seen begin.
            Err(DriverError::CAPTURE_UNSUPPORTED | DriverError::CAPTURE_INVALIDATED) => return Ok(false),
            result => result?,
        }
        self.synchronisations += 1;
        self.has_unjoined = false;
        for list in self.dirty_lists() {
            while let Some(id) = self.lists[list].largest() {
                self.unlist(id);
                self.join_clean(id);
            }
        }
        Ok(true)
    }

    pub(super) fn dirty_lists(&self) -> std::ops::Range<usize> {
        WaitFor::CONTEXT.list(Region::Main) as usize..self.lists.len()
    }

    pub fn all_clean(&self) -> bool {
        self.lists[self.dirty_lists()].iter().all(FreeIndex::is_empty)
    }

    /// Whether this is a free block that may be used, unmapped or moved now.
    pub fn is_clean(&self, id: Id) -> bool {
        self.is_free(id, WaitFor::NOTHING)
    }

    /// Clean free blocks of at least `least` units, longest first.
    pub fn clean_blocks(&self, region: Region, least: u32) -> impl Iterator<Item = Id> + '_ {
        self.examine(self.free_list(region, WaitFor::NOTHING), least)
    }

    /// Free blocks of at least `least` units that wait only for work on `stream`, longest first.
    pub fn freed_on(&self, stream: Option<u64>, region: Region, least: u32) -> impl Iterator<Item = Id> + '_ {
        let own = Some(self.wait_for_own(stream)).filter(|&own| own != WaitFor::NOTHING);
        let list = own.map(|own| self.free_list(region, own));
        list.into_iter().flat_map(move |list| self.examine(list, least))
    }

    /// The blocks of a list, each counted when the iterator reaches it.
    fn examine<'a>(&'a self, list: &'a FreeIndex, least: u32) -> impl Iterator<Item = Id> + 'a {
        let blocks = list.descending(&self.blocks, least);
        blocks.inspect(|_| self.examined.set(self.examined.get() + 1))
    }
}
