//! One record of the journal: its meaning (`Event`), and its 56 bytes in the file (`RawRecord`).
//!
//! The library builds an `Event` and encodes it to a `RawRecord`; the reader decodes the bytes to a `Record`. All
//! events share the same twelve fields on disk. Only `encode` and `decode` know what a field holds for which event.
//!
//! To add a field to an event, add it to the variant, store it in `fields`, and load it in `decode`. Use a field of
//! `RawRecord` or a bit of `flags` that `fields` leaves at 0 for this event, and read 0 as "not known". What only few
//! allocations have goes into `Traits`. If no field is left, the record needs a new format `VERSION`.

mod bytes;
mod event;
mod evidence;
mod possible;

use base::api::{Api, ApiCode, Class, ClassCode};
use base::cuda::HOST_DEVICE;
use base::shortage::Guard;
pub use base::shortage::MemInfo;
pub(crate) use bytes::{THREAD, TIME, WORDS};
pub use event::{Allocation, Event, Library, MarkKind, Record, Traits};
pub use evidence::{
    Allocator, Amount, ContextMeasure, Figure, FrameworkRequest, Heap, HostMemory, LimitState, Mps, ProcessBytes,
    Quantity, Reason, ShortName, SurgeShare, Teller, shares,
};
use evidence::{read_refusal, refusal_fields};
pub use possible::{LARGEST_RANGE, is_possible_device, is_possible_range};

/// A record as it is in the file. What a field holds depends on `kind`; see `Event::encode`.
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

// Values of `RawRecord::kind`. A number is never given to another kind.
const ALLOC: u8 = 1;
const FREE: u8 = 2;
const ALLOC_FAILED: u8 = 3;
const FREE_FAILED: u8 = 4;
const SEGMENT_ALLOC: u8 = 5;
const SEGMENT_FREE: u8 = 6;
const POOL_RESERVED: u8 = 7;
const CONTEXT_DESTROYED: u8 = 8;
const MAP: u8 = 9;
const UNMAP: u8 = 10;
const MEASURED: u8 = 11;
const STITCH_PART: u8 = 12;
const MARK: u8 = 13;
const PROCESS: u8 = 14;
const LIMIT: u8 = 15;
const RECLAIMED: u8 = 16;
const REFUSED: u8 = 17;
const HOST: u8 = 18;
const SURGE: u8 = 19;
const TRAITS: u8 = 20;
const FIGURE: u8 = 21;
const FRAMEWORK_REQUEST: u8 = 22;
const CONTEXT_CREATED: u8 = 23;
const TEARDOWN: u8 = 24;
const FRAMEWORK_SNAPSHOT: u8 = 25;

// Bits of `RawRecord::flags`.
/// In the record of an allocation: the call obtained `detail` bytes from the next layer.
const DIRECT: u8 = 1;
const CONTEXT_GONE: u8 = 2;
/// The place of the `Library` that keeps an allocation as a cache, which has four bits.
const CACHE_SHIFT: u32 = 2;
const CACHE_MASK: u8 = 15;
const OVER_LIMIT: u8 = 8;
const AGAIN: u8 = 16;
/// In the record of a failure: the ring puts no other record in its place.
const KEPT: u8 = 32;
/// In the record of a failure: a guard refused the request, whose bytes are in `allocated`; and it was the device's memory.
const GUARDED: u8 = 64;
const BY_DEVICE: u8 = 128;

/// `bit` if `condition` holds, else no bit.
#[inline(always)]
fn flag(condition: bool, bit: u8) -> u8 {
    if condition { bit } else { 0 }
}

/// A record of this kind. Only the fields of its event are set.
#[inline(always)]
fn raw(kind: u8, class: u8, [address, size, allocated, detail]: [u64; 4], flags: u8) -> RawRecord {
    RawRecord {
        time_ns: 0,
        address,
        size,
        allocated,
        detail,
        tid: 0,
        stack: 0,
        api: 0,
        device: 0,
        kind,
        class,
        flags,
        stream: 0,
    }
}

const LINEAR: u8 = Class::Linear as u8;
const VMM: u8 = Class::Vmm as u8;

