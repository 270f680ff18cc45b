//! The ranges that marks begin and end. They are paired while the records are read: a list of marks that left some out
//! would pair the begin of one with the end of another.

use journal::format::MarkKind;

use super::columns::FirstAndLast;
use super::data::Range;

/// The page has room for so many ranges that lie in each other.
const LANES: usize = 4;
/// A job that begins more ranges at once ends none of them. What it begins then is left out.
const MOST_OPEN: usize = 1024;

/// The mark of a thread that began a range. Its text is a number.
struct Begin {
    text: u64,
    tid: u32,
    time_ns: u64,
    depth: usize,
}

pub struct Ranges {
    open: Vec<Begin>,
    /// With the time of the end, if there was one.
    known: FirstAndLast<(Begin, Option<u64>)>,
}

impl Ranges {
    pub fn new(most: usize) -> Ranges {
        Ranges {
            open: Vec::new(),
            known: FirstAndLast::new(most),
        }
    }

    /// An end belongs to the last open range of its name in its thread, or else in another thread.
    pub fn mark(&mut self, time_ns: u64, tid: u32, text: u64, kind: MarkKind) {
        let depth = self.open.len();
        match kind {
            MarkKind::Instant => {}
            MarkKind::Begin if depth == MOST_OPEN => {}
            MarkKind::Begin => self.open.push(Begin {
                text,
                tid,
                time_ns,
                depth,
            }),
            MarkKind::End => {
                let named = |one: &Begin| one.text == text;
                let of_thread = self.open.iter().rposition(|one| named(one) && one.tid == tid);
                if let Some(place) = of_thread.or_else(|| self.open.iter().rposition(named)) {
                    let begin = self.open.remove(place);
                    self.keep(begin, Some(time_ns));
                }
            }
        }
    }

    fn keep(&mut self, begin: Begin, to_ns: Option<u64>) {
        if begin.depth < LANES {
            self.known.push((begin, to_ns));
        }
    }

    /// The ranges that the page shows, those without an end last. `text` gives the text of a mark.
    pub fn list(mut self, text: impl Fn(u64) -> String) -> Vec<Range> {
        for begin in std::mem::take(&mut self.open) {
            self.keep(begin, None);
        }
        let range = |(begin, to_ns): (Begin, _)| Range {
            text: text(begin.text),
            from_ns: begin.time_ns,
            to_ns,
            depth: begin.depth,
        };
        self.known.list.into_iter().map(range).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_ranges_those_that_are_kept_have_their_own_ends() {
        let mut ranges = Ranges::new(4);
        ranges.mark(0, 7, 1, MarkKind::Begin);
        for step in 1..100 {
            // Two threads whose steps overlap.
            ranges.mark(step * 100, 8, 2, MarkKind::Begin);
            ranges.mark(step * 100 + 10, 9, 2, MarkKind::Begin);
            ranges.mark(step * 100 + 20, 8, 2, MarkKind::End);
            ranges.mark(step * 100 + 50, 9, 2, MarkKind::End);
        }
        // No range of this name is open.
        ranges.mark(20_000, 8, 2, MarkKind::End);
        let list = ranges.list(|number| number.to_string());
        let told: Vec<_> = list.iter().map(|one| (one.from_ns, one.to_ns, one.depth)).collect();
        assert_eq!(
            told,
            [(100, Some(120), 1), (110, Some(150), 2), (9910, Some(9950), 2), (0, None, 0)]
        );
    }

    #[test]
    fn ranges_that_never_end_are_bounded() {
        let mut ranges = Ranges::new(8);
        for time_ns in 0..10_000 {
            ranges.mark(time_ns, 1, 1, MarkKind::Begin);
        }
        assert_eq!(ranges.open.len(), MOST_OPEN);
        assert_eq!(ranges.list(|_| String::new()).len(), LANES);
    }
}
