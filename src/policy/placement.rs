//! Where a large request goes among the free blocks of `auto_growth`.
//!
//! A granule that is wholly free can be mapped anywhere, so nothing is lost of it. What is lost is what is free of the
//! others, and most of that can be used as well: a piece that reaches the end of its granule is an *opening*, where a
//! block can begin and go on in other granules, and one at the beginning of its granule is a *closing*, where a block can
//! end. As a granule may be mapped at several places, any opening and any closing can be made the ends of one block.
//!
//! Every way of placing a request costs what its free granules and pieces were worth, less what its leavings are worth.
//! A whole granule is worth most, and a piece the more for its bytes the longer it is: so few pieces are made, slivers
//! are used up, and long pieces stay long.

use std::cmp::Reverse;

use super::arena::{Arena, Region};
use super::blocks::{Id, Kind, NONE, UNIT};
use super::granules::Granules;

/// Free blocks shorter than this, in units, are left to small requests.
const SHORTEST: u32 = (16 << 10) / UNIT as u32;
/// Free blocks of each kind looked at, so that one request never takes long however many there are.
const MOST_RUNS: usize = 1024;

/// Worth of a whole granule; a piece is worth at most 1.
const WHOLE: f64 = 2.0;
/// Cost of a new granule, besides what it is worth.
const NEW: f64 = 2.0;
/// A piece between two live blocks, that neither begins nor ends its granule, relative to one that does.
const BETWEEN: f64 = 0.5;
/// Cost of mapping one granule: decides between equals, and spares calls where little is lost.
const CALL: f64 = 0.01;
/// Cost of making a stream wait, which only blocks that are composed need.
const WAIT: f64 = 0.2;

/// The free part of a granule that is partly in use, at one end of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub address: u64,
    pub units: u32,
    /// The free block that it is an end of.
    pub run: Id,
    /// Whole granules beside it in that block.
    whole: u32,
    /// Unmapped granules beside those.
    room: u32,
}

/// Where a composed block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// In a hole by itself; its ends are mapped there as well.
    Anew,
    /// Where its opening lies, and in the hole after that. The free block stays where it is.
    After(Id),
    /// Where its closing lies, and in the hole before that.
    Before(Id),
}

/// A block to be made of pieces and granules that are not side by side yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Composition {
    pub opening: Option<Piece>,
    pub closing: Option<Piece>,
    pub site: Site,
    /// Granules to map between its ends, and how many of them are new.
    pub granules: u32,
    pub new: u32,
    /// Whether the request lies at the end of it, so that what is left over comes first.
    pub at_end: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Placement {
    /// In a free block as it is, so many units from its beginning.
    Within(Id, u32),
    Composed(Composition),
}

/// What blocks can be composed of.
#[derive(Clone, Copy, Debug)]
pub struct Movable {
    /// Granules that are wholly free, of any region.
    pub granules: u32,
    /// Whether pieces may be mapped elsewhere.
    pub pieces: bool,
}

