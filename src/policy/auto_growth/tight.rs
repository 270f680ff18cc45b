//! The tightest place for a request of a job whose sizes do not repeat.
//!
//! A handle that is wholly free can be mapped anywhere, so it is never wasted. Only the free parts of handles in use can
//! be wasted: a *piece* at an end of its handle can become an end of a stitch, and a piece between two blocks serves
//! small requests alone.
//!
//! Every place has a cost: the worth of the free memory that it uses, less the worth of what it leaves over. A byte of a
//! whole handle is worth most, and one of a longer piece more than one of a shorter piece. So few new pieces are made,
//! short pieces are used up, and long ones stay long. The cheapest place is chosen.

use std::cmp::Reverse;
use std::ops::Range;

use super::handles::Handles;
use super::pieces::Piece;
use crate::arena::Arena;
use crate::request::{Request, UNIT};

/// Shorter free memory is left to small requests.
const SHORTEST_EXAMINED: u64 = 16 << 10;
/// What a byte of a whole handle is worth, and what a new one costs besides.
const WHOLE_WORTH: f64 = 2.0;
const NEW_COST: f64 = 1.0;
/// The worth of a piece between two blocks, relative to one at an end of its handle.
const ENCLOSED_SHARE: f64 = 0.5;
/// The cost of mapping a byte. It decides between places that are nearly equal.
const MAP_COST: f64 = 0.01;

/// Free memory from one live block, or end of mapped memory, to the next.
struct Run {
    start: u64,
    end: u64,
    /// The first and the last end of a handle in it. If there is none, the first is larger.
    first: u64,
    last: u64,
}

impl Run {
    fn whole(&self) -> u64 {
        self.last.saturating_sub(self.first)
    }
}

#[derive(Debug, PartialEq)]
pub enum Place {
    /// Free memory as it is, from this address on.
    At(u64),
    /// These pieces side by side, which may be less than the request needs.
    Stitch(Vec<Piece>),
}

pub struct Tight<'a> {
    handles: &'a Handles,
    runs: Vec<Run>,
    /// The size of most handles.
    usual: u64,
}

impl<'a> Tight<'a> {
    pub fn new(arena: &Arena, handles: &'a Handles, request: &Request, usual: u64) -> Self {
        let mut tight = Tight {
            handles,
            runs: Vec::new(),
            usual,
        };
        let ranges = arena.usable_ranges(request, SHORTEST_EXAMINED);
        tight.runs = ranges.into_iter().filter_map(|range| tight.run(range)).collect();
        tight
    }

    fn run(&self, range: Range<u64>) -> Option<Run> {
        let (home, handle) = self.handles.at(range.start)?;
        let first = if home == range.start { home } else { home + handle.bytes };
        let (home, handle) = self.handles.at(range.end - UNIT)?;
        let end = home + handle.bytes;
        let last = if end == range.end { end } else { home };
        Some(Run {
            start: range.start,
            end: range.end,
            first,
            last,
        })
    }

    fn handle_at(&self, address: u64) -> (u64, u64) {
        let handle = self.handles.at(address);
        handle.map_or((0, self.usual), |(home, handle)| (home, handle.bytes))
    }

    fn piece_worth(bytes: u64, handle: u64) -> f64 {
        bytes as f64 * (bytes as f64 / handle as f64).min(1.0).sqrt()
    }

    fn worth(&self, range: Range<u64>) -> f64 {
        let Some(run) = Some(range)
            .filter(|range| !range.is_empty())
            .and_then(|range| self.run(range))
        else {
            return 0.0;
        };
        let at = |address: u64| self.handle_at(address).1;
        if run.first > run.last {
            return ENCLOSED_SHARE * Self::piece_worth(run.end - run.start, at(run.start));
        }
        let mut worth = WHOLE_WORTH * run.whole() as f64;
        if run.start < run.first {
            worth += Self::piece_worth(run.first - run.start, at(run.start));
        }
        if run.last < run.end {
            worth += Self::piece_worth(run.end - run.last, at(run.last));
        }
        worth
    }

    /// The cheapest place. If `can_stitch` is false, in free memory as it is.
    pub fn choose(&self, bytes: u64, can_stitch: bool) -> Option<Place> {
        let within = self.within(bytes);
        let stitch = if can_stitch { self.ends(bytes) } else { None };
        match (within, stitch) {
            (Some((cost, at)), Some((other, ..))) if cost <= other => Some(Place::At(at)),
            (_, Some((_, first, last))) => Some(Place::Stitch(self.pieces(bytes, first, last))),
            (within, None) => within.map(|(_, at)| Place::At(at)),
        }
    }

