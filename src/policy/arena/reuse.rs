//! Which free block serves a request, and how dirty blocks become clean. Nothing here waits.

use super::batches::{Batch, BatchId, Cut, Region, Users};
use super::segments::Arena;
use crate::blocks::{Id, Kind, NONE};
use crate::free_index::FreeIndex;
use crate::holdings::{UsedBy, WaitTicket};
use crate::request::Request;

/// How many blocks that are long enough, but begin at the wrong address, are tried for a request. So the time of a
/// request does not depend on how many free blocks there are.
const MOST_TRIED: usize = 64;

impl Arena {
    pub(super) fn batch(&self, id: BatchId) -> &Batch {
        &self.batches[id.index()]
    }

    /// The batches of blocks that work may still use, also empty ones.
    pub(super) fn dirty_batches(&self) -> impl Iterator<Item = BatchId> + '_ {
        (BatchId::UNKNOWN.index()..self.batches.len())
            .map(BatchId::new)
            .filter(|&id| self.batch(id).users != Users::Vacant)
    }

    pub(super) fn is_empty(&self, id: BatchId) -> bool {
        let mut regions = Region::ALL.into_iter();
        regions.all(|region| self.free_list(region, id).is_empty())
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
    pub(super) fn batch_for(&mut self, used_by: UsedBy) -> BatchId {
        let is_for = |batch: &Batch| match (used_by, &batch.users) {
            (UsedBy::Unknown | UsedBy::Awaited, Users::Unknown) => true,
            (UsedBy::Streams(&[stream]), _) => batch.is_of(stream),
            (UsedBy::Streams(these), Users::Streams(streams)) => **streams == *these,
            _ => false,
        };
        if used_by == UsedBy::Nothing {
            return BatchId::CLEAN;
        }
        let dirty = &self.batches[BatchId::UNKNOWN.index()..];
        let open = dirty.iter().position(|batch| batch.is_open() && is_for(batch));
        let open = open.map(|place| BatchId::new(BatchId::UNKNOWN.index() + place));
        let found = open.or_else(|| self.begin_batch_for(used_by));
        let id = found.unwrap_or(BatchId::UNKNOWN);
        self.dirty_frees += 1;
        let batch = &mut self.batches[id.index()];
        batch.joined += 1;
        batch.first_free.get_or_insert(self.dirty_frees);
        batch.last_free = self.dirty_frees;
        // If there are too many batches, a closed one is opened again: it then waits for a later end.
        batch.cleaned_by = None;
        id
    }

    /// A new batch; `None` if there are too many.
    #[cold]
    fn begin_batch_for(&mut self, used_by: UsedBy) -> Option<BatchId> {
        let users = match used_by {
            UsedBy::Streams(streams) => Users::Streams(streams.into()),
            _ => Users::Unknown,
        };
        self.batches_begun += 1;
        let batch = Batch::new(users, self.batches_begun);
        if let Some(index) = self.batches.iter().position(|batch| batch.users == Users::Vacant) {
            self.batches[index] = batch;
            return Some(BatchId::new(index));
        }
        if self.batches.len() == BatchId::MOST {
            return self.replace_empty_batch(batch);
        }
        let id = BatchId::new(self.batches.len());
        self.batches.push(batch);
        for region in Region::ALL {
            self.lists.push(FreeIndex::new(id.list(region)));
        }
        Some(id)
    }

    /// Gives the number of an empty batch to another. Its stream may be gone, and no event is looked at any more.
    fn replace_empty_batch(&mut self, batch: Batch) -> Option<BatchId> {
        let mut later = (BatchId::UNKNOWN.index() + 1..self.batches.len()).map(BatchId::new);
        let id = later.find(|&id| self.is_empty(id))?;
        let before = std::mem::replace(&mut self.batches[id.index()], batch);
        self.forgotten.extend(before.events);
        // The work that used its blocks may go on. Another batch answers for it, and waits for a later end.
        let unknown = &mut self.batches[BatchId::UNKNOWN.index()];
        unknown.first_free = unknown.first_free.into_iter().chain(before.first_free).min();
        unknown.joined += 1;
        unknown.cleaned_by = None;
        Some(id)
    }

    /// Whether it is known which streams may use the blocks of both batches, and they are the same. The blocks can then
    /// be joined in the later batch.
    pub(super) fn have_same_streams(&self, one: BatchId, other: BatchId) -> bool {
        let users = &self.batch(one).users;
        matches!(users, Users::Streams(_)) && *users == self.batch(other).users
    }

    // ---- choosing a block

    /// The smallest block of a list that serves a request with its alignment.
    #[inline(always)]
    fn smallest_in(&self, list: &FreeIndex, request: &Request) -> Option<Id> {
        let smallest = list.best(request.units)?;
        match request.alignment {
            1 => Some(smallest),
            _ => self.smallest_aligned(list, request, smallest),
        }
    }

    fn smallest_aligned(&self, list: &FreeIndex, request: &Request, smallest: Id) -> Option<Id> {
        let fits = |&id: &Id| self.place(id, request, Cut::Head).is_some();
        if fits(&smallest) {
            return Some(smallest);
        }
        let next = list.ascending(&self.blocks, request.units).skip(1).take(MOST_TRIED);
        let next = next.inspect(|_| self.examined.set(self.examined.get() + 1));
        // A block that is so much longer can always be cut at an aligned address.
        let surely = || list.best(request.units.saturating_add(request.alignment - 1));
        { next }.find(fits).or_else(surely)
    }

    /// The batches whose blocks only work on this stream may use.
    fn batches_of(&self, stream: u64) -> impl Iterator<Item = BatchId> + '_ {
        let later = BatchId::UNKNOWN.index() + 1..self.batches.len();
        let is_own = move |id: &BatchId| self.batch(*id).is_of(stream);
        later.map(BatchId::new).filter(is_own)
    }

    /// The best fit for a request among the blocks that may be used now. The block is not cut yet, see `carve`. `None`
    /// if no such block is long enough.
    pub fn best(&self, region: Region, request: &Request) -> Option<Id> {
        let mut best: Option<(u32, Id)> = None;
        for batch in self.usable_batches(request) {
            if let Some(id) = self.smallest_in(self.free_list(region, batch), request) {
                let units = self.blocks[id].units;
                best = best.filter(|&(least, _)| least <= units).or(Some((units, id)));
            }
        }
        best.map(|(_, id)| id)
    }

    /// The batches whose blocks may be used now. Captured work runs later, perhaps on another stream, so the order of the
    /// stream promises nothing.
    #[inline]
    fn usable_batches(&self, request: &Request) -> impl Iterator<Item = BatchId> {
        let own = request.stream.filter(|_| !request.capturing);
        let own = own.into_iter().flat_map(|stream| self.batches_of(stream));
        own.chain([BatchId::CLEAN])
    }

    /// Whether this is a free block that may be used or unmapped now.
    pub fn is_clean(&self, id: Id) -> bool {
        id != NONE && self.blocks.kind(id) == Kind::Free && BatchId::of_list(self.blocks.list(id)) == BatchId::CLEAN
    }

    /// Clean free blocks of at least `least` units, longest first.
    pub fn clean_blocks(&self, region: Region, least: u32) -> impl Iterator<Item = Id> + '_ {
        let blocks = self.free_list(region, BatchId::CLEAN).descending(&self.blocks, least);
        // Each is counted when the iterator reaches it.
        blocks.inspect(|_| self.examined.set(self.examined.get() + 1))
    }

    // ---- becoming clean

    /// Closes every batch for a wait that begins now.
    pub fn begin_wait(&mut self) -> WaitTicket {
        self.waits_begun += 1;
        for index in BatchId::UNKNOWN.index()..self.batches.len() {
            let batch = &mut self.batches[index];
            if batch.first_free.is_some() && batch.cleaned_by.is_none() {
                batch.cleaned_by = Some(self.waits_begun);
            }
        }
        WaitTicket(self.waits_begun)
    }

    /// Whether the work is done that could use the first `frees` of these blocks when they were freed.
    pub fn is_past(&self, frees: u64) -> bool {
        let mut batches = self.batches.iter();
        batches.all(|batch| batch.first_free.is_none_or(|first| first > frees))
    }

    /// The wait has ended: the blocks that were dirty when it began are clean. `then` hears of each.
    pub fn end_wait(&mut self, WaitTicket(wait): WaitTicket, mut then: impl FnMut(&mut Arena, Id)) {
        for index in BatchId::UNKNOWN.index()..self.batches.len() {
            if self.batches[index].cleaned_by.is_some_and(|first| first <= wait) {
                self.clean(BatchId::new(index), &mut then);
            }
        }
    }

    pub(super) fn clean(&mut self, id: BatchId, then: &mut impl FnMut(&mut Arena, Id)) {
        let users = match id {
            BatchId::UNKNOWN => Users::Unknown,
            _ => Users::Vacant,
        };
        self.batches_begun += 1;
        let fresh = Batch::new(users, self.batches_begun);
        let batch = std::mem::replace(&mut self.batches[id.index()], fresh);
        self.forgotten.extend(batch.events);
        for region in Region::ALL {
            while let Some(block) = self.free_list(region, id).largest() {
                self.unlist(block);
                let joined = self.join(block, BatchId::CLEAN);
                then(self, joined);
            }
        }
    }
}
