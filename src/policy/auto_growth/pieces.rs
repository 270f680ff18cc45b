//! Which free memory a stitch for a request can be made of.
//!
//! Handles are mapped whole. So the first piece of a block in a stitch must reach to the end of a handle, the last piece
//! must begin where a handle begins, and the pieces between them are whole handles.

use std::cmp::Reverse;

use super::handles::Handles;
use crate::arena::Arena;
use crate::request::{Request, UNIT};

/// Usable memory at home with an end of a handle in it.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The first address at which a block of the request may begin.
    pub start: u64,
    pub end: u64,
    /// The first and the last end of a handle in it.
    first: u64,
    last: u64,
}

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub address: u64,
    pub bytes: u64,
}

impl Piece {
    pub fn end(&self) -> u64 {
        self.address + self.bytes
    }
}

impl Run {
    /// Bytes that can be the first piece.
    fn as_first(&self) -> u64 {
        self.last.saturating_sub(self.start)
    }

    /// Bytes of whole handles.
    fn as_middle(&self) -> u64 {
        self.last - self.first
    }

    /// Bytes that can be the last piece.
    fn as_last(&self) -> u64 {
        self.end - self.first
    }
}

/// The runs that the request can use, in the order of addresses.
pub fn runs(arena: &Arena, handles: &Handles, request: &Request) -> Vec<Run> {
    let alignment = u64::from(request.alignment) * UNIT;
    let mut runs: Vec<Run> = Vec::new();
    for (&home, handle) in &handles.by_home {
        for boundary in [home, home + handle.bytes] {
            if let Some(run) = runs.last_mut().filter(|run| boundary <= run.end) {
                run.last = boundary;
                continue;
            }
            let usable = arena.usable_around(boundary, request);
            if !usable.is_empty() {
                runs.push(Run {
                    start: usable.start.next_multiple_of(alignment),
                    end: usable.end,
                    first: boundary,
                    last: boundary,
                });
            }
        }
    }
    runs
}

/// Pieces of different runs that serve a request of `bytes`, or of less than that if all of them are not enough.
///
/// Few large pieces are best, because each handle costs a call. If two runs are enough, they are those that fit best.
pub fn choose(runs: &[Run], handles: &Handles, bytes: u64) -> Vec<Piece> {
    two_of(runs, handles, bytes).unwrap_or_else(|| many_of(runs, handles, bytes))
}

/// Whether a first piece of `one` and a last piece of `other` can be of the same handle. A handle in a stitch twice would
/// look as if its bytes were there twice.
fn share_handle(handles: &Handles, one: &Run, other: &Run) -> bool {
    let handle_at = |address: u64| handles.in_range(address..address + UNIT).next().map(|(home, _)| home);
    one.start < one.first && handle_at(one.start) == handle_at(other.end - UNIT)
}

fn two_of(runs: &[Run], handles: &Handles, bytes: u64) -> Option<Vec<Piece>> {
    let mut last: Vec<(u64, usize)> = runs
        .iter()
        .map(Run::as_last)
        .zip(0..)
        .filter(|&(bytes, _)| bytes > 0)
        .collect();
    last.sort_unstable();
    let mut best: Option<(u64, usize, usize)> = None;
    for (index, first) in runs.iter().enumerate().filter(|(_, run)| run.as_first() > 0) {
        let lacking = bytes.saturating_sub(first.as_first());
        let from = last.partition_point(|&(bytes, _)| bytes < lacking);
        let fits = |&&(_, other): &&(u64, usize)| other != index && !share_handle(handles, first, &runs[other]);
        let Some(&(more, other)) = last[from..].iter().find(fits) else {
            continue;
        };
        let total = first.as_first() + more;
        if best.is_none_or(|(least, ..)| total < least) {
            best = Some((total, index, other));
        }
    }
    let (_, first, last) = best?;
    let (first, last) = (&runs[first], &runs[last]);
    let taken = first.as_first().min(bytes);
    let mut pieces = vec![Piece {
        address: first.last - taken,
        bytes: taken,
    }];
    if taken < bytes {
        pieces.push(Piece {
            address: last.first,
            bytes: bytes - taken,
        });
    }
    Some(pieces)
}

fn many_of(runs: &[Run], handles: &Handles, bytes: u64) -> Vec<Piece> {
    let Some(first) = (0..runs.len()).max_by_key(|&index| runs[index].as_first()) else {
        return Vec::new();
    };
    let begins = runs[first].as_first() > 0;
    let others = (0..runs.len()).filter(|&index| index != first || !begins);
    let ends = others
        .clone()
        .filter(|&index| !begins || !share_handle(handles, &runs[first], &runs[index]));
    let last = ends.max_by_key(|&index| runs[index].as_last());
    let mut pieces = Vec::new();
    let mut taken = 0;
    if begins {
        let first = &runs[first];
        taken = first.as_first();
        pieces.push(Piece {
            address: first.start,
            bytes: taken,
        });
    }
    let at_end = last.map_or(0, |last| runs[last].as_last());
    let middles = others.filter(|&index| Some(index) != last).map(|index| &runs[index]);
    let mut middles: Vec<&Run> = middles.filter(|run| run.as_middle() > 0).collect();
    middles.sort_by_key(|run| Reverse((run.as_middle(), run.start)));
    let mut next = 0;
    while taken + at_end < bytes && next < middles.len() {
        let lacking = bytes - taken - at_end;
        // The smallest that is enough, otherwise the largest that is left.
        let enough = middles[next..].partition_point(|run| run.as_middle() >= lacking);
        let run = middles[next + enough.saturating_sub(1)];
        pieces.push(Piece {
            address: run.first,
            bytes: run.as_middle(),
        });
        taken += run.as_middle();
        next += 1;
        if enough > 0 {
            break;
        }
    }
    if let Some(last) = last
        && taken < bytes
    {
        pieces.push(Piece {
            address: runs[last].first,
            bytes: at_end.min(bytes - taken),
        });
    }
    pieces.retain(|piece| piece.bytes > 0);
    pieces
}
