//! The memory of one device in PyTorch's terms: segments, and blocks inside them. Each record of the journal changes
//! this state and gives the entries of the trace.
//!
//! | journal | trace |
//! |---|---|
//! | a policy's segment | `segment_alloc`, `segment_free`; of an expandable one `segment_map`, `segment_unmap` |
//! | a block inside | `alloc`; `free_requested` and `free_completed` |
//! | memory that a call obtained for itself | a segment and a block that fills it |
//! | a block in a stitch | a block for each part, where the part's bytes are |
//! | physical memory (`cuMemCreate`) | a segment and a block where it is mapped |
//! | arrays | a segment and a block at a made-up address |
//! | out of memory | `oom` |

use std::collections::{BTreeMap, HashMap};

use base::api::Class;
use journal::format::{Event, Record};

use crate::analysis::device_ledger::{Live, NameSpace};
use crate::analysis::ledger::{Key, Ledger, key_of};

/// Addresses from here on are made up.
const MADE_UP: u64 = 1 << 52;
/// JavaScript's numbers are exact up to this address.
const LAST_ADDRESS: u64 = MADE_UP * 2;
/// Addresses are made up for at most so many bytes of a device.
const LARGEST_DEVICE: u64 = 1 << 46;
/// Made-up addresses are multiples of this.
const STEP: u64 = 1 << 20;

/// The stream of expandable segments. MemoryViz joins the pieces of a segment if their streams are equal. It writes
/// over the streams of entries, but not over those of segments, if all entries have the default stream 0.
const EXPANDABLE_STREAM: u64 = 1;

/// An entry of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub action: &'static str,
    /// The address; for `oom` the free bytes of the device.
    pub place: u64,
    pub size: u64,
    pub stream: u64,
    pub stack: u32,
}

