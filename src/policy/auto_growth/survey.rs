//! The best place for a large request among the free blocks of `auto_growth`.
//!
//! A granule that is wholly free can be mapped anywhere, so it is never wasted. Only the free parts of granules in use
//! can be wasted. Most of them can be used in composed blocks (see `composition`).
//!
//! Every placement has a cost: the worth of the free granules and pieces that it uses, less the worth of what it leaves
//! over. A whole granule is worth most. A longer piece is worth more for each byte than a shorter one. So few new
//! pieces are made, short pieces are used up, and long pieces stay long. The cheapest placement is chosen.
//!
//! Worth and cost are numbers without a unit: a piece that is nearly as long as a granule is worth nearly 1.

use std::cmp::Reverse;

use super::composition::{Composition, Piece, Placement, Site};
use super::granules::Granules;
use crate::arena::{Arena, Region};
use crate::blocks::{Id, Kind, NONE, UNIT};

// How the figures below were measured: see `auto_growth`.

/// Shorter free blocks, in units, are left to small requests: 16 KiB. Examining all free blocks changes a utilisation
/// by 0.002 at most; with 256 KiB that of `comb` falls from 0.998 to 0.996.
const SHORTEST_EXAMINED_UNITS: u32 = (16 << 10) / UNIT as u32;
/// How many clean blocks are examined, and how many that the stream has freed. It bounds the time of one request. With
/// 256 the utilisation of `comb` falls from 0.998 to 0.995, with 64 to 0.972; more than 1024 gain nothing.
const MOST_EXAMINED: usize = 1024;

/// The worth of a whole granule. With 1 the utilisation of `full_16mib` falls from 0.934 to 0.874; 4 makes up to 17%
/// more driver calls and gains less than 0.001.
const GRANULE_WORTH: f64 = 2.0;
/// The cost of a new granule, besides its worth. Between 0 and 8 it changes no utilisation by 0.001.
const NEW_GRANULE_COST: f64 = 2.0;
/// The worth of a piece between two blocks in use, which reaches no end of its granule, relative to a piece that does.
/// Values of 0.1 and 1 change a utilisation by 0.003 at most, in either direction.
const ENCLOSED_PIECE_SHARE: f64 = 0.5;
/// The cost of mapping one granule. It decides between placements that are nearly equal. Without it `full_2048mib`
/// makes 53% more driver calls for the same utilisation; with 0.1 `full_256mib` makes 33% fewer and falls from 0.995 to
/// 0.991.
const MAP_COST: f64 = 0.01;
/// What a block can be composed of.
#[derive(Clone, Copy, Debug)]
pub struct Movable {
    /// How many granules are wholly free, in all regions.
    pub granules: u32,
    /// Whether pieces can be mapped elsewhere.
    pub pieces: bool,
}

/// The free memory of a region.
pub struct Survey<'a> {
    arena: &'a Arena,
    granule_units: u32,
    /// Longest first.
    free_blocks: Vec<Id>,
    /// Shortest first.
    first_pieces: Vec<Piece>,
    /// Shortest first.
    last_pieces: Vec<Piece>,
    movable: Movable,
    /// Whether holes beside free blocks can be used.
    holes_usable: bool,
}

/// The cheapest placement so far.
struct Cheapest {
    cost: f64,
    placement: Option<Placement>,
}

impl Cheapest {
    fn consider(&mut self, cost: f64, placement: Placement) {
        if cost < self.cost {
            (self.cost, self.placement) = (cost, Some(placement));
        }
    }
}

impl<'a> Survey<'a> {
    /// Examines clean free blocks, and those that were freed on `stream`. The latter can be used as they are, but no
    /// block can be composed of them, because work may use them where they are.
    pub fn new(arena: &'a Arena, granules: &Granules, region: Region, stream: Option<u64>, movable: Movable) -> Self {
        let is_held = |&id: &Id| granules.hold(arena, id);
        let clean = arena.clean_blocks(region, SHORTEST_EXAMINED_UNITS);
        let clean: Vec<Id> = clean.take(MOST_EXAMINED).filter(is_held).collect();
        let freed = arena.freed_on(stream, region, SHORTEST_EXAMINED_UNITS);
        let freed = freed.take(MOST_EXAMINED).filter(is_held);
        let mut free_blocks: Vec<Id> = clean.iter().copied().chain(freed).collect();
        free_blocks.sort_by_key(|&id| Reverse(arena.blocks.units(id)));
        let mut survey = Survey {
            arena,
            granule_units: granules.units(),
            first_pieces: Vec::new(),
            last_pieces: Vec::new(),
            movable,
            holes_usable: granules.holes_are_unmapped(),
            free_blocks: Vec::new(),
        };
        for &free_block in &clean {
            survey.note_pieces(free_block);
        }
        survey.first_pieces.sort_by_key(|piece| piece.units);
        survey.last_pieces.sort_by_key(|piece| piece.units);
        survey.free_blocks = free_blocks;
        survey
    }

