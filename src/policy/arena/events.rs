//! The events that tell when batches are clean: when they are recorded, looked at and forgotten.
//!
//! All of that is work, because each of the three calls the driver.

use super::batches::{BatchId, Region, Streams, Users};
use super::segments::Arena;
use crate::blocks::Id;
use crate::device_memory::NoEvent;
use crate::holdings::{After, UsedBy};
use crate::request::Request;
use crate::work::{Looked, Record, Work};

/// Unless `spares_events`, events are recorded at each of this many frees after memory has grown. A job that repeats itself
/// grows no more.
const FREES_WITH_EVENTS: u32 = 4000;
/// Later, events are recorded at one of this many frees, so that most free memory is known to be clean if a request needs
/// it. If none are recorded, the utilisation of `variable_lengths` falls from 0.999 to 0.960; with 16, no other changes
/// by 0.001.
const FREES_BETWEEN_EVENTS: u64 = 64;
/// After a look at the events that found none done, this many requests do without one, if a free block serves them.
const REQUESTS_BETWEEN_LOOKS: u32 = 3;

impl Arena {
    /// Work that is due; see `Policy::next_work`.
    #[inline]
    pub fn next_work(&mut self, after: After) -> Option<Work> {
        let for_frees = [self.forgotten.len(), self.wanted.len(), self.due_with_wait.len()];
        match (self.due.len(), for_frees) {
            (0, [0, 0, 0]) => None,
            (0, _) if after == After::Request => None,
            _ => self.listed_work(after),
        }
    }

    #[cold]
    fn listed_work(&mut self, after: After) -> Option<Work> {
        if after == After::Request {
            return self.due_return(false).map(Work::Return);
        }
        // First what the caller of a free waits for, before the job submits more work.
        let is_awaited = after == After::AwaitedFree;
        if is_awaited && let Some(pieces) = self.due_return(true) {
            return Some(Work::Return(pieces));
        }
        if !self.forgotten.is_empty() {
            return Some(Work::Forget(std::mem::take(&mut self.forgotten)));
        }
        if let Some(record) = self.next_record() {
            return Some(Work::Record(record));
        }
        if is_awaited {
            // The caller would take the end of this work for the end of the wait for its own block.
            return None;
        }
        self.due_return(false).map(Work::Return)
    }

    // ---- looking

    /// Work that looks at the recorded events, if that is due.
    #[inline]
    pub fn look_for(&mut self, request: &mut Request) -> Option<Vec<Looked>> {
        if !self.has_events || request.has_looked {
            return None;
        }
        self.look_at_events(request)
    }

    #[inline(never)]
    fn look_at_events(&mut self, request: &mut Request) -> Option<Vec<Looked>> {
        if !self.dirty_batches().any(|id| self.batch(id).is_recorded()) {
            return None;
        }
        request.has_looked = true;
        let mut regions = [Region::Main, Region::Small, Region::Middle].into_iter();
        if self.requests_until_look > 0 && regions.any(|region| self.best(region, request).is_some()) {
            self.requests_until_look -= 1;
            return None;
        }
        let recorded: Vec<BatchId> = self
            .dirty_batches()
            .filter(|&id| self.batch(id).is_recorded())
            .collect();
        let taken = recorded.into_iter().map(|id| {
            let batch = &mut self.batches[id.index()];
            Looked {
                batch: id.index(),
                generation: batch.generation,
                recorded_at: batch.recorded_at,
                events: std::mem::take(&mut batch.events),
                are_done: false,
            }
        });
        Some(taken.collect())
    }

    /// Cleans the batches whose events are done. `then` hears of each block.
    pub fn looked(&mut self, batches: Vec<Looked>, mut then: impl FnMut(&mut Arena, Id)) {
        let mut any_done = false;
        for looked in batches {
            let batch = &mut self.batches[looked.batch];
            let is_same = batch.generation == looked.generation && batch.recorded_at == looked.recorded_at;
            if !is_same {
                // It became clean meanwhile, or its events were recorded again.
                self.forgotten.extend(looked.events);
                continue;
            }
            batch.events = looked.events;
            if looked.are_done && batch.is_recorded() {
                any_done = true;
                self.clean(BatchId::new(looked.batch), &mut then);
            }
        }
        self.requests_until_look = if any_done || self.spares_events && !self.has_one_stream() {
            0
        } else {
            REQUESTS_BETWEEN_LOOKS
        };
    }

    // ---- recording

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
    #[inline]
    pub(super) fn note_joined(&mut self, id: BatchId) {
        if !self.has_one_stream() {
            self.note_joined_of_several(id);
        }
    }

