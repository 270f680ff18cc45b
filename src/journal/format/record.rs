//! One record of the journal: its meaning (`Event`), and its 56 bytes in the file (`RawRecord`).
//!
//! The library builds an `Event` and encodes it to a `RawRecord`; the reader decodes the bytes to a `Record`. All
//! events share the same twelve fields on disk. Only the table knows what a field holds for which event.
//!
//! To add a field to an event, add it to the variant, and its place to the table of `records!`, which both encodes and
//! decodes. Use a place that is 0 for this event so far, and read 0 as "not known". If no
//! place is left, the record needs a new format `VERSION`.

mod event;
mod evidence;
mod places;
mod possible;

use super::u64_at;
use base::api::{Api, ApiCode, Class};
use base::cuda::HOST_DEVICE;
pub use base::shortage::MemInfo;
use base::shortage::{Allowance, Refusal};
pub use event::{Allocation, Event, MarkKind, Record};
pub use evidence::{
    Amount, ContextMeasure, FrameworkRequest, HostMemory, Listed, Mps, ProcessBytes, Reason, ShortName, SurgeShare,
    Teller, shares,
};
pub(crate) use places::Bits;
use places::{
    ADDRESS, ALLOCATED, API, CLASS, DETAIL, DEVICE, FLAGS, Field, KIND, Known, Place, SIZE, STACK, STREAM, THREAD,
    TIME, UnlessZero, flag, records,
};
pub use possible::{LARGEST_RANGE, is_possible_device, is_possible_range};

/// A record as it is in the file: words of eight bytes. `places` says which bits of them are what.
///
/// The record is put together in words, and not read back from memory in them, because a wide load would wait for the
/// narrow stores before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct RawRecord(pub(crate) [u64; WORDS]);

pub(crate) const WORDS: usize = 7;

// Bits of the flags.
/// In the record of an allocation: the call obtained `DETAIL` bytes from the next layer.
const DIRECT: Place = flag(0);
const CONTEXT_GONE: Place = flag(1);
const OVER_LIMIT: Place = flag(3);
const AGAIN: Place = flag(4);
/// In the record of a failure: the ring puts no other record in its place.
const KEPT: Place = flag(5);
/// In the record of a failure: a guard refused the request, whose bytes are in `ALLOCATED`; and it was the device's memory.
const GUARDED: Place = flag(6);
const BY_DEVICE: Place = flag(7);

// The kinds of records with their numbers, and the place of each field of their events. A number is never given to
// another kind. `Unknown` has no entry here.
records! {
    ALLOC 1 Alloc(allocation: Whole);
    FREE 2 Free { allocation: Whole, context_gone: CONTEXT_GONE };
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
    LIMIT 15 Limit Allowance { limit: SIZE, used: ALLOCATED, own: DETAIL, group: flag(0) };
    RECLAIMED 16 Reclaimed { bytes: SIZE, processes: ADDRESS, for_others: DETAIL };
    REFUSED 17 Refused Refusal {
        by: CLASS, result: Known(flag(0), DETAIL), driver: UnlessZero(SIZE, [SIZE, ALLOCATED]),
    };
    HOST 18 Host HostMemory { resident: SIZE, pinned: ALLOCATED };
    SURGE 19 Surge SurgeShare { grown: SIZE, over_ns: DETAIL, asked: ALLOCATED, place: ADDRESS };
    FRAMEWORK_REQUEST 22 FrameworkRequest FrameworkRequest {
        requested: Known(flag(0), SIZE), asks_again: Known(flag(1), flag(2)), free: Known(flag(3), ALLOCATED),
    };
    CONTEXT_CREATED 23 ContextCreated { context: ADDRESS, bytes: SIZE, measure: CLASS };
}

#[inline(always)]
fn allocated_is_size(raw: &mut RawRecord) {
    ALLOCATED.set(raw, SIZE.get(raw));
}

#[inline(always)]
fn stitch_part(raw: &mut RawRecord) {
    Class::Linear.number().put(raw, CLASS);
    allocated_is_size(raw);
}

#[inline(always)]
fn segment(raw: &mut RawRecord) {
    stitch_part(raw);
    DETAIL.set(raw, SIZE.get(raw));
}

#[inline(always)]
fn vmm(raw: &mut RawRecord) {
    Class::Vmm.number().put(raw, CLASS);
}

