//! One record of the journal: its meaning (`Event`), and its 56 bytes in the file (`RawRecord`).
//!
//! The library builds an `Event` and encodes it to a `RawRecord`; the reader decodes the bytes to a `Record`. All
//! events share the same twelve fields on disk. Only `encode` and `decode` know what a field holds for which event.
//!
//! To add a field to an event, add it to the variant, store it in `encode`, and load it in `decode`. Use a field of
//! `RawRecord` or a bit of `flags` that `encode` leaves at 0 for this event. Older journals have 0 there, so `decode`
//! should read 0 as "not known" (`None`). Records of allocations have only some bits of `flags` left. If no field is
//! left, the record needs a new format `VERSION`.

mod bytes;
mod event;
mod evidence;
mod possible;

use base::api::{Api, ApiCode, Class, ClassCode};
use base::cuda::HOST_DEVICE;
use base::shortage::Guard;
pub use base::shortage::MemInfo;
pub(crate) use bytes::{THREAD, TIME, WORDS};
pub use event::{Allocation, Event, MarkKind, Record};
pub use evidence::{Allocator, Heap, HostMemory, LimitState, ProcessBytes, ShortName, SurgeShare, Teller, shares};
use evidence::{decode_refusal, encode_refusal};
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
    /// The number of the stack; 0 stands for none. Formats 1 and 2 have a result here.
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

// Bits of `RawRecord::flags`.
/// In the record of an allocation: the call obtained `detail` bytes from the next layer.
const DIRECT: u8 = 1;
const CONTEXT_GONE: u8 = 2;
const OVER_LIMIT: u8 = 8;
// 4 was used for memory that a policy moved.
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

impl Event {
    /// The record of this event. Its time and thread are 0; the writer fills them in.
    ///
    /// The function runs at each allocation. It is inlined: where the compiler knows the variant, only the stores of
    /// the variant's fields remain.
    #[inline(always)]
    pub fn encode(self, api: Api, device: i16) -> RawRecord {
        let blank = RawRecord {
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
            Event::Alloc(allocation) => RawRecord {
                kind: ALLOC,
                ..allocation.encode(blank)
            },
            Event::Free {
                allocation,
                context_gone,
            } => {
                let record = allocation.encode(blank);
                RawRecord {
                    kind: FREE,
                    flags: record.flags | flag(context_gone, CONTEXT_GONE),
                    ..record
                }
            }
            Event::AllocFailed {
                class,
                requested,
                result,
                over_limit,
                guard,
            } => RawRecord {
                kind: ALLOC_FAILED,
                class: class.number(),
                size: requested,
                allocated: guard.map_or(0, |guard| guard.bytes),
                detail: result_bits(result),
                flags: flag(over_limit, OVER_LIMIT)
                    | flag(guard.is_some(), GUARDED)
                    | flag(guard.is_some_and(|guard| guard.of_device), BY_DEVICE),
                ..blank
            },
            Event::FreeFailed {
                address,
                segment,
                result,
            } => {
                let record = match segment {
                    Some(size) => segment_record(blank, address, size),
                    None => RawRecord { address, ..blank },
                };
                RawRecord {
                    kind: FREE_FAILED,
                    detail: result_bits(result),
                    ..record
                }
            }
            Event::SegmentAlloc { address, size, again } => RawRecord {
                kind: SEGMENT_ALLOC,
                flags: flag(again, AGAIN),
                ..segment_record(blank, address, size)
            },
            Event::StitchPart { address, size, home } => RawRecord {
                kind: STITCH_PART,
                detail: home,
                ..segment_record(blank, address, size)
            },
            Event::SegmentFree {
                address,
                size,
                again,
                context_gone,
            } => RawRecord {
                kind: SEGMENT_FREE,
                flags: flag(again, AGAIN) | flag(context_gone, CONTEXT_GONE),
                ..segment_record(blank, address, size)
            },
            Event::PoolReserved { class, reserved, used } => RawRecord {
                kind: POOL_RESERVED,
                class: class.number(),
                size: reserved,
                allocated: used,
                ..blank
            },
            Event::ContextDestroyed { context } => RawRecord {
                kind: CONTEXT_DESTROYED,
                address: context,
                ..blank
            },
            Event::Map { address, size, handle } => RawRecord {
                kind: MAP,
                class: Class::Vmm.number(),
                address,
                size,
                detail: handle,
                ..blank
            },
            Event::Unmap { address, size } => RawRecord {
                kind: UNMAP,
                class: Class::Vmm.number(),
                address,
                size,
                ..blank
            },
            Event::Measured {
                mem_info,
                process_bytes,
                reserved,
            } => RawRecord {
                kind: MEASURED,
                address: reserved,
                size: mem_info.map_or(0, |info| info.total),
                allocated: mem_info.map_or(0, |info| info.free),
                detail: process_bytes.unwrap_or(0),
                ..blank
            },
            Event::Mark { text, kind } => RawRecord {
                kind: MARK,
                address: text,
                detail: kind as u64,
                ..blank
            },
            Event::Process(process) => RawRecord {
                kind: PROCESS,
                ..process.encode(blank)
            },
            Event::Limit(state) => RawRecord {
                kind: LIMIT,
                ..state.encode(blank)
            },
            Event::Reclaimed {
                bytes,
                processes,
                for_others,
            } => RawRecord {
                kind: RECLAIMED,
                address: u64::from(processes),
                size: bytes,
                detail: u64::from(for_others),
                ..blank
            },
            Event::Refused(refusal) => RawRecord {
                kind: REFUSED,
                ..encode_refusal(refusal, blank)
            },
            Event::Host(memory) => RawRecord {
                kind: HOST,
                ..memory.encode(blank)
            },
            Event::Surge(share) => RawRecord {
                kind: SURGE,
                ..share.encode(blank)
            },
            Event::Unknown { kind } => RawRecord { kind, ..blank },
        }
    }
}