    /// Where a free block begins and ends, in units from the beginning of the segment.
    fn bounds(&self, free_block: Id) -> (u32, u32) {
        let start = self.arena.blocks.offset(free_block);
        (start, start + self.arena.blocks.units(free_block))
    }

    /// The first and the last boundary between granules from `start` to `end`. If there is none, the first is larger.
    fn boundaries(&self, start: u32, end: u32) -> (u32, u32) {
        (
            start.next_multiple_of(self.granule_units),
            end - end % self.granule_units,
        )
    }

    /// Notes the pieces at the ends of a free block.
    fn note_pieces(&mut self, free_block: Id) {
        let (start, end) = self.bounds(free_block);
        let (first, last) = self.boundaries(start, end);
        if first > last {
            return;
        }
        let blocks = &self.arena.blocks;
        let whole_granules = (last - first) / self.granule_units;
        let hole_granules = |id: Id| match self.holes_usable && id != NONE && blocks.kind(id) == Kind::Hole {
            true => blocks.units(id) / self.granule_units,
            false => 0,
        };
        let piece = |offset: u32, units: u32, hole_granules: u32| Piece {
            address: blocks.base(blocks.segment_of(free_block)) + u64::from(offset) * UNIT,
            units,
            free_block,
            whole_granules,
            hole_granules,
        };
        let hole_after = if last == end {
            hole_granules(blocks.next(free_block))
        } else {
            0
        };
        let hole_before = if first == start {
            hole_granules(blocks.prev(free_block))
        } else {
            0
        };
        // Whole granules beside a hole count as a piece of no length: a block can be composed without moving them.
        if start < first || hole_after > 0 {
            self.first_pieces.push(piece(start, first - start, hole_after));
        }
        if last < end || hole_before > 0 {
            self.last_pieces.push(piece(last, end - last, hole_before));
        }
    }

    /// The worth of a piece at an end of its granule.
    fn piece_worth(&self, units: u32) -> f64 {
        let share = f64::from(units) / f64::from(self.granule_units);
        share * share.sqrt()
    }

    /// The worth of a piece between two blocks in use.
    fn enclosed_worth(&self, units: u32) -> f64 {
        ENCLOSED_PIECE_SHARE * self.piece_worth(units)
    }

    /// The worth of free memory from one unit of a segment to another.
    fn worth(&self, start: u32, end: u32) -> f64 {
        let (first, last) = self.boundaries(start, end);
        if first > last {
            return self.enclosed_worth(end - start);
        }
        let whole = f64::from((last - first) / self.granule_units);
        self.piece_worth(first - start) + GRANULE_WORTH * whole + self.piece_worth(end - last)
    }

    /// The cheapest placement for `units`. If `prefer_as_is`, a block is composed only if no free block is long enough.
    pub fn choose(&self, units: u32, prefer_as_is: bool) -> Option<Placement> {
        let mut cheapest = Cheapest {
            cost: f64::INFINITY,
            placement: None,
        };
        for &free_block in &self.free_blocks {
            if self.arena.blocks.units(free_block) < units {
                break;
            }
            self.consider_within(free_block, units, &mut cheapest);
        }
        if prefer_as_is && cheapest.placement.is_some() {
            return cheapest.placement;
        }
        let longest = |pieces: &[Piece]| pieces.last().map_or(0, |piece| piece.units);
        let pieces = longest(&self.first_pieces) + longest(&self.last_pieces);
        let least = units.saturating_sub(pieces).div_ceil(self.granule_units);
        for granules in least..=units.div_ceil(self.granule_units) {
            // A granule more than the least may leave a better rest. Any further one only costs more.
            if granules > least + 1 && cheapest.placement.is_some() {
                break;
            }
            self.consider_composed(units, granules, &mut cheapest);
        }
        cheapest.placement
    }

