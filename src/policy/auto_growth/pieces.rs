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
    let mut seen = None;
    for (&home, handle) in &handles.by_home {
        // Most handles begin where another one ends.
        for boundary in [home, home + handle.bytes] {
            if seen.replace(boundary) == Some(boundary) {
                continue;
            }
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
    let handle_at = |address: u64| handles.at(address).map(|(home, _)| home);
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

/// The run of the first piece and that of the last which are worth most together.
fn ends(runs: &[Run], handles: &Handles, worth: [&dyn Fn(&Run) -> u64; 2]) -> [Option<usize>; 2] {
    let best = worth.map(|worth| {
        let mut best: Vec<(u64, usize)> = runs
            .iter()
            .map(worth)
            .zip(0..)
            .filter(|&(worth, _)| worth > 0)
            .collect();
        best.sort_unstable_by_key(|&(worth, index)| (Reverse(worth), index));
        // The best may be the same run for both.
        best.truncate(2);
        best
    });
    let [first, last] = best.map(|best| best.into_iter().map(Some).chain([None]).collect::<Vec<_>>());
    let pairs = first
        .iter()
        .flat_map(|&first| last.iter().map(move |&last| [first, last]));
    let fit = pairs.filter(|&[first, last]| match (first, last) {
        (Some((_, first)), Some((_, last))) => first != last && !share_handle(handles, &runs[first], &runs[last]),
        _ => true,
    });
    let sum = |pair: &[Option<(u64, usize)>; 2]| pair.iter().flatten().map(|&(worth, _)| worth).sum::<u64>();
    // The reversed order returns the first of several that are worth the same.
    let pair = fit.collect::<Vec<_>>().into_iter().rev().max_by_key(sum);
    pair.unwrap_or_default().map(|end| end.map(|(_, index)| index))
}

fn many_of(runs: &[Run], handles: &Handles, bytes: u64) -> Vec<Piece> {
    // Few large pieces, if they are enough.
    let largest = with_ends(runs, ends(runs, handles, [&Run::as_first, &Run::as_last]), bytes);
    if total(&largest) == bytes {
        return largest;
    }
    // All that there is, otherwise. What a run adds at an end is what it has besides whole handles.
    let before = |run: &Run| run.as_first().saturating_sub(run.as_middle());
    let after = |run: &Run| run.as_last() - run.as_middle();
    let worth: [&dyn Fn(&Run) -> u64; 2] = [&before, &after];
    let most = with_ends(runs, ends(runs, handles, worth), bytes);
    if total(&most) > total(&largest) { most } else { largest }
}

fn total(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.bytes).sum()
}

/// The first piece of one run, the last of another, and of the others as much as is needed between.
fn with_ends(runs: &[Run], [first, last]: [Option<usize>; 2], bytes: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut taken = 0;
    if let Some(first) = first.map(|index| &runs[index]) {
        taken = first.as_first().min(bytes);
        pieces.push(Piece {
            address: first.last - taken,
            bytes: taken,
        });
    }
    let at_end = last.map_or(0, |last| runs[last].as_last());
    let others = (0..runs.len()).filter(|&index| Some(index) != first && Some(index) != last);
    let mut middles: Vec<&Run> = others.map(|index| &runs[index]).collect();
    middles.retain(|run| run.as_middle() > 0);
    middles.sort_by_key(|run| Reverse((run.as_middle(), run.start)));
    let mut next = 0;
    while taken + at_end < bytes && next < middles.len() {
        let lacking = bytes - taken - at_end;
        // The smallest that is enough, otherwise the largest that is left.
        let enough = middles[next..].partition_point(|run| run.as_middle() >= lacking);
        let run = middles[next + enough.saturating_sub(1)];
        let here = run.as_middle().min(bytes - taken);
        pieces.push(Piece {
            address: run.first,
            bytes: here,
        });
        taken += here;
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
    pieces
}
