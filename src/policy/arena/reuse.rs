//! Which free block serves a request, and how dirty blocks become clean. Nothing here waits.

use super::batches::{Batch, BatchId, Users};
use super::request::{Region, Request};
use super::segments::Arena;
use crate::blocks::Id;
use crate::device_memory::DeviceMemory;
use crate::free_index::FreeIndex;
use crate::policy::{Recorded, UsedBy, WaitTicket, WantedEvents};

/// Events are recorded at each of this many frees after memory has grown, or a block was composed of clean memory. A job
/// that repeats itself does neither. The number is that of `SEARCHES_AFTER_GROWTH`, for the same reason.
const FREES_WITH_EVENTS: u32 = 4000;
/// Later, events are recorded at one of this many frees, so that most free memory is known to be clean if a request needs
/// it. If none are recorded, the utilisation of `variable_lengths` falls from 0.999 to 0.960; with 16, no other changes
/// by 0.001.
const FREES_BETWEEN_EVENTS: u64 = 64;
/// After a look at the events that found none done, this many requests do without one, if a free block serves them.
const REQUESTS_BETWEEN_LOOKS: u32 = 3;

impl Arena {
    fn batch(&self, id: BatchId) -> &Batch {
        &self.batches[id.index()]
    }

    /// The batches of blocks that work may still use, also empty ones.
    fn dirty_batches(&self) -> impl Iterator<Item = BatchId> + '_ {
        (BatchId::UNKNOWN.index()..self.batches.len())
            .map(BatchId::new)
            .filter(|&id| self.batch(id).users != Users::Vacant)
    }

    fn is_empty(&self, id: BatchId) -> bool {
        let [main, small] = [Region::Main, Region::Small].map(|region| self.free_list(region, id).is_empty());
        main && small
    }

    fn free_list(&self, region: Region, id: BatchId) -> &FreeIndex {
        &self.lists[id.list(region) as usize]
    }

    pub fn all_clean(&self) -> bool {
        self.lists[BatchId::UNKNOWN.list(Region::Main) as usize..]
            .iter()
            .all(FreeIndex::is_empty)
    }

    // ---- joining a batch

    /// The batch for a block that is freed now.
    pub(super) fn batch_for(&mut self, memory: &dyn DeviceMemory, used_by: UsedBy) -> BatchId {
        let is_for = |users: &Users| match (used_by, users) {
            (UsedBy::Unknown | UsedBy::Awaited, Users::Unknown) => true,
            (UsedBy::Streams(these), Users::Streams(streams)) => **streams == *these,
            _ => false,
        };
        if used_by == UsedBy::Nothing {
            return BatchId::CLEAN;
        }
        let open = self.dirty_batches().find(|&id| {
            let batch = self.batch(id);
            batch.is_open() && is_for(&batch.users)
        });
        let found = open.or_else(|| match used_by {
            UsedBy::Streams(streams) => self.begin_batch(memory, Users::Streams(streams.into())),
            _ => self.begin_batch(memory, Users::Unknown),
        });
        let id = found.unwrap_or(BatchId::UNKNOWN);
        let batch = &mut self.batches[id.index()];
        batch.joined += 1;
        // If there are too many batches, a closed one is opened again: it then waits for a later end.
        batch.cleaned_by = None;
        id
    }

    /// A new batch; `None` if there are too many.
    fn begin_batch(&mut self, memory: &dyn DeviceMemory, users: Users) -> Option<BatchId> {
        self.batches_begun += 1;
        let batch = Batch::new(users, self.batches_begun);
        if let Some(index) = self.batches.iter().position(|batch| batch.users == Users::Vacant) {
            self.batches[index] = batch;
            return Some(BatchId::new(index));
        }
        if self.batches.len() == BatchId::MOST {
            return self.replace_empty_batch(memory, batch);
        }
        let id = BatchId::new(self.batches.len());
        self.batches.push(batch);
        for region in [Region::Main, Region::Small] {
            self.lists.push(FreeIndex::new(id.list(region)));
        }
        Some(id)
    }

    /// Gives the number of an empty batch to another. Its stream may be gone, and no event is looked at any more.
    fn replace_empty_batch(&mut self, memory: &dyn DeviceMemory, batch: Batch) -> Option<BatchId> {
        let mut later = (BatchId::UNKNOWN.index() + 1..self.batches.len()).map(BatchId::new);
        let id = later.find(|&id| self.is_empty(id))?;
        let before = std::mem::replace(&mut self.batches[id.index()], batch);
        before.events.into_iter().for_each(|event| memory.forget_event(event));
        Some(id)
    }

    /// Whether it is known which streams may use the blocks of both batches, and they are the same. The blocks can then
    /// be joined in the later batch.
    pub(super) fn have_same_streams(&self, one: BatchId, other: BatchId) -> bool {
        let users = &self.batch(one).users;
        matches!(users, Users::Streams(_)) && *users == self.batch(other).users
    }

    // ---- choosing a block

    fn smallest_of(&self, region: Region, units: u32, batches: impl Iterator<Item = BatchId>) -> Option<Id> {
        batches
            .filter_map(|id| self.free_list(region, id).best(units))
            .min_by_key(|&id| self.blocks.units(id))
    }

    /// The batches whose blocks only work on this stream may use.
    fn batches_of(&self, stream: Option<u64>) -> impl Iterator<Item = BatchId> + '_ {
        let is_own = move |id: &BatchId| stream.is_some_and(|stream| self.batch(*id).is_of(stream));
        self.dirty_batches().filter(is_own)
    }

    /// The best fit for a request among the blocks that may be used now. The block is not cut yet, see `carve`. `None`
    /// if no such block is long enough.
    pub fn best(&self, memory: &dyn DeviceMemory, region: Region, request: &Request) -> Option<Id> {
        let clean = std::iter::once(BatchId::CLEAN);
        let Some(stream) = request
            .stream
            .filter(|_| self.batches.len() > BatchId::UNKNOWN.index() + 1)
        else {
            return self.smallest_of(region, request.units, clean);
        };
        // Captured work runs later, perhaps on another stream, so the order of the stream promises nothing.
        let own = self.batches_of((!memory.is_capturing()).then_some(stream));
        self.smallest_of(region, request.units, own.chain(clean))
    }

    /// Whether this is a free block that may be used, unmapped or moved now.
    pub fn is_clean(&self, id: Id) -> bool {
        self.is_free(id, BatchId::CLEAN)
    }

    /// Clean free blocks of at least `least` units, longest first.
    pub fn clean_blocks(&self, region: Region, least: u32) -> impl Iterator<Item = Id> + '_ {
        self.examine(self.free_list(region, BatchId::CLEAN), least)
    }

    /// Free blocks of at least `least` units that wait only for work on `stream`, those of each batch longest first.
    pub fn freed_on(&self, stream: Option<u64>, region: Region, least: u32) -> impl Iterator<Item = Id> + '_ {
        self.batches_of(stream)
            .flat_map(move |id| self.examine(self.free_list(region, id), least))
    }

    /// The blocks of a list, each counted when the iterator reaches it.
    fn examine<'a>(&'a self, list: &'a FreeIndex, least: u32) -> impl Iterator<Item = Id> + 'a {
        let blocks = list.descending(&self.blocks, least);
        blocks.inspect(|_| self.examined.set(self.examined.get() + 1))
    }

    // ---- becoming clean

    /// Closes every batch for a wait that begins now. `None` if all blocks are clean.
    pub fn begin_wait(&mut self) -> Option<WaitTicket> {
        if self.all_clean() {
            return None;
        }
        self.waits_begun += 1;
        for index in BatchId::UNKNOWN.index()..self.batches.len() {
            let has_blocks = !self.is_empty(BatchId::new(index));
            let batch = &mut self.batches[index];
            if has_blocks && batch.cleaned_by.is_none() {
                batch.cleaned_by = Some(self.waits_begun);
            }
        }
        Some(WaitTicket(self.waits_begun))
    }

    /// The wait has ended: the blocks that were dirty when it began are clean. `then` hears of each.
    pub fn end_wait(
        &mut self,
        memory: &dyn DeviceMemory,
        WaitTicket(wait): WaitTicket,
        mut then: impl FnMut(&mut Arena, Id),
    ) {
        for index in BatchId::UNKNOWN.index()..self.batches.len() {
            if self.batches[index].cleaned_by.is_some_and(|first| first <= wait) {
                self.clean(memory, BatchId::new(index), &mut then);
            }
        }
    }

    fn clean(&mut self, memory: &dyn DeviceMemory, id: BatchId, then: &mut impl FnMut(&mut Arena, Id)) {
        let users = match id {
            BatchId::UNKNOWN => Users::Unknown,
            _ => Users::Vacant,
        };
        self.batches_begun += 1;
        let fresh = Batch::new(users, self.batches_begun);
        let batch = std::mem::replace(&mut self.batches[id.index()], fresh);
        for event in batch.events {
            memory.forget_event(event);
        }
        for region in [Region::Main, Region::Small] {
            while let Some(block) = self.free_list(region, id).largest() {
                self.unlist(block);
                let joined = self.join(block, BatchId::CLEAN);
                then(self, joined);
            }
        }
    }

    /// Looks at the recorded events, and cleans the batches whose events are done. `then` hears of each block.
    pub fn look_at_events(
        &mut self,
        memory: &dyn DeviceMemory,
        request: &Request,
        mut then: impl FnMut(&mut Arena, Id),
    ) {
        let recorded = |arena: &Arena| {
            arena
                .dirty_batches()
                .filter(|&id| arena.batch(id).is_recorded())
                .count()
                > 0
        };
        if !self.has_events || !recorded(self) {
            return;
        }
        if self.requests_until_look > 0 && self.serves(memory, request) {
            self.requests_until_look -= 1;
            return;
        }
        let done: Vec<BatchId> = self
            .dirty_batches()
            .filter(|&id| {
                let batch = self.batch(id);
                batch.is_recorded() && batch.events.iter().all(|&event| memory.event_is_done(event))
            })
            .collect();
        self.requests_until_look = if done.is_empty() { REQUESTS_BETWEEN_LOOKS } else { 0 };
        for id in done {
            self.clean(memory, id, &mut then);
        }
    }

    fn serves(&self, memory: &dyn DeviceMemory, request: &Request) -> bool {
        let mut regions = [Region::Main, Region::Small].into_iter();
        regions.any(|region| self.best(memory, region, request).is_some())
    }

    // ---- events

    /// Asks for events on the streams of a batch, if a block has joined since it was last asked.
    fn want_events(&mut self, id: BatchId) {
        let batch = &mut self.batches[id.index()];
        let is_recorded = batch.wanted_at == batch.joined || batch.recorded_at == batch.joined;
        if batch.users != Users::Vacant && !batch.takes_no_events && !is_recorded {
            batch.wanted_at = batch.joined;
            self.wanted.push(id);
        }
    }

    /// A block has joined this batch. Asks for events if clean memory is needed.
    pub(super) fn note_joined(&mut self, id: BatchId) {
        let batch = self.batch(id);
        let is_due = self.frees_with_events > 0 || batch.joined - batch.recorded_at >= FREES_BETWEEN_EVENTS;
        if !is_due || batch.takes_no_events {
            return;
        }
        self.frees_with_events = self.frees_with_events.saturating_sub(1);
        // With every block that joins the open batch, its events are recorded anew, so they could be put off for ever. So
        // one batch of the same streams is closed as long as its events are not done.
        let users = &self.batch(id).users;
        let has_closed = self
            .dirty_batches()
            .any(|other| other != id && self.batch(other).users == *users);
        if !has_closed {
            self.batches[id.index()].is_closed = true;
        }
        self.want_events(id);
    }

    /// A request needed clean memory, so the next ones may as well.
    pub fn expect_events(&mut self) {
        self.frees_with_events = FREES_WITH_EVENTS;
    }

    pub fn want_all_events(&mut self) {
        let used: Vec<BatchId> = self.dirty_batches().filter(|&id| !self.is_empty(id)).collect();
        for id in used {
            self.want_events(id);
        }
    }

    #[inline]
    pub fn wants_events(&self) -> bool {
        !self.wanted.is_empty()
    }

    pub fn take_wanted_events(&mut self) -> Vec<WantedEvents> {
        let wanted = std::mem::take(&mut self.wanted);
        let describe = |id: BatchId| {
            let batch = self.batch(id);
            let streams = match &batch.users {
                Users::Vacant => return None,
                Users::Unknown => None,
                Users::Streams(streams) => Some(streams.clone()),
            };
            Some(WantedEvents {
                batch: id.index(),
                generation: batch.generation,
                joined: batch.joined,
                streams,
            })
        };
        wanted.into_iter().filter_map(describe).collect()
    }

    /// The events of a batch were recorded, or could not be.
    pub fn events_recorded(&mut self, memory: &dyn DeviceMemory, wanted: WantedEvents, recorded: Recorded) {
        let batch = &mut self.batches[wanted.batch];
        let is_it = batch.generation == wanted.generation && batch.users != Users::Vacant;
        match recorded {
            Recorded::Events(events) if is_it && wanted.joined > batch.recorded_at => {
                batch.recorded_at = wanted.joined;
                self.has_events = true;
                let before = std::mem::replace(&mut batch.events, events);
                before.into_iter().for_each(|event| memory.forget_event(event));
            }
            Recorded::Events(events) => events.into_iter().for_each(|event| memory.forget_event(event)),
            // The next request for events tries again.
            Recorded::NotNow if is_it => {
                batch.wanted_at = batch.recorded_at;
                batch.is_closed = false;
            }
            // The stream is gone, but its work may still run. If no events tell of all work, a wait does.
            Recorded::Never if is_it => {
                batch.takes_no_events = batch.users == Users::Unknown;
                batch.users = Users::Unknown;
            }
            _ => {}
        }
    }
}
