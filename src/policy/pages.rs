//! For each page of a segment, the first block that begins in it.
//!
//! A block can be longer than thousands of pages, in which then none begins. A bitmap leads past them.

use crate::request::UNIT;

/// The index of a block; not an address.
pub type Id = u32;
pub const NONE: Id = u32::MAX;

/// Size of a page, in units: 2 MiB. Smaller pages would make larger tables; larger pages would make the walk to a block
/// longer. `find`, `owns` and growth take this walk; an ordinary request or free does not.
const PAGE_UNITS: u32 = (2 << 20) / UNIT as u32;

pub struct Pages {
    first: Vec<Id>,
    /// A bit for each page in which a block begins.
    used: Vec<u64>,
}

/// The page that a unit of a segment is in.
pub fn page_of(unit: u32) -> u32 {
    unit / PAGE_UNITS
}

impl Pages {
    /// The pages of a segment of so many units, in which no block begins yet.
    pub fn new(units: u32) -> Self {
        let pages = units.div_ceil(PAGE_UNITS) as usize;
        Pages {
            first: vec![NONE; pages],
            used: vec![0; pages.div_ceil(64)],
        }
    }

    pub fn get(&self, page: u32) -> Id {
        self.first[page as usize]
    }

    pub fn set(&mut self, page: u32, first: Id) {
        self.first[page as usize] = first;
        let bit = 1 << (page % 64);
        let word = &mut self.used[page as usize / 64];
        *word = if first == NONE { *word & !bit } else { *word | bit };
    }

    /// Shortens the segment to so many units. No block begins in the pages after them.
    pub fn shorten(&mut self, units: u32) {
        let pages = units.div_ceil(PAGE_UNITS) as usize;
        self.first.truncate(pages);
        self.used.truncate(pages.div_ceil(64));
        // The last word may have bits of pages that are gone.
        if let Some(last) = self.used.last_mut()
            && !pages.is_multiple_of(64)
        {
            *last &= (1 << (pages % 64)) - 1;
        }
    }

    /// The first block of the last page before `page` in which a block begins.
    pub fn before(&self, page: u32) -> Option<Id> {
        let (word, bit) = (page as usize / 64, page % 64);
        let here = self.used.get(word).map_or(0, |&bits| bits & ((1 << bit) - 1));
        let found = match here {
            0 => {
                let earlier = self.used[..word].iter().rposition(|&bits| bits != 0)?;
                (earlier, self.used[earlier])
            }
            _ => (word, here),
        };
        let page = found.0 * 64 + 63 - found.1.leading_zeros() as usize;
        Some(self.first[page])
    }
}