    /// The cheapest place in one run: its ends, and where a handle begins or ends.
    fn within(&self, bytes: u64) -> Option<(f64, u64)> {
        let mut best: Option<(f64, u64)> = None;
        for run in self.runs.iter().filter(|run| run.end - run.start >= bytes) {
            let all = self.worth(run.start..run.end);
            for at in [run.start, run.end - bytes, run.first, run.last.saturating_sub(bytes)] {
                if at < run.start || at + bytes > run.end {
                    continue;
                }
                let cost = all - self.worth(run.start..at) - self.worth(at + bytes..run.end);
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, at));
                }
            }
        }
        best
    }

    /// The cheapest ends of a stitch: its cost, and the runs of the first and the last piece.
    fn ends(&self, bytes: u64) -> Option<(f64, Option<usize>, Option<usize>)> {
        let whole: u64 = self.runs.iter().map(Run::whole).sum();
        let new = |lacking: u64| lacking.saturating_sub(whole) as f64;
        let cost = |lacking: u64, pieces: f64, rest: f64| {
            pieces + WHOLE_WORTH * lacking as f64 + NEW_COST * new(lacking) + MAP_COST * lacking as f64 - rest
        };
        let middle = |lacking: u64| lacking.next_multiple_of(self.usual);
        let with_rest = |pieces: f64, lacking: u64| {
            let rest = middle(lacking) - lacking;
            cost(middle(lacking), pieces, Self::piece_worth(rest, self.usual))
        };
        let has_first = |run: &&Run| run.first <= run.last && run.start < run.first;
        let has_last = |run: &&Run| run.first <= run.last && run.last < run.end;
        let mut last: Vec<(u64, usize)> = (0..self.runs.len())
            .filter(|&index| has_last(&&self.runs[index]))
            .map(|index| (self.runs[index].end - self.runs[index].last, index))
            .collect();
        last.sort_unstable();
        let worth_of = |piece: u64, address: u64| {
            Self::piece_worth(piece, self.handle_at(address).1) + MAP_COST * self.usual as f64
        };
        let mut best = (with_rest(0.0, bytes), None, None);
        let mut consider = |cost: f64, first: Option<usize>, last: Option<usize>| {
            if cost < best.0 {
                best = (cost, first, last);
            }
        };
        for &(piece, index) in last.iter().filter(|&&(piece, _)| piece < bytes) {
            consider(
                with_rest(worth_of(piece, self.runs[index].last), bytes - piece),
                None,
                Some(index),
            );
        }
        for (index, run) in self.runs.iter().enumerate().filter(|(_, run)| has_first(run)) {
            let first = run.first - run.start;
            if first >= bytes {
                continue;
            }
            let worth = worth_of(first, run.start);
            let lacking = bytes - first;
            consider(with_rest(worth, lacking), Some(index), None);
            // The shortest last piece that is enough with as few whole handles as possible.
            let least = match lacking % self.usual {
                0 => self.usual,
                least => least,
            };
            let from = last.partition_point(|&(piece, _)| piece < least);
            let is_other =
                |&&(_, other): &&(u64, usize)| self.handle_at(self.runs[other].last).0 != self.handle_at(run.start).0;
            if let Some(&(piece, other)) = last[from..].iter().find(is_other) {
                let rest = Self::piece_worth(piece - least, self.usual) * ENCLOSED_SHARE;
                let pieces = worth + worth_of(piece, self.runs[other].last);
                consider(cost(lacking - least, pieces, rest), Some(index), Some(other));
            }
        }
        Some(best)
    }

    /// The first piece, as many whole handles as are needed, and the last piece.
    fn pieces(&self, bytes: u64, first: Option<usize>, last: Option<usize>) -> Vec<Piece> {
        let piece = |range: Range<u64>| Piece {
            address: range.start,
            bytes: range.end - range.start,
        };
        let first = first
            .map(|index| &self.runs[index])
            .map(|run| piece(run.start..run.first));
        let last = last.map(|index| &self.runs[index]).map(|run| piece(run.last..run.end));
        let ends: u64 = first.iter().chain(&last).map(|piece| piece.bytes).sum();
        let mut wholes: Vec<&Run> = self.runs.iter().filter(|run| run.whole() > 0).collect();
        wholes.sort_by_key(|run| Reverse((run.whole(), run.start)));
        let mut lacking = bytes.saturating_sub(ends);
        let mut pieces: Vec<Piece> = first.into_iter().collect();
        let mut next = 0;
        while lacking > 0 && next < wholes.len() {
            // The smallest that is enough, otherwise the largest that is left.
            let enough = wholes[next..].partition_point(|run| run.whole() >= lacking);
            let run = wholes[next + enough.saturating_sub(1)];
            let handles = self.handles.in_range(run.first..run.last);
            let mut end = run.first;
            for (home, handle) in handles {
                end = home + handle.bytes;
                if end - run.first >= lacking {
                    break;
                }
            }
            pieces.push(piece(run.first..end));
            lacking = lacking.saturating_sub(end - run.first);
            next += 1;
            if enough > 0 {
                break;
            }
        }
        let is_at_end = first.is_none() && last.is_some();
        pieces.extend(last);
        let mut over = pieces
            .iter()
            .map(|piece| piece.bytes)
            .sum::<u64>()
            .saturating_sub(bytes);
        while over > 0 {
            let index = if is_at_end { 0 } else { pieces.len() - 1 };
            let cut = over.min(pieces[index].bytes);
            over -= cut;
            pieces[index].bytes -= cut;
            if is_at_end {
                pieces[index].address += cut;
            }
            if pieces[index].bytes == 0 {
                pieces.remove(index);
            }
        }
        pieces
    }
}
