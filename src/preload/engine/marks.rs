//! Marks of the job: moments and ranges that it names. They are records of the journal, and their texts are in the file
//! of stacks. A mark starts no engine: before the job's first call that concerns memory, marks have no effect.
//!
//! A job that marks every operation of a framework must not fill the journal, so marks beyond a rate are dropped. The
//! end of a range is recorded if its begin was.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use base::cancellation::Uncancelled;
use base::say::warn;

use super::{Engine, process};
use base::api::Api;
use journal::format::MarkKind;

/// A longer text is cut.
const LONGEST_TEXT_BYTES: usize = 256;
/// Marks of a process that are recorded within a second.
const MOST_A_SECOND: u64 = 50_000;
/// Ranges inside ranges of one thread that are recorded.
const DEEPEST: usize = 64;

/// A range of a thread that has begun: the group that it belongs to, and the number of its text, which is 0 if its begin
/// was not recorded.
#[derive(Clone, Copy)]
struct Range {
    group: usize,
    text: u32,
}

/// The ranges of a thread that have begun, the innermost last.
#[derive(Clone, Copy)]
struct Nest {
    ranges: [Range; DEEPEST],
    depth: usize,
    /// Ranges that began when the others were `DEEPEST` deep.
    beyond: usize,
}

const EMPTY: Nest = Nest {
    ranges: [Range { group: 0, text: 0 }; DEEPEST],
    depth: 0,
    beyond: 0,
};

thread_local! {
    // Constant and without a destructor, so that it may be used at any moment of a thread's life.
    static NEST: Cell<Nest> = const { Cell::new(EMPTY) };
}

/// Whether one more mark may be recorded in this second.
fn within_rate(second: u64) -> bool {
    /// The second, and the marks in it.
    static MARKS: AtomicU64 = AtomicU64::new(0);
    static TOLD: AtomicBool = AtomicBool::new(false);
    let second = second << 32;
    let before = MARKS.load(Relaxed);
    if before >> 32 << 32 != second {
        // A mark that another thread counts meanwhile may be lost, which changes the rate by one.
        MARKS.store(second | 1, Relaxed);
        return true;
    }
    if MARKS.fetch_add(1, Relaxed) & 0xffff_ffff < MOST_A_SECOND {
        return true;
    }
    if !TOLD.swap(true, Relaxed) {
        warn!("the job sets more than {MOST_A_SECOND} marks a second; the others are not recorded");
    }
    false
}

impl Nest {
    /// How many ranges of this group have begun.
    fn count(&self, group: usize) -> usize {
        let ranges = self.ranges[..self.depth].iter();
        ranges.filter(|range| range.group == group).count()
    }
}

impl Engine {
    /// Records a mark. Returns the number of its text; 0 if the mark was not recorded.
    pub(super) fn mark(&self, api: Api, text: &[u8], kind: MarkKind) -> u32 {
        let _uncancelled = Uncancelled::begin();
        // Without a journal there is no time either.
        let journal = self.state.records.journal.as_ref();
        if !journal.is_some_and(|journal| within_rate(journal.now_ns() / 1_000_000_000)) {
            return 0;
        }
        let text = self.state.records.text(&text[..text.len().min(LONGEST_TEXT_BYTES)]);
        if text != 0 {
            self.state.records.mark(api, text, kind);
        }
        text as u32
    }
}

/// Names this moment.
pub fn instant(api: Api, text: &[u8]) {
    if let Some(engine) = process::running() {
        engine.mark(api, text, MarkKind::Instant);
    }
}

/// A range of this thread begins, inside those that have begun. Returns how many ranges of the group are around it.
pub fn push(api: Api, group: usize, text: &[u8]) -> usize {
    let mut nest = NEST.get();
    let around = nest.count(group);
    if nest.depth == DEEPEST {
        nest.beyond += 1;
        NEST.set(nest);
        return around + nest.beyond - 1;
    }
    let text = process::running().map_or(0, |engine| engine.mark(api, text, MarkKind::Begin));
    nest.ranges[nest.depth] = Range { group, text };
    nest.depth += 1;
    NEST.set(nest);
    around
}

/// The innermost range of this thread and this group ends. Returns how many ranges of the group are around it; `None` if
/// none had begun.
pub fn pop(api: Api, group: usize) -> Option<usize> {
    let mut nest = NEST.get();
    if nest.beyond > 0 {
        nest.beyond -= 1;
        NEST.set(nest);
        return Some(nest.depth + nest.beyond);
    }
    let place = nest.ranges[..nest.depth]
        .iter()
        .rposition(|range| range.group == group)?;
    let text = nest.ranges[place].text;
    nest.ranges.copy_within(place + 1..nest.depth, place);
    nest.depth -= 1;
    NEST.set(nest);
    ends(api, text);
    Some(nest.count(group))
}

/// A range of the whole process begins. Returns a number by which it ends.
pub fn start(api: Api, text: &[u8]) -> u64 {
    let text = process::running().map_or(0, |engine| engine.mark(api, text, MarkKind::Begin));
    u64::from(std::process::id()) << 32 | u64::from(text)
}

/// The range with this number of `start` ends. A child cannot end a range of its parent, whose texts are in another file.
pub fn end(api: Api, range: u64) {
    if range >> 32 == u64::from(std::process::id()) {
        ends(api, range as u32);
    }
}

fn ends(api: Api, text: u32) {
    let _uncancelled = Uncancelled::begin();
    if let Some(engine) = process::running().filter(|_| text != 0) {
        engine.state.records.mark(api, u64::from(text), MarkKind::End);
    }
}

/// The numbers of texts belong to the parent's file.
pub fn in_forked_child() {
    let mut nest = NEST.get();
    nest.ranges.iter_mut().for_each(|range| range.text = 0);
    NEST.set(nest);
}
