//! One record of the journal: its meaning (`Event`), and its 56 bytes in the file (`RawRecord`).
//!
//! The library builds an `Event` and encodes it to a `RawRecord`; the reader decodes the bytes to a `Record`. All
//! events share the same twelve fields on disk. Only the table knows what a field holds for which event.
//!
//! To add a field to an event, add it to the variant, and its place to the table of `records!`, which both encodes and
//! decodes. Use a place that is 0 for this event so far, and read 0 as "not known". What only few allocations have goes
//! into `Traits`. If no place is left, the record needs a new format `VERSION`.

mod bytes;
mod event;
mod evidence;
mod places;
mod possible;

use base::api::{Api, ApiCode, Class, ClassCode};
use base::cuda::HOST_DEVICE;
pub use base::shortage::MemInfo;
use base::shortage::Refusal;
pub(crate) use bytes::{THREAD, TIME, WORDS};
pub use event::{Allocation, Event, Library, MarkKind, Record, Traits};
pub use evidence::{
    Allocator, Amount, ContextMeasure, Figure, FrameworkRequest, Heap, HostMemory, LimitState, Mps, ProcessBytes,
    Quantity, Reason, ShortName, SurgeShare, Teller, shares,
};
pub(crate) use places::Bits;
use places::{ADDRESS, ALLOCATED, CLASS, DETAIL, FLAGS, Field, Known, Place, SIZE, STACK, UnlessZero, flag, records};
pub use possible::{LARGEST_RANGE, is_possible_device, is_possible_range};

/// A record as it is in the file. What a field holds depends on `kind`; see `records!`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RawRecord {
    pub(crate) time_ns: u64,
    address: u64,
    size: u64,
    allocated: u64,
    detail: u64,
    pub(crate) tid: u32,
    /// The number of the stack; 0 stands for none. In the record of a process it is the process's pid on the host.
    pub(crate) stack: u32,
    api: u16,
    device: i16,
    kind: u8,
    class: u8,
    flags: u8,
    stream: u8,
}

/// In the record of an allocation: the call obtained `detail` bytes from the next layer.
const DIRECT: Place = flag(0);
const CONTEXT_GONE: Place = flag(1);
/// The `Library` that keeps an allocation as a cache.
const CACHE: Place = FLAGS.part(2, 4);
const OVER_LIMIT: Place = flag(3);
const AGAIN: Place = flag(4);
/// In the record of a failure: the ring puts no other record in its place.
const KEPT: u8 = 1 << 5;
/// In the record of a failure: a guard refused the request, whose bytes are in `allocated`; and it was the device's memory.
const GUARDED: Place = flag(6);
const BY_DEVICE: Place = flag(7);

// The kinds of records with their numbers, and the place of each field of their events. A number is never given to
// another kind. `Alloc`, `Free` and `Unknown` have no entry here.
records! {
    ALLOC_FAILED 3 AllocFailed {
        class: CLASS, requested: SIZE, result: DETAIL, over_limit: OVER_LIMIT,
        guard: Known(GUARDED, [ALLOCATED, BY_DEVICE]),
    };
    // Among failed frees, only the record of a segment has a class.
    FREE_FAILED 4 FreeFailed { address: ADDRESS, segment: Known(CLASS, SIZE), result: DETAIL } also allocated_is_size;
    SEGMENT_ALLOC 5 SegmentAlloc { address: ADDRESS, size: SIZE, again: AGAIN } also segment;
    SEGMENT_FREE 6 SegmentFree { address: ADDRESS, size: SIZE, again: AGAIN, context_gone: CONTEXT_GONE } also segment;
    POOL_RESERVED 7 PoolReserved { class: CLASS, reserved: SIZE, used: ALLOCATED };
    CONTEXT_DESTROYED 8 ContextDestroyed { context: ADDRESS };
    MAP 9 Map { address: ADDRESS, size: SIZE, handle: DETAIL } also vmm;
    UNMAP 10 Unmap { address: ADDRESS, size: SIZE } also vmm;
    MEASURED 11 Measured {
        mem_info: UnlessZero(SIZE, [SIZE, ALLOCATED]), told_by: CLASS, process_bytes: UnlessZero(DETAIL, DETAIL),
        reserved: ADDRESS,
    };
    STITCH_PART 12 StitchPart { address: ADDRESS, size: SIZE, home: DETAIL } also stitch_part;
    MARK 13 Mark { text: ADDRESS, kind: DETAIL };
    PROCESS 14 Process ProcessBytes {
        pid: ALLOCATED.part(0, 32), bytes: Known(flag(0), SIZE), told_by: CLASS, name: [ADDRESS, DETAIL],
        namespace: ALLOCATED.part(32, 32), host_pid: STACK, mps: FLAGS.part(1, 2),
    };
    LIMIT 15 Limit LimitState { limit: SIZE, used: ALLOCATED, own: DETAIL, group: flag(0) };
    RECLAIMED 16 Reclaimed { bytes: SIZE, processes: ADDRESS, for_others: DETAIL };
    REFUSED 17 Refused Refusal {
        by: CLASS, result: Known(flag(0), DETAIL), driver: UnlessZero(SIZE, [SIZE, ALLOCATED]),
    };
    HOST 18 Host HostMemory { resident: SIZE, pinned: ALLOCATED, heap: UnlessZero(CLASS, [CLASS, ADDRESS, DETAIL]) };
    SURGE 19 Surge SurgeShare { grown: SIZE, over_ns: DETAIL, asked: ALLOCATED, place: ADDRESS };
    TRAITS 20 Traits Traits {
        driver_pool: Known(flag(0), ADDRESS), framework_pool: Known(flag(1), [SIZE, ALLOCATED]),
        location: Known(flag(2), CLASS), usage: Known(flag(3), DETAIL.part(0, 32)),
        exported: Known(flag(4), DETAIL.part(32, 16)), size_class: Known(flag(5), DETAIL.part(48, 16)),
    };
    FIGURE 21 Figure Figure { quantity: CLASS, amount: [FLAGS, SIZE], told_by: ADDRESS };
    FRAMEWORK_REQUEST 22 FrameworkRequest FrameworkRequest {
        library: CLASS, requested: Known(flag(0), SIZE), asks_again: Known(flag(1), flag(2)),
    };
    CONTEXT_CREATED 23 ContextCreated { context: ADDRESS, bytes: SIZE, measure: CLASS };
    TEARDOWN 24 Teardown {};
    FRAMEWORK_SNAPSHOT 25 FrameworkSnapshot { library: CLASS, number: ADDRESS };
}

