//! The blocks of an arena. Blocks cover every segment without a gap, and each is linked with its neighbours.
//!
//! All blocks are in one vector, 32 bytes each, so that a request or a free touches few cache lines. A live block is
//! found by its first address in a hash table of indices, whatever the number of segments. The block that contains any other address is found by page:
//! each page of a segment has the index of the first block that begins in it.

use std::cell::Cell;
use std::ops::{Index, Range};

use hashbrown::HashTable;

use crate::holdings::{Backing, Block};
use crate::request::UNIT;

/// The index of a block; not an address.
pub type Id = u32;
pub const NONE: Id = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The index is not in use.
    Vacant,
    Live,
    Free,
    /// Reserved address space in which nothing is mapped.
    Hole,
    /// Taken for work that is under way.
    Claimed,
    /// A part of a live block whose address lies elsewhere, because the same memory is mapped there too.
    Part,
}

/// How many lists of free blocks there can be.
pub const MAX_LISTS: u32 = 256;
/// The list number of a block that is in no list.
pub const NO_LIST: u32 = MAX_LISTS - 1;

#[derive(Clone, Copy)]
#[repr(align(32))]
pub struct Node {
    pub segment: u32,
    /// Distance from the first address of the segment, in units.
    pub offset: u32,
    pub units: u32,
    pub prev: Id,
    pub next: Id,
    /// The neighbours in the list of free blocks of the same size.
    list_prev: Id,
    pub list_next: Id,
    /// Kind, list number and slack; see the masks below. Slack is how many bytes were allocated but not requested.
    meta: u32,
}

const KIND: u32 = 7;
/// By their numbers in `meta`.
const KINDS: [Kind; KIND as usize + 1] = {
    use Kind::*;
    [Vacant, Live, Free, Hole, Claimed, Part, Vacant, Vacant]
};
const LIST_SHIFT: u32 = 3;
const LIST: u32 = 0xff << LIST_SHIFT;
const SLACK_SHIFT: u32 = 16;

const _: () = assert!(size_of::<Node>() == 32);

struct Segment {
    address: u64,
    units: u32,
    first: Id,
    pages: Pages,
}

#[derive(Default)]
pub struct Blocks {
    nodes: Vec<Node>,
    /// The first vacant index; the others are linked by `list_next`.
    vacant: Option<Id>,
    segments: Vec<Option<Segment>>,
    /// First address and number of each segment, in the order of addresses. A sorted vector, because segments are few
    /// and are looked up far more often than added.
    pub by_address: Vec<(u64, u32)>,
    /// Live blocks, by the hash of the first address.
    pub live: HashTable<Id>,
    /// The number of the segment that was found last, which is often the next one too.
    last: Cell<u32>,
    /// How many blocks were passed on the way to others.
    pub passed: Cell<u64>,
}

fn hash(address: u64) -> u64 {
    let mixed = (address / UNIT).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 29)
}

fn of_a_block(segments: &[Option<Segment>], number: u32) -> &Segment {
    // A segment is removed only together with its last block.
    segments[number as usize].as_ref().expect("a block's segment")
}

fn address_of(node: &Node, segments: &[Option<Segment>]) -> u64 {
    of_a_block(segments, node.segment).address + u64::from(node.offset) * UNIT
}

impl Index<Id> for Blocks {
    type Output = Node;

    #[inline]
    fn index(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }
}

impl Blocks {
    /// Adds a segment of `units` at `address`, as one block of this kind; returns the block.
    pub fn add_segment(&mut self, address: u64, units: u32, kind: Kind) -> Id {
        let first = self.new_node(Node {
            segment: NONE,
            offset: 0,
            units,
            prev: NONE,
            next: NONE,
            list_prev: NONE,
            list_next: NONE,
            meta: NO_LIST << LIST_SHIFT,
        });
        self.set_kind(first, kind);
        self.new_segment(address, units, first);
        first
    }

    /// Takes a block that is not live out of its segment. The blocks before it keep the segment. The blocks after it
    /// become another segment, so their places change: none of them may be in a list.
    pub fn detach(&mut self, block: Id) {
        let node = self.nodes[block as usize];
        let end = node.offset + node.units;
        let &Segment { address, units, .. } = of_a_block(&self.segments, node.segment);
        if node.prev == NONE {
            self.segments[node.segment as usize] = None;
            let place = self.by_address.partition_point(|&(first, _)| first < address);
            self.by_address.remove(place);
        } else {
            self.nodes[node.prev as usize].next = NONE;
            if let Some(segment) = &mut self.segments[node.segment as usize] {
                segment.units = node.offset;
                if segment.pages.get(page_of(node.offset)) == block {
                    segment.pages.set(page_of(node.offset), NONE);
                }
                segment.pages.shorten(node.offset);
            }
        }
        if node.next != NONE {
            self.nodes[node.next as usize].prev = NONE;
            self.new_segment(address + u64::from(end) * UNIT, units - end, node.next);
        }
        self.recycle(block);
    }

