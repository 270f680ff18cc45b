//! A model of a device, which a policy sees as `DeviceMemory`.
//!
//! It knows where every byte is mapped, and which work may still use it. It panics if a policy breaks a rule of the
//! driver or of the trait. One call, which the test chooses, fails.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use base::cuda::DriverError;
use policy::device_memory::{Available, DeviceMemory, EventId, NoEvent};
use policy::{Block, Request, UsedBy};

pub const TOTAL: u64 = 64 << 20;
pub const GRANULARITY: u64 = 2 << 20;

/// In an event: the work of all streams.
const ANY_STREAM: u64 = u64::MAX;

#[derive(Default)]
pub struct Model {
    /// Segments: first address -> bytes.
    pub segments: RefCell<BTreeMap<u64, u64>>,
    /// Physical memory: handle -> bytes.
    pub physical: RefCell<BTreeMap<u64, u64>>,
    /// First address -> (bytes, handle, accessible).
    pub mappings: RefCell<BTreeMap<u64, (u64, u64, bool)>>,
    /// Reserved address space: first address -> bytes.
    pub ranges: RefCell<BTreeMap<u64, u64>>,
    /// What the policy reported as mapped: first address -> bytes.
    reported: RefCell<BTreeMap<u64, u64>>,
    pub virtual_memory: Cell<bool>,
    next: Cell<u64>,
    handles: Cell<u64>,
    pub calls: Cell<u64>,
    /// How many of them changed memory: create, map, access, unmap, release, allocate, free.
    pub changes: Cell<u64>,
    /// The number of the driver call that fails; 0 if none does.
    pub fault_at: Cell<u64>,
    /// Whether the caller may wait for the work that uses memory, so that giving such memory back is no mistake.
    pub may_wait: Cell<bool>,
    /// Segments that were given back, whose addresses the device grants again: first address and bytes.
    given_back: RefCell<Vec<(u64, u64)>>,
    pub keeps_mappings: Cell<bool>,
    /// How many bytes of addresses can still be reserved; `None` for any number.
    pub addresses_left: Cell<Option<u64>>,
    pub refuses_handles: Cell<bool>,
    pub others: Cell<u64>,
    pub capturing: Cell<bool>,
    /// Freed blocks, with the work that may still use them.
    busy: RefCell<Vec<Busy>>,
    freed: Cell<u64>,
    /// By stream, how many blocks had been freed when the last of the work that has ended was submitted.
    ended: RefCell<BTreeMap<u64, u64>>,
    /// By number, the stream of an event, and how many blocks had been freed when it was recorded.
    events: RefCell<BTreeMap<u64, (u64, u64)>>,
    pub events_recorded: Cell<u64>,
    pub context_events: Cell<bool>,
    pub fell_back: Cell<bool>,
}

/// A range of memory: handle, first byte, and the byte after the last. In a segment the handle is 0 and the bytes are
/// addresses; otherwise they are distances from the beginning of the handle.
type Bytes = (u64, u64, u64);

/// A block that earlier work may still use.
struct Busy {
    /// Its first address, and the address after its last.
    place: (u64, u64),
    memory: Vec<Bytes>,
    /// The streams that have used it; `None` if any may have.
    streams: Option<Vec<u64>>,
    /// How many blocks had been freed, this one included.
    freed: u64,
}

/// Blocks of so many bytes lie as those of the driver do: at multiples of this, or where a segment begins.
pub fn alignment_of(size: u64) -> u64 {
    match size {
        0x20_0000.. => 2 << 20,
        0x1_0000.. => 64 << 10,
        _ => 512,
    }
}

fn overlap(one: &Bytes, other: &Bytes) -> bool {
    one.0 == other.0 && one.1 < other.2 && other.1 < one.2
}

impl Model {
    pub fn outstanding(&self) -> u64 {
        self.segments.borrow().values().sum::<u64>() + self.physical.borrow().values().sum::<u64>()
    }

    pub fn room(&self) -> u64 {
        TOTAL - self.others.get() - self.outstanding()
    }

    fn new_address(&self, size: u64) -> u64 {
        let address = self.next.get() + (1 << 40);
        // A gap after some, none after others: neighbours that touch must not be joined either.
        let gap = if self.calls.get().is_multiple_of(2) { 4096 } else { 0 };
        self.next.set(self.next.get() + size.next_multiple_of(512) + gap);
        address
    }

    fn change(&self) -> Result<(), DriverError> {
        self.changes.set(self.changes.get() + 1);
        self.call()
    }

