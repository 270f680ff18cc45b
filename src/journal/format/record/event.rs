//! What a record says: the events of a journal, and the fields that a reader gets with each.

use base::api::{ApiCode, Class, ClassCode};
use base::cuda::DriverError;
use base::shortage::{Allowance, Guard, MemInfo, Refusal};

use super::{ContextMeasure, FrameworkRequest, HostMemory, ProcessBytes, SurgeShare, Teller};

/// One record as a reader gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The number of the slot that holds the record, from 0.
    pub slot: u64,
    /// Nanoseconds (CLOCK_MONOTONIC) since the `mono_start_ns` of the header.
    pub time_ns: u64,
    /// The kernel's id of the thread that made the call.
    pub tid: u32,
    /// The function that the job called.
    pub api: ApiCode,
    /// The device's ordinal as the job sees it, or `HOST_DEVICE`. A failed call that named no possible device has
    /// `HOST_DEVICE`, too.
    pub device: i16,
    /// The number of the call's stack. If the record has no stack, the number says why (see `NoStack::stack`).
    pub stack: u32,
    pub event: Event,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The job obtained memory.
    Alloc(Allocation),
    /// The job gave an allocation back. If `context_gone`, the job destroyed or reset the context of the allocation.
    Free {
        allocation: Allocation,
        context_gone: bool,
    },
    /// The job asked for `requested` bytes and got the CUDA result `result`. If `over_limit`, the library refused the
    /// request because of a limit and did not ask the next layer. If there is a `guard`, that refused it, also unasked.
    AllocFailed {
        class: ClassCode,
        requested: u64,
        result: i32,
        over_limit: bool,
        guard: Option<Guard>,
    },
    /// The free of the memory at `address` failed with the CUDA result `result`. If a policy tried to give a segment
    /// back, `segment` is the segment's size in bytes. If the job made the call, `segment` is `None`.
    FreeFailed {
        address: u64,
        segment: Option<u64>,
        result: i32,
    },
    /// A policy obtained a segment of `size` bytes from the next layer. If `again`, it is a stitch: memory of segments
    /// that is mapped here again, so that it counts nothing.
    SegmentAlloc {
        address: u64,
        size: u64,
        again: bool,
    },
    /// The bytes of a stitch at `address` are those at `home`, which lie in a segment.
    StitchPart {
        address: u64,
        size: u64,
        home: u64,
    },
    /// A policy gave `size` bytes back to the next layer: a whole segment, or any part of the memory that the policy
    /// had mapped. If `again`, it unmapped a stitch. If `context_gone`, the memory was freed because its context was
    /// destroyed.
    SegmentFree {
        address: u64,
        size: u64,
        again: bool,
        context_gone: bool,
    },
    /// The driver's own pools of this class (`async` or `graph`) now hold `reserved` bytes of the device. For `graph`,
    /// launched graphs use `used` of these bytes.
    PoolReserved {
        class: ClassCode,
        reserved: u64,
        used: u64,
    },
    /// A context of this device was used first. The driver holds `bytes` for it, if `measure` says so.
    ContextCreated {
        context: u64,
        bytes: u64,
        measure: ContextMeasure,
    },
    /// A context of this device was destroyed. For each allocation of the context a `Free` with `context_gone` follows.
    ContextDestroyed {
        context: u64,
    },
    /// The job mapped the physical memory `handle` at an address.
    Map {
        address: u64,
        size: u64,
        handle: u64,
    },
    Unmap {
        address: u64,
        size: u64,
    },
    Measured {
        /// The next layer's answer to `cuMemGetInfo`; `None` if it could not be asked.
        mem_info: Option<MemInfo>,
        told_by: Teller,
        /// Bytes that NVML reports for this process, more than 0; `None` if NVML does not report them.
        process_bytes: Option<u64>,
        /// Reserved bytes of the device in the ledger.
        reserved: u64,
    },
    /// The job named a moment, or the begin or the end of a range of time. `text` is the number of the mark's text in the
    /// file of stacks; 0 if the text was not kept.
    Mark {
        text: u64,
        kind: MarkKind,
    },
    /// What a process holds of the device. Such records stand before the record of a failure for lack of memory, or
    /// shortly after it if NVML took long.
    Process(ProcessBytes),
    /// The limit of the device, before the record of a failure.
    Limit(Allowance),
    /// A request found no memory, so `processes` other processes of the account were asked, and gave `bytes` back. If
    /// `for_others`, this process was asked, and gave them back.
    Reclaimed {
        bytes: u64,
        processes: u32,
        for_others: bool,
    },
    /// Who refused a request for lack of memory, before the record of the failure. Without a layer, a
    /// refusal by the library itself has no such record.
    Refused(Refusal),
    /// What the process holds of the host's memory. The device is `HOST_DEVICE`.
    Host(HostMemory),
    /// Memory of the device, or of the host, grew faster than `VRAMSHIM_SURGE`. The record's stack is one of those that
    /// asked for memory meanwhile. Such records follow the surge's `Mark`, largest first.
    Surge(SurgeShare),
    /// What a framework wanted, before the record of the thread's failure.
    FrameworkRequest(FrameworkRequest),
    /// A kind of record that this version does not know. A newer library wrote it, or the file is damaged.
    Unknown {
        kind: u8,
    },
}

impl Allocation {
    /// Linear memory that a policy or a framework cut from a segment, with nothing else known of it.
    pub fn linear(address: u64, requested: u64, allocated: u64, stream: u8) -> Allocation {
        Allocation {
            class: Class::Linear.into(),
            address,
            requested,
            allocated,
            reserved: None,
            stream,
        }
    }
}

/// Events of a context that stays.
impl Event {
    pub fn free(allocation: Allocation) -> Event {
        let context_gone = false;
        Event::Free {
            allocation,
            context_gone,
        }
    }

    pub fn segment(address: u64, size: u64) -> Event {
        let again = false;
        Event::SegmentAlloc { address, size, again }
    }

    pub fn segment_gone(address: u64, size: u64) -> Event {
        let (again, context_gone) = (false, false);
        Event::SegmentFree {
            address,
            size,
            again,
            context_gone,
        }
    }

    /// A request for linear memory that failed for lack of memory.
    pub fn out_of_memory(requested: u64) -> Event {
        Event::AllocFailed {
            class: Class::Linear.into(),
            requested,
            result: DriverError::OUT_OF_MEMORY.0,
            over_limit: false,
            guard: None,
        }
    }
}

numbered! {
    /// What a mark stands for.
    pub enum MarkKind: u64 {
        Instant = 0,
        /// A range begins. It ends with the next `End` of the same text, or with the process.
        Begin = 1,
        End = 2,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub class: ClassCode,
    /// Device or host address. For classes without addresses (vmm, array, mipmap, external memory), a handle.
    pub address: u64,
    /// Bytes that the job asked for.
    pub requested: u64,
    /// Bytes after rounding.
    pub allocated: u64,
    /// Bytes that the call obtained from the next layer, pitch and padding included. `None` if the allocation lies in a
    /// segment or in a pool of the driver.
    pub reserved: Option<u64>,
    /// The stream that the call named. 0: none. 1: the default stream. 2 to 254:
    /// other streams, in the order of their first calls. 255: any later stream.
    pub stream: u8,
}