impl Event {
    /// The record of this event. Its time and thread are 0; the writer fills them in.
    ///
    /// The function runs at each allocation. It is inlined: where the compiler knows the variant, only the stores of
    /// the variant's fields remain.
    #[inline(always)]
    pub fn encode(self, api: Api, device: i16) -> RawRecord {
        RawRecord {
            api: api.number(),
            device,
            ..self.fields()
        }
    }

    #[inline(always)]
    fn fields(self) -> RawRecord {
        match self {
            Event::Alloc(allocation) => allocation.fields(ALLOC, 0),
            Event::Free {
                allocation,
                context_gone,
            } => allocation.fields(FREE, flag(context_gone, CONTEXT_GONE)),
            Event::AllocFailed {
                class,
                requested,
                result,
                over_limit,
                guard,
            } => {
                let flags = flag(over_limit, OVER_LIMIT)
                    | flag(guard.is_some(), GUARDED)
                    | flag(guard.is_some_and(|guard| guard.of_device), BY_DEVICE);
                let most = guard.map_or(0, |guard| guard.bytes);
                raw(
                    ALLOC_FAILED,
                    class.number(),
                    [0, requested, most, result_bits(result)],
                    flags,
                )
            }
            Event::FreeFailed {
                address,
                segment,
                result,
            } => {
                // Among failed frees, only the record of a segment has a class.
                let class = if segment.is_some() { LINEAR } else { 0 };
                let size = segment.unwrap_or(0);
                raw(FREE_FAILED, class, [address, size, size, result_bits(result)], 0)
            }
            Event::SegmentAlloc { address, size, again } => {
                raw(SEGMENT_ALLOC, LINEAR, [address, size, size, size], flag(again, AGAIN))
            }
            Event::StitchPart { address, size, home } => raw(STITCH_PART, LINEAR, [address, size, size, home], 0),
            Event::SegmentFree {
                address,
                size,
                again,
                context_gone,
            } => {
                let flags = flag(again, AGAIN) | flag(context_gone, CONTEXT_GONE);
                raw(SEGMENT_FREE, LINEAR, [address, size, size, size], flags)
            }
            Event::PoolReserved { class, reserved, used } => {
                raw(POOL_RESERVED, class.number(), [0, reserved, used, 0], 0)
            }
            Event::ContextCreated {
                context,
                bytes,
                measure,
            } => raw(CONTEXT_CREATED, measure as u8, [context, bytes, 0, 0], 0),
            Event::ContextDestroyed { context } => raw(CONTEXT_DESTROYED, 0, [context, 0, 0, 0], 0),
            Event::Map { address, size, handle } => raw(MAP, VMM, [address, size, 0, handle], 0),
            Event::Unmap { address, size } => raw(UNMAP, VMM, [address, size, 0, 0], 0),
            Event::Measured {
                mem_info,
                told_by,
                process_bytes,
                reserved,
            } => {
                let (total, free) = mem_info.map_or((0, 0), |info| (info.total, info.free));
                raw(
                    MEASURED,
                    told_by as u8,
                    [reserved, total, free, process_bytes.unwrap_or(0)],
                    0,
                )
            }
            Event::Mark { text, kind } => raw(MARK, 0, [text, 0, 0, kind as u64], 0),
            Event::Process(process) => process.fields(),
            Event::Limit(state) => state.fields(),
            Event::Reclaimed {
                bytes,
                processes,
                for_others,
            } => raw(RECLAIMED, 0, [processes.into(), bytes, 0, for_others.into()], 0),
            Event::Refused(refusal) => refusal_fields(refusal),
            Event::Host(memory) => memory.fields(),
            Event::Surge(share) => share.fields(),
            Event::Traits(traits) => traits.fields(),
            Event::Figure(figure) => figure.fields(),
            Event::FrameworkRequest(request) => request.fields(),
            Event::Teardown => raw(TEARDOWN, 0, [0; 4], 0),
            Event::FrameworkSnapshot { library, number } => {
                raw(FRAMEWORK_SNAPSHOT, library as u8, [number, 0, 0, 0], 0)
            }
            Event::Unknown { kind } => raw(kind, 0, [0; 4], 0),
        }
    }
}

impl Allocation {
    #[inline(always)]
    fn fields(self, kind: u8, flags: u8) -> RawRecord {
        let flags = flags | flag(self.reserved.is_some(), DIRECT) | (self.cache as u8) << CACHE_SHIFT;
        let numbers = [self.address, self.requested, self.allocated, self.reserved.unwrap_or(0)];
        RawRecord {
            stream: self.stream,
            ..raw(kind, self.class.number(), numbers, flags)
        }
    }