    fn call(&self) -> Result<(), DriverError> {
        if self.fails_now() {
            Err(DriverError(700))
        } else {
            Ok(())
        }
    }

    /// Memory of the device is obtained, if there is as much.
    fn obtain(&self, size: u64) -> Result<(), DriverError> {
        match self.change() {
            Ok(()) if size <= self.room() => Ok(()),
            _ => Err(DriverError::OUT_OF_MEMORY),
        }
    }

    fn fails_now(&self) -> bool {
        self.calls.set(self.calls.get() + 1);
        self.calls.get() == self.fault_at.get()
    }

    /// The memory behind `size` bytes at `address`; panics if there is none.
    pub fn behind(&self, address: u64, size: u64) -> Vec<Bytes> {
        let in_segment = |(&start, &bytes): (&u64, &u64)| start <= address && address + size <= start + bytes;
        if self.segments.borrow().iter().any(in_segment) {
            return vec![(0, address, address + size)];
        }
        let mut pieces = Vec::new();
        let mut at = address;
        while at < address + size {
            let mappings = self.mappings.borrow();
            let (&start, &(bytes, handle, accessible)) = mappings.range(..=at).next_back().expect("a mapping");
            assert!(
                at < start + bytes && accessible,
                "{at:#x} is not mapped, or not accessible"
            );
            let end = (start + bytes).min(address + size);
            pieces.push((handle, at - start, end - start));
            at = end;
        }
        pieces
    }

    /// Notes a free: work may still use the block.
    pub fn in_use(&self, address: u64, size: u64, used_by: UsedBy) {
        self.freed.set(self.freed.get() + 1);
        self.busy.borrow_mut().push(Busy {
            place: (address, address + size),
            memory: self.behind(address, size),
            streams: match used_by {
                UsedBy::Nothing => Some(Vec::new()),
                UsedBy::Streams(streams) => Some(streams.to_vec()),
                UsedBy::Unknown | UsedBy::Awaited => None,
            },
            freed: self.freed.get(),
        });
    }

    /// The work ends that was submitted to this stream until now.
    pub fn stream_ends(&self, stream: u64) {
        let freed = self.freed.get();
        let mut ended = self.ended.borrow_mut();
        ended.insert(stream, freed);
        let has_ended = |busy: &Busy| {
            let ended = |stream| ended.get(stream).is_some_and(|&freed| freed >= busy.freed);
            busy.streams.as_ref().is_some_and(|streams| streams.iter().all(ended))
        };
        self.busy.borrow_mut().retain(|busy| !has_ended(busy));
    }

    /// A wait for all work begins; returns what `wait_ends` needs.
    pub fn wait_begins(&self) -> u64 {
        assert!(!self.capturing.get(), "synchronising breaks a capture");
        self.freed.get()
    }

    pub fn wait_ends(&self, freed: u64) {
        self.ended.borrow_mut().insert(ANY_STREAM, freed);
        self.busy.borrow_mut().retain(|busy| busy.freed > freed);
    }

    /// Whether earlier work may still use a part of the block when the next work on this stream runs.
    pub fn is_busy(&self, address: u64, size: u64, stream: Option<u64>) -> bool {
        let memory = self.behind(address, size);
        let in_order = |busy: &Busy| match (stream, &busy.streams) {
            (Some(stream), Some(streams)) => streams.iter().all(|&user| user == stream),
            _ => false,
        };
        let touches = |one: &Bytes| memory.iter().any(|other| overlap(one, other));
        let busy = self.busy.borrow();
        busy.iter()
            .any(|busy| !in_order(busy) && busy.memory.iter().any(touches))
    }

    /// A block that was handed out lies as its request wants it, and no earlier work can still touch it when the next
    /// work on the request's stream runs. Captured work runs later, so the order of its stream promises nothing.
    pub fn assert_usable(&self, block: &Block, request: &Request) {
        let stream = request.stream;
        let alignment = if stream.is_some() {
            512
        } else {
            alignment_of(request.bytes)
        };
        let is_aligned = block.address.is_multiple_of(alignment) || self.segments.borrow().contains_key(&block.address);
        assert!(is_aligned, "{block:x?}");
        assert!(block.requested == request.bytes && block.allocated >= block.requested);
        let in_order = stream.filter(|_| !self.capturing.get());
        let is_busy = self.is_busy(block.address, block.allocated, in_order);
        assert!(!is_busy, "handed out while earlier work could still touch it");
    }

