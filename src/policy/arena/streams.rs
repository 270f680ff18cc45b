//! Whether one stream alone uses the memory.
//!
//! The work of one stream runs in order, so its requests can use all free memory at once, clean or not. Which blocks are
//! clean depends on how far the GPU is, so it must not decide where a block lies: a job that repeats itself shall get
//! the same places again. As long as there is one stream, no events are needed, and clean memory is joined with dirty.

use super::batches::{BatchId, Streams};
use super::segments::Arena;
use crate::holdings::UsedBy;
use crate::request::Request;

impl Arena {
    /// From now on it is watched whether one stream alone uses the memory. None was used yet. If there are several, free
    /// memory becomes clean as soon as it can, which costs a call for a free and one for a request. With fewer events, what
    /// is clean changes from one repetition of a job to the next, and its blocks never come to lie at the same places.
    pub fn watch_streams(&mut self) {
        self.streams = Streams::None;
        self.is_prompt = true;
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