#[inline(always)]
fn allocated_is_size(raw: &mut RawRecord) {
    raw.allocated = raw.size;
}

#[inline(always)]
fn segment(raw: &mut RawRecord) {
    stitch_part(raw);
    raw.detail = raw.size;
}

#[inline(always)]
fn stitch_part(raw: &mut RawRecord) {
    raw.class = Class::Linear as u8;
    raw.allocated = raw.size;
}

#[inline(always)]
fn vmm(raw: &mut RawRecord) {
    raw.class = Class::Vmm as u8;
}

const ALLOC: u8 = 1;
const FREE: u8 = 2;

impl Event {
    /// The record of this event. Its time and thread are 0; the writer fills them in.
    ///
    /// The function runs at each allocation. It is inlined: where the compiler knows the variant, only the stores of
    /// the variant's fields remain.
    #[inline(always)]
    pub fn encode(self, api: Api, device: i16) -> RawRecord {
        let mut raw = RawRecord {
            time_ns: 0,
            address: 0,
            size: 0,
            allocated: 0,
            detail: 0,
            tid: 0,
            stack: 0,
            api: api.number(),
            device,
            kind: 0,
            class: 0,
            flags: 0,
            stream: 0,
        };
        match self {
            Event::Alloc(allocation) => {
                raw.kind = ALLOC;
                allocation.put(&mut raw);
            }
            Event::Free {
                allocation,
                context_gone,
            } => {
                raw.kind = FREE;
                allocation.put(&mut raw);
                context_gone.put(&mut raw, CONTEXT_GONE);
            }
            Event::Unknown { kind } => raw.kind = kind,
            other => other.put_fields(&mut raw),
        }
        raw
    }
}

impl Allocation {
    #[inline(always)]
    fn put(self, raw: &mut RawRecord) {
        (raw.address, raw.size, raw.allocated) = (self.address, self.requested, self.allocated);
        (raw.class, raw.stream) = (self.class.number(), self.stream);
        self.reserved.put(raw, Known(DIRECT, DETAIL));
        self.cache.put(raw, CACHE);
    }

    fn read(raw: &RawRecord) -> Self {
        Allocation {
            class: ClassCode::from(raw.class),
            address: raw.address,
            requested: raw.size,
            allocated: raw.allocated,
            reserved: Field::take(raw, Known(DIRECT, DETAIL)),
            cache: Field::take(raw, CACHE),
            stream: raw.stream,
        }
    }
}

impl RawRecord {
    /// The record with the number of a stack.
    pub fn with_stack(self, stack: u32) -> RawRecord {
        RawRecord { stack, ..self }
    }

    /// The device and the bytes of a request for memory.
    #[inline(always)]
    pub fn request(&self) -> (i16, u64) {
        (self.device, self.size)
    }

    /// Whether the record is that of a request for memory, which has a stack if stacks are recorded.
    #[inline(always)]
    pub fn is_request(&self) -> bool {
        matches!(self.kind, ALLOC | ALLOC_FAILED)
    }

    pub(crate) fn is_failure(&self) -> bool {
        matches!(self.kind, ALLOC_FAILED | FREE_FAILED)
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.is_failure() && self.flags & KEPT != 0
    }

    pub(crate) fn keep(&mut self) {
        self.flags |= KEPT;
    }

    /// Decodes the record. `None` if no job and no driver can have made it (`possible`): then another program wrote it. Else
    /// this works for any 56 bytes: an unknown kind becomes `Event::Unknown`, an unknown class or function stays a number.
    #[inline]
    pub fn decode(&self, slot: u64) -> Option<Record> {
        let event = match self.kind {
            ALLOC => Event::Alloc(Allocation::read(self)),
            FREE => Event::Free {
                allocation: Allocation::read(self),
                context_gone: Field::take(self, CONTEXT_GONE),
            },
            kind => Event::take_fields(self).unwrap_or(Event::Unknown { kind }),
        };
        // A call that fails because the job named a device that is not there has this device's number.
        let names_no_device = self.is_failure() && !is_possible_device(self.device);
        let device = if names_no_device { HOST_DEVICE } else { self.device };
        event.is_possible(device).then(|| Record {
            slot,
            time_ns: self.time_ns,
            tid: self.tid,
            api: ApiCode::from(self.api),
            device,
            stack: if self.kind == PROCESS { 0 } else { self.stack },
            event,
        })
    }
}

#[cfg(test)]
mod tests;