    fn read(raw: &RawRecord) -> Self {
        Allocation {
            class: ClassCode::from(raw.class),
            address: raw.address,
            requested: raw.size,
            allocated: raw.allocated,
            reserved: (raw.flags & DIRECT != 0).then_some(raw.detail),
            cache: Library::from_number(raw.flags >> CACHE_SHIFT & CACHE_MASK),
            stream: raw.stream,
        }
    }
}

/// A result as `RawRecord::detail` holds it.
#[inline(always)]
fn result_bits(result: i32) -> u64 {
    u64::from(result as u32)
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

    /// Decodes the record. `None` if no job and no driver can have made it (`possible`): then somebody else wrote it. Else
    /// this works for any 56 bytes: an unknown kind becomes `Event::Unknown`, an unknown class or function stays a number.
    #[inline]
    pub fn decode(&self, slot: u64) -> Option<Record> {
        let &RawRecord {
            address,
            size,
            allocated,
            detail,
            ..
        } = self;
        let class = ClassCode::from(self.class);
        let has = |bit: u8| self.flags & bit != 0;
        let event = match self.kind {
            ALLOC => Event::Alloc(Allocation::read(self)),
            FREE => Event::Free {
                allocation: Allocation::read(self),
                context_gone: has(CONTEXT_GONE),
            },
            ALLOC_FAILED => Event::AllocFailed {
                class,
                requested: size,
                result: detail as i32,
                over_limit: has(OVER_LIMIT),
                guard: has(GUARDED).then_some(Guard {
                    bytes: allocated,
                    of_device: has(BY_DEVICE),
                }),
            },
            FREE_FAILED => Event::FreeFailed {
                address,
                segment: (self.class != 0).then_some(size),
                result: detail as i32,
            },
            SEGMENT_ALLOC => {
                let again = has(AGAIN);
                Event::SegmentAlloc { address, size, again }
            }
            STITCH_PART => {
                let home = detail;
                Event::StitchPart { address, size, home }
            }
            SEGMENT_FREE => Event::SegmentFree {
                address,
                size,
                again: has(AGAIN),
                context_gone: has(CONTEXT_GONE),
            },
            POOL_RESERVED => {
                let (reserved, used) = (size, allocated);
                Event::PoolReserved { class, reserved, used }
            }
            CONTEXT_CREATED => Event::ContextCreated {
                context: address,
                bytes: size,
                measure: ContextMeasure::from_number(self.class),
            },
            CONTEXT_DESTROYED => Event::ContextDestroyed { context: address },
            MAP => {
                let handle = detail;
                Event::Map { address, size, handle }
            }
            UNMAP => Event::Unmap { address, size },
            MEASURED => Event::Measured {
                mem_info: mem_info(size, allocated),
                told_by: Teller::from_number(self.class),
                process_bytes: (detail > 0).then_some(detail),
                reserved: address,
            },
            MARK => Event::Mark {
                text: address,
                kind: MarkKind::from_number(detail),
            },
            PROCESS => Event::Process(ProcessBytes::read(self)),
            LIMIT => Event::Limit(LimitState::read(self)),
            RECLAIMED => Event::Reclaimed {
                bytes: size,
                processes: address as u32,
                for_others: detail == 1,
            },
            REFUSED => Event::Refused(read_refusal(self)),
            HOST => Event::Host(HostMemory::read(self)),
            SURGE => Event::Surge(SurgeShare::read(self)),
            TRAITS => Event::Traits(Traits::read(self)),
            FIGURE => Event::Figure(Figure::read(self)),
            FRAMEWORK_REQUEST => Event::FrameworkRequest(FrameworkRequest::read(self)),
            TEARDOWN => Event::Teardown,
            FRAMEWORK_SNAPSHOT => Event::FrameworkSnapshot {
                library: Library::from_number(self.class),
                number: address,
            },
            kind => Event::Unknown { kind },
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

/// An answer to `cuMemGetInfo`; a total of 0 stands for none.
fn mem_info(total: u64, free: u64) -> Option<MemInfo> {
    (total > 0).then_some(MemInfo { total, free })
}

#[cfg(test)]
mod tests;