impl Event {
    /// The record of this event. Its time and thread are 0; the writer fills them in.
    ///
    /// The function runs at each allocation. It is inlined: where the compiler knows the variant, only the stores of
    /// the variant's fields remain.
    #[inline(always)]
    pub fn encode(self, api: Api, device: i16) -> RawRecord {
        let mut raw = RawRecord([0; WORDS]);
        api.number().put(&mut raw, API);
        device.put(&mut raw, DEVICE);
        self.put_fields(&mut raw);
        raw
    }
}

/// The places of an allocation.
struct Whole;

impl Field<Whole> for Allocation {
    #[inline(always)]
    fn put(self, raw: &mut RawRecord, Whole: Whole) {
        let Allocation {
            class,
            address,
            requested,
            allocated,
            reserved,
            stream,
        } = self;
        class.put(raw, CLASS);
        address.put(raw, ADDRESS);
        requested.put(raw, SIZE);
        allocated.put(raw, ALLOCATED);
        reserved.put(raw, Known(DIRECT, DETAIL));
        stream.put(raw, STREAM);
    }

    fn take(raw: &RawRecord, Whole: Whole) -> Self {
        Allocation {
            class: raw.get(CLASS),
            address: raw.get(ADDRESS),
            requested: raw.get(SIZE),
            allocated: raw.get(ALLOCATED),
            reserved: raw.get(Known(DIRECT, DETAIL)),
            stream: raw.get(STREAM),
        }
    }
}

impl RawRecord {
    /// The record in the first 56 bytes of `bytes`, which must not be fewer.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> RawRecord {
        // The one check of the length.
        let bytes = &bytes[..size_of::<RawRecord>()];
        RawRecord(std::array::from_fn(|word| u64_at(bytes, 8 * word)))
    }

    /// The bytes of the record, as `from_bytes` reads them.
    pub(crate) fn to_bytes(self) -> [u8; 8 * WORDS] {
        let mut bytes = [0; 8 * WORDS];
        for (place, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    #[inline(always)]
    fn get<P, T: Field<P>>(&self, place: P) -> T {
        T::take(self, place)
    }

    pub(crate) fn time_ns(&self) -> u64 {
        self.get(TIME)
    }

    pub(crate) fn tid(&self) -> u32 {
        self.get(THREAD)
    }

    /// The record with another time and thread.
    #[inline(always)]
    pub(crate) fn at(mut self, time_ns: u64, tid: u32) -> RawRecord {
        TIME.replace(&mut self, time_ns);
        THREAD.replace(&mut self, tid.into());
        self
    }

    pub fn with_stack(mut self, stack: u32) -> RawRecord {
        STACK.replace(&mut self, stack.into());
        self
    }

    /// The device and the bytes of a request for memory.
    #[inline(always)]
    pub fn request(&self) -> (i16, u64) {
        (self.get(DEVICE), self.get(SIZE))
    }

    /// Whether the record is that of a request for memory, which has a stack if stacks are recorded.
    #[inline(always)]
    pub fn is_request(&self) -> bool {
        matches!(self.get(KIND), ALLOC | ALLOC_FAILED)
    }

    pub(crate) fn is_failure(&self) -> bool {
        matches!(self.get(KIND), ALLOC_FAILED | FREE_FAILED)
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.is_failure() && self.get(KEPT)
    }

    pub(crate) fn keep(&mut self) {
        KEPT.set(self, 1);
    }

    /// Decodes the record. `None` if no job and no driver can have made it (`possible`): then another program wrote it. Else
    /// this works for any 56 bytes: an unknown kind becomes `Event::Unknown`, an unknown class or function stays a number.
    #[inline]
    pub fn decode(&self, slot: u64) -> Option<Record> {
        let kind = self.get(KIND);
        let event = Event::take_fields(self, kind).unwrap_or(Event::Unknown { kind });
        let mut device = self.get(DEVICE);
        // A call that fails because the job named a device that is not there has this device's number.
        if self.is_failure() && !is_possible_device(device) {
            device = HOST_DEVICE;
        }
        let is_process = matches!(event, Event::Process(_));
        event.is_possible(device).then(|| Record {
            slot,
            time_ns: self.time_ns(),
            tid: self.tid(),
            api: ApiCode::from(self.get::<_, u16>(API)),
            device,
            stack: if is_process { 0 } else { self.get(STACK) },
            event,
        })
    }
}

#[cfg(test)]
mod tests;