    /// How many granules contain no byte of a live block. A live block is a first address and a size.
    pub fn free_granules(&self, live: impl Iterator<Item = (u64, u64)>) -> u64 {
        let pieces = live.flat_map(|(address, size)| self.behind(address, size));
        let used: BTreeSet<u64> = pieces.map(|(handle, ..)| handle).collect();
        let physical = self.physical.borrow();
        physical.keys().filter(|handle| !used.contains(handle)).count() as u64
    }

    /// Panics if any byte of memory is behind two live blocks.
    pub fn assert_apart(&self, live: impl Iterator<Item = (u64, u64)>) {
        let mut pieces: Vec<_> = live.flat_map(|(address, size)| self.behind(address, size)).collect();
        pieces.sort_unstable();
        for pair in pieces.windows(2) {
            assert!(!overlap(&pair[0], &pair[1]), "two live blocks share memory");
        }
    }

    pub fn events_kept(&self) -> usize {
        self.events.borrow().len()
    }

    pub fn reported(&self) -> u64 {
        self.reported.borrow().values().sum()
    }
}

impl DeviceMemory for Model {
    fn allocate(&self, size: u64) -> Result<u64, DriverError> {
        self.obtain(size)?;
        // A driver grants an address again as soon as it is free.
        let again = self.given_back.borrow().iter().position(|&(_, bytes)| bytes == size);
        let address = match again {
            Some(index) => self.given_back.borrow_mut().swap_remove(index).0,
            None => self.new_address(size),
        };
        self.segments.borrow_mut().insert(address, size);
        Ok(address)
    }

    fn free(&self, address: u64, size: u64) -> Result<(), DriverError> {
        assert!(
            !self.capturing.get(),
            "freeing waits for the device, which a capture does not allow"
        );
        self.change()?;
        let known = self.segments.borrow_mut().remove(&address);
        assert_eq!(
            known,
            Some(size),
            "a segment of ours: {address:#x} of {:x?}, ranges {:x?}",
            self.segments.borrow(),
            self.ranges.borrow()
        );
        self.given_back.borrow_mut().push((address, size));
        let gone = (0, address, address + size);
        let uses = |busy: &Busy| busy.memory.iter().any(|piece| overlap(piece, &gone));
        if self.may_wait.get() {
            // The driver waits, so the work ends.
            self.busy.borrow_mut().retain(|busy| !uses(busy));
        }
        assert!(
            !self.busy.borrow().iter().any(uses),
            "given back while work may use it, so that the driver waits"
        );
        Ok(())
    }

    fn is_capturing(&self) -> bool {
        self.capturing.get()
    }

    fn record_event(&self, stream: u64) -> Result<EventId, NoEvent> {
        if self.capturing.get() {
            return Err(NoEvent::NotNow);
        }
        if self.fails_now() {
            return Err(NoEvent::Never);
        }
        let number = self.events_recorded.get() + 1;
        self.events_recorded.set(number);
        self.events.borrow_mut().insert(number, (stream, self.freed.get()));
        Ok(EventId(number))
    }

    fn record_all(&self) -> Result<Vec<EventId>, NoEvent> {
        if !self.context_events.get() {
            return Err(NoEvent::Never);
        }
        self.record_event(ANY_STREAM).map(|event| vec![event])
    }

    fn event_is_done(&self, EventId(number): EventId) -> bool {
        let (stream, freed) = self.events.borrow()[&number];
        !self.fails_now() && self.ended.borrow().get(&stream).is_some_and(|&ended| ended >= freed)
    }

    fn forget_event(&self, EventId(number): EventId) {
        self.events
            .borrow_mut()
            .remove(&number)
            .expect("an event that was recorded");
    }

    fn available(&self) -> Result<Available, DriverError> {
        self.call()?;
        Ok(Available {
            free: self.room(),
            total: TOTAL,
        })
    }

    fn granularity(&self) -> Option<u64> {
        self.virtual_memory.get().then_some(GRANULARITY)
    }

    fn reserve(&self, size: u64, alignment: u64) -> Result<u64, DriverError> {
        assert!(size > 0 && size.is_multiple_of(GRANULARITY) && alignment.is_multiple_of(GRANULARITY));
        self.call()?;
        if let Some(left) = self.addresses_left.get() {
            let left = left.checked_sub(size).ok_or(DriverError::OUT_OF_MEMORY)?;
            self.addresses_left.set(Some(left));
        }
        let address = (1u64 << 42) + (self.ranges.borrow().len() as u64 * (1 << 41)).next_multiple_of(alignment);
        self.ranges.borrow_mut().insert(address, size);
        Ok(address)
    }