    /// Makes a segment of blocks that exist already: `first` and those after it.
    fn new_segment(&mut self, address: u64, units: u32, first: Id) {
        let vacant = self.segments.iter().position(Option::is_none);
        let number = vacant.unwrap_or(self.segments.len()) as u32;
        let mut pages = Pages::new(units);
        let start = self.nodes[first as usize].offset;
        let mut id = first;
        while id != NONE {
            let node = &mut self.nodes[id as usize];
            node.segment = number;
            node.offset -= start;
            let page = page_of(node.offset);
            if pages.get(page) == NONE {
                pages.set(page, id);
            }
            id = node.next;
        }
        let segment = Some(Segment {
            address,
            units,
            first,
            pages,
        });
        match vacant {
            Some(index) => self.segments[index] = segment,
            None => self.segments.push(segment),
        }
        let place = self.by_address.partition_point(|&(first, _)| first < address);
        self.by_address.insert(place, (address, number));
    }

    fn new_node(&mut self, node: Node) -> Id {
        match self.vacant {
            Some(id) => {
                let next = self.nodes[id as usize].list_next;
                self.vacant = (next != NONE).then_some(next);
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as Id
            }
        }
    }

    fn recycle(&mut self, id: Id) {
        let node = &mut self.nodes[id as usize];
        node.meta = NO_LIST << LIST_SHIFT;
        node.list_next = self.vacant.unwrap_or(NONE);
        self.vacant = Some(id);
    }

    pub fn kind(&self, id: Id) -> Kind {
        KINDS[(self.nodes[id as usize].meta & KIND) as usize]
    }

    pub fn set_kind(&mut self, id: Id, kind: Kind) {
        let meta = &mut self.nodes[id as usize].meta;
        *meta = *meta & !KIND | kind as u32;
    }

    pub fn list(&self, id: Id) -> u32 {
        (self.nodes[id as usize].meta & LIST) >> LIST_SHIFT
    }

    pub fn set_list(&mut self, id: Id, list: u32) {
        let meta = &mut self.nodes[id as usize].meta;
        *meta = *meta & !LIST | list << LIST_SHIFT;
    }

    pub fn address(&self, id: Id) -> u64 {
        address_of(&self.nodes[id as usize], &self.segments)
    }

    pub fn bytes(&self, id: Id) -> u64 {
        u64::from(self[id].units) * UNIT
    }

    pub fn range(&self, id: Id) -> Range<u64> {
        let start = self.address(id);
        start..start + self.bytes(id)
    }

    /// A key that orders blocks by segment, and by address within a segment.
    pub fn place(&self, id: Id) -> u64 {
        let node = self.nodes[id as usize];
        u64::from(node.segment) << 32 | u64::from(node.offset)
    }

    pub fn segment_base(&self, id: Id) -> u64 {
        of_a_block(&self.segments, self[id].segment).address
    }

    pub fn list_links(&mut self, id: Id) -> (&mut Id, &mut Id) {
        let node = &mut self.nodes[id as usize];
        (&mut node.list_prev, &mut node.list_next)
    }

    /// Shortens a block to its first `units`; returns the rest as a block of the same kind, in no list.
    pub fn split(&mut self, id: Id, units: u32) -> Id {
        let node = self.nodes[id as usize];
        let rest = self.new_node(Node {
            offset: node.offset + units,
            units: node.units - units,
            prev: id,
            list_prev: NONE,
            list_next: NONE,
            meta: node.meta & KIND | NO_LIST << LIST_SHIFT,
            ..node
        });
        self.nodes[id as usize].units = units;
        self.nodes[id as usize].next = rest;
        if node.next != NONE {
            self.nodes[node.next as usize].prev = rest;
        }
        let page = page_of(node.offset + units);
        // No block begins between the two, so the rest is the first block of its page if the other is not in that page.
        // Mostly both are in one page, and the table, which is rarely in a cache, is not needed.
        if page_of(node.offset) != page {
            self.pages(node.segment).set(page, rest);
        }
        rest
    }

    /// Joins a block with the block after it, whose index becomes vacant.
    pub fn join_next(&mut self, id: Id) {
        let gone = self.nodes[id as usize].next;
        let node = self.nodes[gone as usize];
        let joined = &mut self.nodes[id as usize];
        joined.units += node.units;
        joined.next = node.next;
        let begins_in = page_of(joined.offset);
        if node.next != NONE {
            self.nodes[node.next as usize].prev = id;
        }
        let page = page_of(node.offset);
        // As in `split`.
        if begins_in != page {
            let next_in_page = node.next != NONE && page_of(self.nodes[node.next as usize].offset) == page;
            self.pages(node.segment)
                .set(page, if next_in_page { node.next } else { NONE });
        }
        self.recycle(gone);
    }

    fn pages(&mut self, segment: u32) -> &mut Pages {
        let segment = self.segments[segment as usize].as_mut();
        &mut segment.expect("a block's segment").pages
    }

