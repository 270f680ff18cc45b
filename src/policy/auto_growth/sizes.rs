//! Whether the sizes of a job repeat.
//!
//! A job that repeats itself asks for the same sizes again, and large handles serve it at few calls. If nearly every size
//! is new, hardly a stitch serves twice, and what a block leaves free in a handle fits nothing. Then small handles are
//! worth their calls.
//!
//! Only requests that make work are noted. Of these, 3% to 57% had a new size in 47 recorded jobs, and 88% to 99% in
//! sequences of random sizes. There were 26 to 363 of them in the jobs, and more in sequences in which a new size never
//! fits what was freed before.

use std::collections::BTreeSet;

/// Before so many requests nothing is known: the first sizes of every job are new. Random sizes are taken for such until
/// then, and what they get is large.
const LEAST_NOTED: u64 = 4;
/// The sizes of a job do not repeat if more than this part of them was new.
const MOST_NEW: (u64, u64) = (3, 4);
/// A job that has made so many such requests keeps asking.
const MANY_NOTED: u64 = 100;
/// More such requests, after memory was freed, come only from a job that finds no order in which its requests repeat.
const MOST_NOTED: u64 = 512;
/// So many sizes are remembered. Other sizes count as new.
const MOST_REMEMBERED: usize = 1024;

#[derive(Default)]
pub struct Sizes {
    seen: BTreeSet<u64>,
    noted: u64,
    new: u64,
    /// How many of them came when the job had freed memory.
    after_frees: u64,
}

impl Sizes {
    /// A request of so many bytes came for which work makes room. Of a job that has only grown until now, such requests
    /// are all that there are.
    pub fn note(&mut self, bytes: u64, only_grows: bool) {
        self.noted += 1;
        self.after_frees += u64::from(!only_grows);
        if self.seen.contains(&bytes) {
            return;
        }
        self.new += 1;
        if self.seen.len() < MOST_REMEMBERED {
            self.seen.insert(bytes);
        }
    }

    /// How many requests have made work.
    pub fn noted(&self) -> u64 {
        self.noted
    }

    /// Whether so many requests have made work that the job is likely to go on.
    pub fn keep_coming(&self) -> bool {
        self.noted >= MANY_NOTED
    }

    pub fn repeat(&self) -> bool {
        let (part, of) = MOST_NEW;
        self.noted < LEAST_NOTED || self.new * of <= self.noted * part && self.after_frees <= MOST_NOTED
    }
}

#[cfg(test)]
mod tests {
    use super::Sizes;

    fn after(sizes: impl IntoIterator<Item = u64>) -> bool {
        let mut noted = Sizes::default();
        sizes.into_iter().for_each(|bytes| noted.note(bytes, false));
        noted.repeat()
    }

    #[test]
    fn a_few_sizes_tell_nothing() {
        assert!(after(0..3));
        assert!(!after(0..4));
    }

    #[test]
    fn a_job_that_begins_again_repeats_its_sizes() {
        assert!(!after(0..100));
        assert!(after((0..100).chain(0..100)));
    }

    #[test]
    fn a_job_that_still_asks_has_no_order() {
        let few_sizes = |times| after([1, 2, 3].repeat(times));
        assert!(few_sizes(170));
        assert!(!few_sizes(171));
    }

    #[test]
    fn a_job_that_only_grows_may_ask_as_often_as_it_likes() {
        let mut noted = Sizes::default();
        (0..2000).for_each(|_| noted.note(1, true));
        assert!(noted.repeat());
        (0..513).for_each(|_| noted.note(1, false));
        assert!(!noted.repeat());
    }

    #[test]
    fn more_sizes_than_are_remembered_do_not_repeat() {
        assert!(!after((0..5000).chain(0..5000)));
    }
}