    /// Considers the ends of a free block, and the places in it that begin or end with a granule.
    fn consider_within(&self, free_block: Id, units: u32, cheapest: &mut Cheapest) {
        let (start, end) = self.bounds(free_block);
        let (first, last) = self.boundaries(start, end);
        let all = self.worth(start, end);
        for place in [Some(start), Some(end - units), Some(first), last.checked_sub(units)] {
            let Some(place) = place.filter(|&place| place >= start && place + units <= end) else {
                continue;
            };
            let left = self.worth(start, place) + self.worth(place + units, end);
            cheapest.consider(all - left, Placement::Within(free_block, place - start));
        }
    }

    /// Considers blocks of so many granules with no piece, one piece or two.
    fn consider_composed(&self, units: u32, granules: u32, cheapest: &mut Cheapest) {
        let new = granules.saturating_sub(self.movable.granules);
        let base = GRANULE_WORTH * f64::from(granules) + NEW_GRANULE_COST * f64::from(new);
        let whole_units = granules * self.granule_units;
        if whole_units >= units {
            let alone = Composition {
                first_piece: None,
                last_piece: None,
                site: Site::Hole,
                granules,
                new,
                at_end: false,
            };
            let cost = base - self.piece_worth(whole_units - units) + MAP_COST * f64::from(granules);
            cheapest.consider(cost, Placement::Composed(alone));
        }
        for (pieces, is_first) in [(&self.first_pieces, true), (&self.last_pieces, false)] {
            for piece in pieces.iter() {
                let rest = (whole_units + piece.units).checked_sub(units);
                // If the rest is a granule or more, fewer granules are cheaper. Without granules it is a free block as
                // it is.
                if let Some(rest) = rest.filter(|&rest| rest < self.granule_units && granules > 0) {
                    let cost = base + self.piece_worth(piece.units) - self.piece_worth(rest);
                    self.consider_one_piece(piece, is_first, granules, cost, cheapest);
                }
            }
        }
        if let Some(missing) = units
            .checked_sub(whole_units)
            .filter(|&missing| missing > 0 && self.movable.pieces)
        {
            self.consider_two_pieces(missing, granules, new, base, cheapest);
        }
    }

    /// Considers a piece and granules. If the hole beside the piece is large enough, the piece stays where it is.
    fn consider_one_piece(&self, piece: &Piece, is_first: bool, granules: u32, cost: f64, cheapest: &mut Cheapest) {
        let missing = granules.saturating_sub(piece.whole_granules);
        let in_place = piece.hole_granules >= missing;
        if !in_place && (!self.movable.pieces || piece.units == 0) {
            return;
        }
        let (site, to_map, calls) = match in_place {
            true if is_first => (Site::After(piece.free_block), missing, missing),
            true => (Site::Before(piece.free_block), missing, missing),
            false => (Site::Hole, granules, granules + 1),
        };
        let composition = Composition {
            first_piece: is_first.then_some(*piece),
            last_piece: (!is_first).then_some(*piece),
            site,
            granules: to_map,
            // The free granules include those that are in place already.
            new: granules.saturating_sub(self.movable.granules).min(to_map),
            at_end: !is_first,
        };
        cheapest.consider(cost + MAP_COST * f64::from(calls), Placement::Composed(composition));
    }

    /// Considers each first piece with the shortest last piece that makes the block long enough.
    fn consider_two_pieces(&self, missing: u32, granules: u32, new: u32, base: f64, cheapest: &mut Cheapest) {
        let mut at = self.last_pieces.len();
        for first in &self.first_pieces {
            while at > 0 && first.units + self.last_pieces[at - 1].units >= missing {
                at -= 1;
            }
            let Some(last) = self.last_pieces.get(at) else {
                continue;
            };
            let rest = first.units + last.units - missing;
            // The shorter piece has no length, or is not needed.
            if rest >= first.units.min(last.units) {
                continue;
            }
            let composition = Composition {
                first_piece: Some(*first),
                last_piece: Some(*last),
                site: Site::Hole,
                granules,
                new,
                at_end: first.units > last.units,
            };
            let worth = self.piece_worth(first.units) + self.piece_worth(last.units);
            let cost = base + worth - self.enclosed_worth(rest) + MAP_COST * f64::from(granules + 2);
            cheapest.consider(cost, Placement::Composed(composition));
        }
    }
}