    /// Makes a block live, for a request of `requested` bytes.
    pub fn make_live(&mut self, id: Id, requested: u64) {
        self.set_kind(id, Kind::Live);
        let slack = u64::from(self.nodes[id as usize].units) * UNIT - requested;
        self.set_slack(id, slack);
        let (nodes, segments) = (&self.nodes, &self.segments);
        let hash_of = |&id: &Id| hash(address_of(&nodes[id as usize], segments));
        self.live.insert_unique(hash_of(&id), id, hash_of);
    }

    /// Sets how many bytes of a block were not requested.
    pub fn set_slack(&mut self, id: Id, slack: u64) {
        let node = &mut self.nodes[id as usize];
        node.meta = node.meta & (KIND | LIST) | (slack.min(0xffff) as u32) << SLACK_SHIFT;
    }

    fn segment_at(&self, address: u64) -> Option<(u32, &Segment)> {
        let holds = |segment: &Segment| address.wrapping_sub(segment.address) < u64::from(segment.units) * UNIT;
        let last = self.last.get();
        if let Some(Some(segment)) = self.segments.get(last as usize)
            && holds(segment)
        {
            return Some((last, segment));
        }
        let after = self.by_address.partition_point(|&(first, _)| first <= address);
        let &(_, number) = self.by_address.get(after.checked_sub(1)?)?;
        let segment = of_a_block(&self.segments, number);
        if !holds(segment) {
            return None;
        }
        self.last.set(number);
        Some((number, segment))
    }

    pub fn segment_of(&self, address: u64) -> Option<Backing> {
        let (_, segment) = self.segment_at(address)?;
        let (address, size) = (segment.address, u64::from(segment.units) * UNIT);
        Some(Backing::Segment { address, size })
    }

    /// Makes the live block that begins at `address` free. It is in no list yet.
    pub fn make_free(&mut self, address: u64) -> Option<Id> {
        let (nodes, segments) = (&self.nodes, &self.segments);
        let is_it = |&id: &Id| address_of(&nodes[id as usize], segments) == address;
        let (id, _) = self.live.find_entry(hash(address), is_it).ok()?.remove();
        self.set_kind(id, Kind::Free);
        Some(id)
    }

    /// The block that contains `address`, of any kind.
    pub fn containing(&self, address: u64) -> Option<Id> {
        let (_, segment) = self.segment_at(address)?;
        let unit = ((address - segment.address) / UNIT) as u32;
        let mut id = match segment.pages.get(page_of(unit)) {
            NONE => segment.pages.before(page_of(unit))?,
            // No block begins in the page before this one, so the block before it contains the unit.
            first if self.nodes[first as usize].offset > unit => return Some(self.nodes[first as usize].prev),
            first => first,
        };
        loop {
            let node = &self.nodes[id as usize];
            if unit < node.offset + node.units {
                return Some(id);
            }
            self.passed.set(self.passed.get() + 1);
            id = node.next;
        }
    }

    pub fn describe(&self, id: Id) -> Block {
        let node = &self.nodes[id as usize];
        let allocated = u64::from(node.units) * UNIT;
        Block {
            address: self.address(id),
            requested: allocated - u64::from(node.meta >> SLACK_SHIFT),
            allocated,
        }
    }

    pub fn first_blocks(&self) -> impl Iterator<Item = Id> + '_ {
        self.segments.iter().flatten().map(|segment| segment.first)
    }

    pub fn each_live(&self) -> impl Iterator<Item = Block> + '_ {
        self.live.iter().map(|&id| self.describe(id))
    }

    /// First address and bytes of each part of a block in a stitch, in no order.
    pub fn each_part(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let parts = (0..self.nodes.len() as Id).filter(|&id| self.kind(id) == Kind::Part);
        parts.map(|id| (self.address(id), self.bytes(id)))
    }
}

/// Size of a page, in units: 2 MiB. Smaller pages would make larger tables; larger pages would make the walk to a block
/// longer. `find`, `owns` and growth take this walk; an ordinary request or free does not.
const PAGE_UNITS: u32 = (2 << 20) / UNIT as u32;

/// For each page of a segment, the first block that begins in it.
///
/// A block can be longer than thousands of pages, in which then none begins. A bitmap leads past them.
struct Pages {
    first: Vec<Id>,
    /// A bit for each page in which a block begins.
    used: Vec<u64>,
}

/// The page that a unit of a segment is in.
fn page_of(unit: u32) -> u32 {
    unit / PAGE_UNITS
}

impl Pages {
    /// The pages of a segment of so many units, in which no block begins yet.
    fn new(units: u32) -> Self {
        let pages = units.div_ceil(PAGE_UNITS) as usize;
        Pages {
            first: vec![NONE; pages],
            used: vec![0; pages.div_ceil(64)],
        }
    }

    fn get(&self, page: u32) -> Id {
        self.first[page as usize]
    }

    fn set(&mut self, page: u32, first: Id) {
        self.first[page as usize] = first;
        let bit = 1 << (page % 64);
        let word = &mut self.used[page as usize / 64];
        *word = if first == NONE { *word & !bit } else { *word | bit };
    }

    /// Shortens the segment to so many units. No block begins in the pages after them.
    fn shorten(&mut self, units: u32) {
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
    fn before(&self, page: u32) -> Option<Id> {
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