    fn give_addresses_back(&self, address: u64, size: u64) {
        assert_eq!(
            self.ranges.borrow_mut().remove(&address),
            Some(size),
            "addresses that were not reserved"
        );
    }

    fn create(&self, size: u64) -> Result<u64, DriverError> {
        assert!(size > 0 && size.is_multiple_of(GRANULARITY));
        if self.refuses_handles.get() {
            return Err(DriverError::NOT_SUPPORTED);
        }
        self.obtain(size)?;
        self.handles.set(self.handles.get() + 1);
        let handle = (1 << 50) + self.handles.get();
        self.physical.borrow_mut().insert(handle, size);
        Ok(handle)
    }

    fn release(&self, handle: u64, _size: u64) -> Result<(), DriverError> {
        assert!(
            !self.mappings.borrow().values().any(|&(_, mapped, _)| mapped == handle),
            "still mapped"
        );
        self.change()?;
        self.physical.borrow_mut().remove(&handle).expect("a handle of ours");
        Ok(())
    }

    fn map(&self, address: u64, size: u64, handle: u64) -> Result<(), DriverError> {
        let reserved = self.ranges.borrow();
        let (&start, &bytes) = reserved.range(..=address).next_back().expect("reserved address space");
        assert!(
            address + size <= start + bytes && address.is_multiple_of(GRANULARITY),
            "outside of the range"
        );
        assert_eq!(
            self.physical.borrow().get(&handle),
            Some(&size),
            "the whole of a handle of ours"
        );
        self.change()?;
        let mut mappings = self.mappings.borrow_mut();
        let before = mappings.range(..address + size).next_back();
        let is_free = before.is_none_or(|(&start, &(bytes, ..))| start + bytes <= address);
        assert!(is_free, "mapped already");
        mappings.insert(address, (size, handle, false));
        Ok(())
    }

    fn unmap(&self, address: u64, size: u64) -> Result<(), DriverError> {
        self.change()?;
        if self.keeps_mappings.get() {
            return Err(DriverError(700));
        }
        let is_there = |busy: &Busy| busy.place.0 < address + size && address < busy.place.1;
        assert!(
            !self.busy.borrow().iter().any(is_there),
            "unmapped while work may use it"
        );
        let mut mappings = self.mappings.borrow_mut();
        let gone: Vec<u64> = mappings
            .range(address..address + size)
            .map(|(&start, _)| start)
            .collect();
        let mut at = address;
        for start in gone {
            let (bytes, _, accessible) = mappings.remove(&start).expect("just seen");
            assert!(
                !self.capturing.get() || !accessible,
                "unmapping while a capture is open"
            );
            assert_eq!(start, at, "a gap, or half a mapping");
            at += bytes;
        }
        assert_eq!(at, address + size, "half a mapping");
        Ok(())
    }

    fn allow_access(&self, address: u64, size: u64) -> Result<(), DriverError> {
        self.change()?;
        for (_, mapping) in self.mappings.borrow_mut().range_mut(address..address + size) {
            mapping.2 = true;
        }
        Ok(())
    }

    fn mapped(&self, address: u64, size: u64, again: bool) {
        if again {
            return;
        }
        let mut reported = self.reported.borrow_mut();
        let before = reported.range(..address + size).next_back();
        let is_new = before.is_none_or(|(&start, &bytes)| start + bytes <= address);
        assert!(is_new, "reported twice");
        reported.insert(address, size);
    }

    fn unmapped(&self, address: u64, size: u64, again: bool) {
        if again {
            return;
        }
        let mut reported = self.reported.borrow_mut();
        let end = address + size;
        let inside: Vec<(u64, u64)> = reported
            .range(..end)
            .rev()
            .map(|(&start, &bytes)| (start, bytes))
            .collect();
        let mut gone = 0;
        for (start, bytes) in inside.into_iter().take_while(|(start, bytes)| start + bytes > address) {
            reported.remove(&start);
            gone += (start + bytes).min(end) - start.max(address);
            if start < address {
                reported.insert(start, address - start);
            }
            if start + bytes > end {
                reported.insert(end, start + bytes - end);
            }
        }
        assert_eq!(gone, size, "reported as unmapped, but was not mapped");
    }

    fn no_virtual_memory(&self, _why: DriverError) {
        self.fell_back.set(true);
    }
}
