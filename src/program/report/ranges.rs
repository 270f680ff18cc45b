//! The ranges that marks begin and end. They are paired while the records are read: a list of marks that left some out
//! would pair the begin of one with the end of another.

use journal::format::{MarkKind, Record};

use super::columns::FirstAndLast;

/// The page has room for so many ranges that lie in each other.
const LANES: usize = 4;
/// A job that begins more ranges at once ends none of them. What it begins then is left out.
const MOST_OPEN: usize = 1024;

/// The number of its text, the times of its begin and of its end, if a mark ended it, and in how many others it began.
type Range = (u64, u64, Option<u64>, usize);

pub struct Ranges {
    /// Each with its thread.
    open: Vec<(u32, Range)>,
    known: FirstAndLast<Range>,
}

impl Ranges {
    pub fn new(most: usize) -> Ranges {
        Ranges {
            open: Vec::new(),
            known: FirstAndLast::new(most),
        }
    }

    /// An end belongs to the last open range of its name in its thread, or else in another thread.
    pub fn mark(&mut self, record: &Record, text: u64, kind: MarkKind) {
        let depth = self.open.len();
        if kind == MarkKind::Begin && depth < MOST_OPEN {
            self.open.push((record.tid, (text, record.time_ns, None, depth)));
        }
        let of_thread = |&(tid, (name, ..)): &(u32, Range)| name == text && tid == record.tid;
        let of_any = || self.open.iter().rposition(|(_, (name, ..))| *name == text);
        if kind == MarkKind::End
            && let Some(place) = self.open.iter().rposition(of_thread).or_else(of_any)
        {
            let (_, (text, from_ns, _, depth)) = self.open.remove(place);
            self.keep((text, from_ns, Some(record.time_ns), depth));
        }
    }

    fn keep(&mut self, range: Range) {
        if range.3 < LANES {
            self.known.push(range);
        }
    }

    /// The ranges that the page shows, those without an end last.
    pub fn list(&mut self) -> Vec<Range> {
        for (_, range) in std::mem::take(&mut self.open) {
            self.keep(range);
        }
        std::mem::take(&mut self.known.list)
    }
}