impl Allocation {
    #[inline(always)]
    fn encode(self, blank: RawRecord) -> RawRecord {
        RawRecord {
            class: self.class.number(),
            address: self.address,
            size: self.requested,
            allocated: self.allocated,
            detail: self.reserved.unwrap_or(0),
            flags: flag(self.reserved.is_some(), DIRECT),
            stream: self.stream,
            ..blank
        }
    }

    fn decode(raw: &RawRecord) -> Self {
        Allocation {
            class: ClassCode::from(raw.class),
            address: raw.address,
            requested: raw.size,
            allocated: raw.allocated,
            reserved: (raw.flags & DIRECT != 0).then_some(raw.detail),
            stream: raw.stream,
        }
    }
}

/// A result as `RawRecord::detail` holds it.
#[inline(always)]
fn result_bits(result: i32) -> u64 {
    u64::from(result as u32)
}

/// `blank` with the fields of a segment: the class is linear, and all three sizes are the segment's size.
#[inline(always)]
fn segment_record(blank: RawRecord, address: u64, size: u64) -> RawRecord {
    RawRecord {
        class: Class::Linear.number(),
        address,
        size,
        allocated: size,
        detail: size,
        ..blank
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

    /// Decodes the record. `None` if no job and no driver can have made it (`possible`): then somebody else wrote it. Else
    /// this works for any 56 bytes: an unknown kind becomes `Event::Unknown`, an unknown class or function stays a number.
    #[inline]
    pub fn decode(&self, slot: u64) -> Option<Record> {
        let class = ClassCode::from(self.class);
        let has = |bit: u8| self.flags & bit != 0;
        let event = match self.kind {
            ALLOC => Event::Alloc(Allocation::decode(self)),
            FREE => Event::Free {
                allocation: Allocation::decode(self),
                context_gone: has(CONTEXT_GONE),
            },
            ALLOC_FAILED => Event::AllocFailed {
                class,
                requested: self.size,
                result: self.detail as i32,
                over_limit: has(OVER_LIMIT),
                guard: has(GUARDED).then_some(Guard {
                    bytes: self.allocated,
                    of_device: has(BY_DEVICE),
                }),
            },
            FREE_FAILED => Event::FreeFailed {
                address: self.address,
                // Among failed frees, only the record of a segment has a class.
                segment: (self.class != 0).then_some(self.size),
                result: self.detail as i32,
            },
            SEGMENT_ALLOC => Event::SegmentAlloc {
                address: self.address,
                size: self.size,
                again: has(AGAIN),
            },
            STITCH_PART => Event::StitchPart {
                address: self.address,
                size: self.size,
                home: self.detail,
            },
            SEGMENT_FREE => Event::SegmentFree {
                address: self.address,
                size: self.size,
                again: has(AGAIN),
                context_gone: has(CONTEXT_GONE),
            },
            POOL_RESERVED => Event::PoolReserved {
                class,
                reserved: self.size,
                used: self.allocated,
            },
            CONTEXT_DESTROYED => Event::ContextDestroyed { context: self.address },
            MAP => Event::Map {
                address: self.address,
                size: self.size,
                handle: self.detail,
            },
            UNMAP => Event::Unmap {
                address: self.address,
                size: self.size,
            },
            MEASURED => Event::Measured {
                mem_info: (self.size > 0).then_some(MemInfo {
                    total: self.size,
                    free: self.allocated,
                }),
                process_bytes: (self.detail > 0).then_some(self.detail),
                reserved: self.address,
            },
            MARK => Event::Mark {
                text: self.address,
                kind: match self.detail {
                    1 => MarkKind::Begin,
                    2 => MarkKind::End,
                    _ => MarkKind::Instant,
                },
            },
            PROCESS => Event::Process(ProcessBytes::decode(self)),
            LIMIT => Event::Limit(LimitState::decode(self)),
            RECLAIMED => Event::Reclaimed {
                bytes: self.size,
                processes: self.address as u32,
                for_others: self.detail == 1,
            },
            REFUSED => Event::Refused(decode_refusal(self)),
            HOST => Event::Host(HostMemory::decode(self)),
            SURGE => Event::Surge(SurgeShare::decode(self)),
            kind => Event::Unknown { kind },
        };
        // A call that fails because the job named a device that is not there has this device's number.
        let device = match self.is_failure() && !is_possible_device(self.device) {
            true => HOST_DEVICE,
            false => self.device,
        };
        event.is_possible(device).then(|| Record {
            slot,
            time_ns: self.time_ns,
            tid: self.tid,
            api: ApiCode::from(self.api),
            device,
            stack: self.stack,
            event,
        })
    }
}

#[cfg(test)]
mod tests;