    fn note_joined_of_several(&mut self, id: BatchId) {
        let batch = self.batch(id);
        let is_due = match self.spares_events {
            true => !batch.has_one_user(),
            false => self.frees_with_events > 0 || batch.joined - batch.recorded_at >= FREES_BETWEEN_EVENTS,
        };
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

    /// Memory has grown: a request needed clean memory, so the next ones may as well.
    pub fn expect_events(&mut self) {
        if !self.spares_events {
            self.frees_with_events = FREES_WITH_EVENTS;
        } else if !self.is_short {
            return;
        }
        self.want_all_events();
    }

    pub fn want_all_events(&mut self) {
        if self.has_one_stream() {
            return;
        }
        let used: Vec<BatchId> = self.dirty_batches().filter(|&id| !self.is_empty(id)).collect();
        for id in used {
            self.want_events(id);
        }
    }

    /// Asks for events although one stream alone uses the memory: something is to be unmapped, which needs clean memory.
    pub fn want_end(&mut self) {
        let has_joined = |&id: &BatchId| self.batch(id).first_free.is_some();
        let dirty: Vec<BatchId> = self.dirty_batches().filter(has_joined).collect();
        if !self.has_one_stream() || dirty.iter().any(|&id| self.batch(id).is_closed) {
            return;
        }
        for id in dirty {
            self.batches[id.index()].is_closed = true;
            self.want_events(id);
        }
    }

    fn next_record(&mut self) -> Option<Record> {
        while let Some(id) = self.wanted.pop() {
            let batch = self.batch(id);
            if batch.recorded_at == batch.joined {
                continue; // It has become clean since, or was recorded.
            }
            let streams = match &batch.users {
                Users::Vacant => continue,
                Users::Unknown => None,
                Users::Streams(streams) => Some(streams.clone()),
            };
            return Some(Record {
                batch: id.index(),
                generation: batch.generation,
                joined: batch.joined,
                streams,
                outcome: Err(NoEvent::NotNow),
            });
        }
        None
    }

    /// The events of a batch were recorded, or could not be.
    pub fn recorded(&mut self, record: Record) {
        let batch = &mut self.batches[record.batch];
        let is_it = batch.generation == record.generation && batch.users != Users::Vacant;
        match record.outcome {
            Ok(events) if is_it && record.joined > batch.recorded_at => {
                batch.recorded_at = record.joined;
                self.has_events = true;
                let before = std::mem::replace(&mut batch.events, events);
                self.forgotten.extend(before);
            }
            Ok(events) => self.forgotten.extend(events),
            // The next request for events tries again.
            Err(NoEvent::NotNow) if is_it => {
                batch.wanted_at = batch.recorded_at;
                batch.is_closed = false;
            }
            // The stream is gone, but its work may still run. If no events tell of all work, a wait does.
            Err(NoEvent::Never) if is_it => {
                batch.takes_no_events = batch.users == Users::Unknown;
                batch.users = Users::Unknown;
                if !batch.takes_no_events {
                    self.wanted.push(BatchId::new(record.batch));
                }
            }
            Err(_) => {}
        }
    }

    // ---- whether one stream alone uses the memory
    //
    // The work of one stream runs in order, so its requests can use all free memory at once, clean or not. Which blocks are
    // clean depends on how far the GPU is, so it must not decide where a block lies: a job that repeats itself shall get
    // the same places again. As long as there is one stream, no events are needed, and clean memory is joined with dirty.

    /// From now on it is watched whether one stream alone uses the memory. None was used yet. If there are several, what one
    /// stream has freed stays with this stream. An event for each free would cost a call, and save memory that is not needed
    /// yet. When memory is short and had to grow, one event for each stream tells when all of its freed memory is clean.
    pub fn watch_streams(&mut self) {
        self.streams = Streams::None;
        self.spares_events = true;
    }

    /// Captured work runs later, perhaps on another stream.
    #[inline]
    pub fn note_request(&mut self, request: &Request) {
        self.note_stream(request.stream.filter(|_| !request.capturing));
    }

    #[inline]
    pub(super) fn note_user(&mut self, used_by: UsedBy) {
        match used_by {
            UsedBy::Nothing => {}
            UsedBy::Streams(&[stream]) => self.note_stream(Some(stream)),
            _ => self.note_stream(None),
        }
    }

    /// `None` for a user that is no stream, or several.
    #[inline]
    fn note_stream(&mut self, stream: Option<u64>) {
        if self.streams == Streams::Several || stream.is_some_and(|stream| self.streams == Streams::One(stream)) {
            return;
        }
        self.streams = match (self.streams, stream) {
            (Streams::None, Some(stream)) => Streams::One(stream),
            _ => Streams::Several,
        };
        if self.streams == Streams::Several {
            self.want_all_events();
        }
    }

    #[inline]
    pub fn has_one_stream(&self) -> bool {
        self.streams != Streams::Several
    }

    /// The batch of a block that is joined of two, which have the batches `one` and `other`: the one that was joined last,
    /// because it becomes clean only after all that was freed before.
    pub(super) fn later(&self, one: BatchId, other: BatchId) -> BatchId {
        match (one, other) {
            (BatchId::CLEAN, dirty) | (dirty, BatchId::CLEAN) => dirty,
            _ if self.batch(other).last_free > self.batch(one).last_free => other,
            _ => one,
        }
    }
}