/// The free memory of a region.
pub struct Survey<'a> {
    arena: &'a Arena,
    granule: u32,
    runs: Vec<Id>,
    /// Shortest first.
    openings: Vec<Piece>,
    closings: Vec<Piece>,
    movable: Movable,
    /// What composing a block costs besides.
    wait: f64,
    /// Whether holes beside free blocks can be used.
    holes: bool,
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
    /// Of clean memory, and of what was freed on `stream`, which has to wait before any of it is moved.
    pub fn new(arena: &'a Arena, granules: &Granules, region: Region, stream: Option<u64>, movable: Movable) -> Self {
        let granule = granules.units();
        let freed = arena.freed_on(stream, region, SHORTEST).take(MOST_RUNS);
        let mut runs: Vec<Id> = arena
            .clean(region, SHORTEST)
            .take(MOST_RUNS)
            .chain(freed)
            .filter(|&id| granules.hold(arena, id))
            .collect();
        runs.sort_by_key(|&id| Reverse(arena.blocks.units(id)));
        let mut survey = Survey {
            arena,
            granule,
            openings: Vec::new(),
            closings: Vec::new(),
            movable,
            wait: if stream.is_some() { WAIT } else { 0.0 },
            holes: granules.holes_are_empty(),
            runs: Vec::new(),
        };
        for &run in &runs {
            survey.note_ends(run);
        }
        survey.openings.sort_by_key(|piece| piece.units);
        survey.closings.sort_by_key(|piece| piece.units);
        survey.runs = runs;
        survey
    }

    /// First and one past the last unit, from the beginning of the segment.
    fn bounds(&self, run: Id) -> (u32, u32) {
        let start = self.arena.blocks.offset(run);
        (start, start + self.arena.blocks.units(run))
    }

    fn note_ends(&mut self, run: Id) {
        let (start, end) = self.bounds(run);
        let (first, last) = (start.next_multiple_of(self.granule), end - end % self.granule);
        if first > last {
            return;
        }
        let blocks = &self.arena.blocks;
        let whole = (last - first) / self.granule;
        let hole = |id: Id| match self.holes && id != NONE && blocks.kind(id) == Kind::Hole {
            true => blocks.units(id) / self.granule,
            false => 0,
        };
        let piece = |offset: u32, units: u32, room: u32| Piece {
            address: blocks.base(blocks.segment_of(run)) + u64::from(offset) * UNIT,
            units,
            run,
            whole,
            room,
        };
        let room_after = if last == end { hole(blocks.next(run)) } else { 0 };
        let room_before = if first == start { hole(blocks.prev(run)) } else { 0 };
        // Whole granules with room beside them are an end of no length: they can stay where they are.
        if start < first || room_after > 0 {
            self.openings.push(piece(start, first - start, room_after));
        }
        if last < end || room_before > 0 {
            self.closings.push(piece(last, end - last, room_before));
        }
    }

    /// Worth of a piece at an end of its granule.
    fn end_worth(&self, units: u32) -> f64 {
        let share = f64::from(units) / f64::from(self.granule);
        share * share.sqrt()
    }

    fn between_worth(&self, units: u32) -> f64 {
        BETWEEN * self.end_worth(units)
    }

    /// Worth of free memory from one unit to another.
    fn worth(&self, start: u32, end: u32) -> f64 {
        let (first, last) = (start.next_multiple_of(self.granule), end - end % self.granule);
        if first > last {
            return self.between_worth(end - start);
        }
        let whole = f64::from((last - first) / self.granule);
        self.end_worth(first - start) + WHOLE * whole + self.end_worth(end - last)
    }

    /// The cheapest place for `units`. With `as_it_is` nothing is composed where a free block is long enough.
    pub fn choose(&self, units: u32, as_it_is: bool) -> Option<Placement> {
        let mut cheapest = Cheapest {
            cost: f64::INFINITY,
            placement: None,
        };
        for &run in &self.runs {
            if self.arena.blocks.units(run) < units {
                break;
            }
            self.within(run, units, &mut cheapest);
        }
        if as_it_is && cheapest.placement.is_some() {
            return cheapest.placement;
        }
        let longest = |pieces: &[Piece]| pieces.last().map_or(0, |piece| piece.units);
        let ends = longest(&self.openings) + longest(&self.closings);
        let least = units.saturating_sub(ends).div_ceil(self.granule);
        for granules in least..=units.div_ceil(self.granule) {
            if granules > least + 1 && cheapest.placement.is_some() {
                break;
            }
            self.composed(units, granules, &mut cheapest);
        }
        cheapest.placement
    }

    /// At either end of a free block, or along the granules in it.
    fn within(&self, run: Id, units: u32, cheapest: &mut Cheapest) {
        let (start, end) = self.bounds(run);
        let (first, last) = (start.next_multiple_of(self.granule), end - end % self.granule);
        let all = self.worth(start, end);
        for place in [Some(start), Some(end - units), Some(first), last.checked_sub(units)] {
            let Some(place) = place.filter(|&place| place >= start && place + units <= end) else {
                continue;
            };
            let left = self.worth(start, place) + self.worth(place + units, end);
            cheapest.consider(all - left, Placement::Within(run, place - start));
        }
    }

    /// Of `granules` whole ones and an end or two.
    fn composed(&self, units: u32, granules: u32, cheapest: &mut Cheapest) {
        let new = granules.saturating_sub(self.movable.granules);
        let base = WHOLE * f64::from(granules) + NEW * f64::from(new) + self.wait;
        let whole = granules * self.granule;
        if whole >= units {
            let alone = Composition {
                opening: None,
                closing: None,
                site: Site::Anew,
                granules,
                new,
                at_end: false,
            };
            let cost = base - self.end_worth(whole - units) + CALL * f64::from(granules);
            cheapest.consider(cost, Placement::Composed(alone));
        }
        for (pieces, is_opening) in [(&self.openings, true), (&self.closings, false)] {
            for piece in pieces.iter() {
                let left = (whole + piece.units).checked_sub(units);
                // Less than a granule, and of a granule of its own: otherwise there is a cheaper way, or none.
                if let Some(left) = left.filter(|&left| left < self.granule && granules > 0) {
                    let cost = base + self.end_worth(piece.units) - self.end_worth(left);
                    self.beside(piece, is_opening, granules, cost, cheapest);
                }
            }
        }
        if let Some(missing) = units
            .checked_sub(whole)
            .filter(|&missing| missing > 0 && self.movable.pieces)
        {
            self.between(missing, granules, new, base, cheapest);
        }
    }

    /// One end and whole granules, where the end lies if there is room.
    fn beside(&self, piece: &Piece, is_opening: bool, granules: u32, cost: f64, cheapest: &mut Cheapest) {
        let missing = granules.saturating_sub(piece.whole);
        let in_place = piece.room >= missing;
        if !in_place && (!self.movable.pieces || piece.units == 0) {
            return;
        }
        let (site, to_map, calls) = match in_place {
            true if is_opening => (Site::After(piece.run), missing, missing),
            true => (Site::Before(piece.run), missing, missing),
            false => (Site::Anew, granules, granules + 1),
        };
        let composition = Composition {
            opening: is_opening.then_some(*piece),
            closing: (!is_opening).then_some(*piece),
            site,
            granules: to_map,
            // Those that are in place already are among the free ones.
            new: granules.saturating_sub(self.movable.granules).min(to_map),
            at_end: !is_opening,
        };
        cheapest.consider(cost + CALL * f64::from(calls), Placement::Composed(composition));
    }

    /// For each opening the shortest closing that is long enough.
    fn between(&self, missing: u32, granules: u32, new: u32, base: f64, cheapest: &mut Cheapest) {
        let mut closings = self.closings.len();
        for opening in &self.openings {
            while closings > 0 && opening.units + self.closings[closings - 1].units >= missing {
                closings -= 1;
            }
            let Some(closing) = self.closings.get(closings) else {
                continue;
            };
            let left = opening.units + closing.units - missing;
            // One of them is of no length, or not needed.
            if left >= opening.units.min(closing.units) {
                continue;
            }
            let composition = Composition {
                opening: Some(*opening),
                closing: Some(*closing),
                site: Site::Anew,
                granules,
                new,
                at_end: opening.units > closing.units,
            };
            let worth = self.end_worth(opening.units) + self.end_worth(closing.units);
            let cost = base + worth - self.between_worth(left) + CALL * f64::from(granules + 2);
            cheapest.consider(cost, Placement::Composed(composition));
        }
    }
}