impl Entry {
    fn new(action: &'static str, place: u64, size: u64, stream: u64, stack: u32) -> Entry {
        Entry {
            action,
            place,
            size,
            stream,
            stack,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub size: u64,
    pub expandable: bool,
    pub stack: u32,
    /// The allocation that it exists for alone; `None` if it is a policy's.
    owner: Option<Key>,
}

impl Segment {
    pub fn stream(&self) -> u64 {
        if self.expandable { EXPANDABLE_STREAM } else { 0 }
    }

    fn entry(&self, action: &'static str, place: u64, size: u64) -> Entry {
        Entry::new(action, place, size, self.stream(), self.stack)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub size: u64,
    pub requested: u64,
    pub stream: u64,
    pub stack: u32,
    owner: Option<Key>,
}

impl Block {
    fn entry(&self, action: &'static str, place: u64) -> Entry {
        Entry::new(action, place, self.requested, self.stream, self.stack)
    }
}

pub struct Device {
    pub number: i16,
    /// Whether segments may be given back in parts, and blocks may cross their ends.
    expandable: bool,
    pub segments: BTreeMap<u64, Segment>,
    pub blocks: BTreeMap<u64, Block>,
    /// The first addresses of the blocks of each live allocation, and of the segment that exists for it alone.
    places: HashMap<Key, Vec<u64>>,
    /// The ledger of the same records, which knows what is live, and where blocks in stitches lie.
    ledger: Ledger,
    next_made_up: u64,
    /// Free bytes as last measured.
    free: Option<u64>,
    /// The entries of the trace that the latest record gave.
    pub entries: Vec<Entry>,
}

/// PyTorch's default stream is 0.
fn stream(number: u8) -> u64 {
    match number {
        0 | 1 => 0,
        other => u64::from(other),
    }
}

/// The bytes of a segment that exists for an allocation alone.
fn own_size(one: &Live) -> u64 {
    one.reserved.max(one.allocated)
}

impl Device {
    pub fn new(number: i16, expandable: bool) -> Device {
        Device {
            number,
            expandable,
            segments: BTreeMap::new(),
            blocks: BTreeMap::new(),
            places: HashMap::new(),
            ledger: Ledger::default(),
            // Each device has its own.
            next_made_up: MADE_UP + number.max(0) as u64 * LARGEST_DEVICE,
            free: None,
            entries: Vec::new(),
        }
    }

    pub fn apply(&mut self, record: &Record) {
        if record.device != self.number {
            return;
        }
        let failed = self.ledger.scenes.out_of_memory;
        self.ledger.apply(record);
        if let Some(gone) = self.ledger.gone().copied() {
            self.remove(key_of(&gone));
        }
        match record.event {
            Event::Alloc(one) => {
                let live = self.ledger.at(&one).filter(|live| self.shows(live)).copied();
                live.iter().for_each(|one| self.allocated(one));
            }
            Event::SegmentAlloc {
                address,
                size,
                again: false,
            } => self.add_segment(address, size, record.stack, None),
            Event::SegmentFree {
                address,
                size,
                again: false,
                ..
            } => self.remove_segment(address, size),
            Event::Map { address, size, handle } => self.mapped(address, size, handle),
            Event::Measured {
                mem_info: Some(info), ..
            } => {
                self.free = Some(info.free);
            }
            // A request that is made again is one failure.
            Event::AllocFailed { requested, .. } if self.ledger.scenes.out_of_memory > failed => {
                self.entries
                    .push(Entry::new("oom", self.free.unwrap_or(0), requested, 0, record.stack));
            }
            _ => {}
        }
    }

    /// Whether an allocation is memory of this device.
    fn shows(&self, live: &Live) -> bool {
        live.device == self.number && live.counts()
    }

    fn allocated(&mut self, one: &Live) {
        match NameSpace::of(one.class) {
            // Where it is mapped, or at the end.
            NameSpace::Physical => {}
            NameSpace::Object => {
                if let Some(address) = self.made_up(own_size(one)) {
                    self.place_alone(one, address);
                }
            }
            _ => {
                let places = self.inside(one);
                if places.is_empty() {
                    self.place_alone(one, one.address);
                }
                let mut left = one.size.min(one.allocated);
                for (address, size) in places {
                    let requested = left.min(size);
                    left -= requested;
                    self.add_block(one, address, size, requested);
                }
            }
        }
    }

    /// Where in segments an allocation of a policy lies; empty if not all of its bytes lie in segments.
    fn inside(&self, one: &Live) -> Vec<(u64, u64)> {
        let ledger = self.ledger.devices.get(&self.number).filter(|_| one.reserved == 0);
        let places = ledger.map_or(Vec::new(), |ledger| ledger.places(one.address, one.allocated));
        let is_covered = places.iter().all(|&(start, length)| self.covered(start, length));
        if is_covered { places } else { Vec::new() }
    }

    fn covered(&self, start: u64, length: u64) -> bool {
        let end = start.saturating_add(length);
        let mut at = start;
        while at < end {
            match self.segments.range(..=at).next_back() {
                Some((&segment, other)) if segment.saturating_add(other.size) > at => {
                    at = segment.saturating_add(other.size)
                }
                _ => return false,
            }
        }
        true
    }

    /// An address for `size` bytes that the journal gives none. `None` if they do not fit below `LAST_ADDRESS`: then the
    /// snapshot does without them.
    fn made_up(&mut self, size: u64) -> Option<u64> {
        let address = self.next_made_up;
        let end = size.max(1).checked_next_multiple_of(STEP)?.checked_add(address)?;
        (end <= LAST_ADDRESS).then(|| {
            self.next_made_up = end;
            address
        })
    }

    /// Gives an allocation a segment of its own.
    fn place_alone(&mut self, one: &Live, address: u64) {
        let size = own_size(one);
        if size == 0 || address.checked_add(size).is_none_or(|end| end > LAST_ADDRESS) {
            return;
        }
        self.add_segment(address, size, one.stack, Some(key_of(one)));
        self.places.insert(key_of(one), vec![address]);
        self.add_block(one, address, one.allocated, one.size.min(one.allocated));
    }

    fn add_block(&mut self, one: &Live, address: u64, size: u64, requested: u64) {
        if size == 0 {
            return;
        }
        self.remove_blocks(address, size);
        let block = Block {
            size,
            requested,
            stream: stream(one.stream),
            stack: one.stack,
            owner: Some(key_of(one)),
        };
        self.blocks.insert(address, block);
        self.places.entry(key_of(one)).or_default().push(address);
        self.entries.push(block.entry("alloc", address));
    }

    fn remove_block(&mut self, address: u64) {
        if let Some(block) = self.blocks.remove(&address) {
            let actions = ["free_requested", "free_completed"];
            self.entries.extend(actions.map(|action| block.entry(action, address)));
        }
    }

    /// Removes the blocks that share an address with a range: the journal does not say that they were freed.
    fn remove_blocks(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        while let Some((&start, block)) = self.blocks.range(..end).next_back()
            && start.saturating_add(block.size) > address
        {
            self.remove_block(start);
        }
    }

    /// An allocation is gone, with the segment that existed for it alone.
    fn remove(&mut self, key: Key) {
        let places = self.places.remove(&key).unwrap_or_default();
        for &address in &places {
            if self.blocks.get(&address).is_some_and(|block| block.owner == Some(key)) {
                self.remove_block(address);
            }
        }
        for address in places {
            if let Some(own) = self.segments.get(&address).filter(|own| own.owner == Some(key)) {
                self.remove_segment(address, own.size);
            }
        }
    }

    /// Whether the segment of an allocation is still there.
    fn has_segment(&self, key: Key) -> bool {
        let mut places = self.places.get(&key).into_iter().flatten();
        places.any(|address| self.segments.get(address).is_some_and(|own| own.owner == Some(key)))
    }

    fn add_segment(&mut self, address: u64, size: u64, stack: u32, owner: Option<Key>) {
        if size == 0 || address.checked_add(size).is_none() {
            return;
        }
        // What is there was given back without a record.
        self.remove_segment(address, size);
        let expandable = self.expandable && owner.is_none();
        let segment = Segment {
            size,
            expandable,
            stack,
            owner,
        };
        self.segments.insert(address, segment);
        let action = if expandable { "segment_map" } else { "segment_alloc" };
        self.entries.push(segment.entry(action, address, size));
    }

    /// Removes what the segments have of a range, and the blocks there.
    fn remove_segment(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        if size == 0 {
            return;
        }
        self.remove_blocks(address, size);
        while let Some((&start, &segment)) = self.segments.range(..end).next_back()
            && start.saturating_add(segment.size) > address
        {
            self.segments.remove(&start);
            let segment_end = start.saturating_add(segment.size);
            let (from, to) = (start.max(address), segment_end.min(end));
            if !segment.expandable {
                // A plain segment ends as a whole.
                self.remove_blocks(start, segment.size);
                self.entries.push(segment.entry("segment_free", start, segment.size));
            } else {
                self.entries.push(segment.entry("segment_unmap", from, to - from));
                for (piece, piece_end) in [(start, from), (to, segment_end)] {
                    if piece < piece_end {
                        let size = piece_end - piece;
                        self.segments.insert(piece, Segment { size, ..segment });
                    }
                }
            }
        }
    }

    /// Physical memory is where it was mapped first, or last if other memory is mapped there now.
    fn mapped(&mut self, address: u64, size: u64, handle: u64) {
        let key = (NameSpace::Physical, handle);
        let live = self.ledger.of_key(key).filter(|live| self.shows(live)).copied();
        if let Some(one) = live.filter(|one| !self.has_segment(key) && one.reserved <= size) {
            self.places.remove(&key);
            self.place_alone(&one, address);
        }
    }

    /// Adds what has no address yet: physical memory that is not mapped, and what the driver's pools hold beyond live
    /// allocations. These have no entries in the trace: MemoryViz shows them from the start.
    pub fn finish(&mut self) {
        let live: Vec<Live> = self
            .ledger
            .take_live()
            .into_iter()
            .filter(|one| self.shows(one))
            .collect();
        let physical = live
            .iter()
            .filter(|one| NameSpace::of(one.class) == NameSpace::Physical);
        let mut unplaced: Vec<&Live> = physical.filter(|one| !self.has_segment(key_of(one))).collect();
        unplaced.sort_by_key(|one| one.address);
        for one in unplaced {
            self.add_hidden(one.reserved, one.allocated, one.size, one.stack);
        }
        for class in [Class::Async, Class::Graph] {
            let Some(ledger) = self.ledger.devices.get(&self.number) else {
                return;
            };
            let totals = ledger.classes.get(&class.number()).copied().unwrap_or_default();
            let of_class = || live.iter().filter(|one| one.class == class.number());
            let reserved = of_class().map(own_size).fold(0, u64::saturating_add);
            let allocated = of_class().map(|one| one.allocated).fold(0, u64::saturating_add);
            // Launched graphs use bytes that belong to no allocation.
            let used = totals.allocated.current.saturating_sub(allocated);
            let rest = totals.reserved.current.saturating_sub(reserved).max(used);
            self.add_hidden(rest, used, used, 0);
        }
    }

    fn add_hidden(&mut self, reserved: u64, allocated: u64, requested: u64, stack: u32) {
        let size = reserved.max(allocated);
        if size == 0 {
            return;
        }
        let Some(address) = self.made_up(size) else {
            return;
        };
        let segment = Segment {
            size,
            expandable: false,
            stack,
            owner: None,
        };
        self.segments.insert(address, segment);
        if allocated > 0 {
            let block = Block {
                size: allocated,
                requested: requested.min(allocated),
                stream: 0,
                stack,
                owner: None,
            };
            self.blocks.insert(address, block);
        }
    }

    /// The segments as they are written: pieces of expandable ones that touch are one.
    pub fn joined(&self) -> Vec<(u64, Segment)> {
        let mut joined: Vec<(u64, Segment)> = Vec::new();
        for (&address, &segment) in &self.segments {
            match joined.last_mut() {
                Some((start, last))
                    if last.expandable && segment.expandable && start.saturating_add(last.size) == address =>
                {
                    last.size += segment.size;
                }
                _ => joined.push((address, segment)),
            }
        }
        joined
    }
}
