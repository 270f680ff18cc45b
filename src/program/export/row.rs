//! One record as a row of a table.

use base::api::ClassCode;
use base::cuda::HOST_DEVICE;
use journal::format::{Allocation, Event, MarkKind, NoStack, Record};

use super::source::Process;
use crate::analysis::names::{api_name, class_name};

/// The version of the columns and of what they mean.
pub const SCHEMA_VERSION: &str = "1";

/// A value of a column; `None` everywhere stands for "has no such thing".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub process: u32,
    /// Nanoseconds since the journal began, and since 1970.
    pub time_ns: u64,
    pub unix_ns: u64,
    pub thread: u32,
    pub event: &'static str,
    pub api: String,
    pub class: Option<String>,
    pub device: Option<i16>,
    pub address: Option<u64>,
    pub requested: Option<u64>,
    pub allocated: Option<u64>,
    /// Bytes obtained from the next layer (alloc, segments), or that a pool of the driver has now (pool).
    pub reserved: Option<u64>,
    pub stream: Option<u8>,
    pub result: Option<i32>,
    /// `over_limit`, `guard`, `context_gone`, or the text of a mark.
    pub note: Option<String>,
    /// What the next layer and NVML reported: total and free bytes of the device, bytes of the process.
    pub device_total: Option<u64>,
    pub device_free: Option<u64>,
    pub process_bytes: Option<u64>,
    /// The handle of a mapping, the home of a part of a stitch, or a context.
    pub other: Option<u64>,
    /// The number of the stack; `None` if there is none.
    pub stack: Option<u32>,
}

impl Row {
    pub fn of(process: &Process, record: &Record) -> Row {
        let blank = Row {
            process: process.header().pid,
            time_ns: record.time_ns,
            unix_ns: process.unix_ns(record.time_ns),
            thread: record.tid,
            event: "unknown",
            api: api_name(record.api.number()),
            class: None,
            device: (record.device != HOST_DEVICE).then_some(record.device),
            address: None,
            requested: None,
            allocated: None,
            reserved: None,
            stream: None,
            result: None,
            note: None,
            device_total: None,
            device_free: None,
            process_bytes: None,
            other: None,
            stack: NoStack::stack(record.stack).ok(),
        };
        let class = |class: ClassCode| Some(class_name(class.number()));
        let note = |is: bool, text: &str| is.then(|| text.to_owned());
        let of = |blank: Row, one: Allocation| Row {
            class: class(one.class),
            address: Some(one.address),
            requested: Some(one.requested),
            allocated: Some(one.allocated),
            reserved: one.reserved,
            stream: Some(one.stream),
            ..blank
        };
        match record.event {
            Event::Alloc(one) => Row {
                event: "alloc",
                ..of(blank, one)
            },
            Event::Free {
                allocation,
                context_gone,
            } => Row {
                event: "free",
                note: note(context_gone, "context_gone"),
                ..of(blank, allocation)
            },
            Event::AllocFailed {
                class: of,
                requested,
                result,
                over_limit,
                guard,
            } => Row {
                event: "alloc_failed",
                class: class(of),
                requested: Some(requested),
                result: Some(result),
                note: note(over_limit, "over_limit").or(note(guard.is_some(), "guard")),
                ..blank
            },
            Event::FreeFailed {
                address,
                segment,
                result,
            } => Row {
                event: "free_failed",
                address: Some(address),
                reserved: segment,
                result: Some(result),
                ..blank
            },
            Event::SegmentAlloc { address, size, again } => Row {
                event: if again { "stitch" } else { "segment_alloc" },
                address: Some(address),
                reserved: Some(size),
                ..blank
            },
            Event::SegmentFree {
                address,
                size,
                again,
                context_gone,
            } => Row {
                event: if again { "stitch_free" } else { "segment_free" },
                address: Some(address),
                reserved: Some(size),
                note: note(context_gone, "context_gone"),
                ..blank
            },
            Event::StitchPart { address, size, home } => Row {
                event: "stitch_part",
                address: Some(address),
                reserved: Some(size),
                other: Some(home),
                ..blank
            },
            Event::PoolReserved {
                class: of,
                reserved,
                used,
            } => Row {
                event: "pool",
                class: class(of),
                reserved: Some(reserved),
                allocated: Some(used),
                ..blank
            },
            Event::ContextDestroyed { context } => Row {
                event: "context_destroyed",
                other: Some(context),
                ..blank
            },
            Event::Map { address, size, handle } => Row {
                event: "map",
                address: Some(address),
                reserved: Some(size),
                other: Some(handle),
                ..blank
            },
            Event::Unmap { address, size } => Row {
                event: "unmap",
                address: Some(address),
                reserved: Some(size),
                ..blank
            },
            Event::Process(process) => Row {
                event: "process",
                process_bytes: process.bytes,
                other: Some(process.pid.into()),
                note: Some(process.name.text()),
                ..blank
            },
            Event::Limit(state) => Row {
                event: "limit",
                requested: Some(state.limit),
                allocated: Some(state.used),
                reserved: Some(state.own),
                note: note(state.group, "group"),
                ..blank
            },
            Event::Refused(refusal) => Row {
                event: "refused",
                result: refusal.result,
                note: Some(refusal.by.name().to_owned()),
                device_total: refusal.driver.map(|driver| driver.total),
                device_free: refusal.driver.map(|driver| driver.free),
                ..blank
            },
            Event::Reclaimed {
                bytes,
                processes,
                for_others,
            } => Row {
                event: "reclaimed",
                reserved: Some(bytes),
                other: Some(processes.into()),
                note: note(for_others, "for_others"),
                ..blank
            },
            Event::Measured {
                mem_info,
                process_bytes,
                reserved,
            } => Row {
                event: "measured",
                reserved: Some(reserved),
                device_total: mem_info.map(|info| info.total),
                device_free: mem_info.map(|info| info.free),
                process_bytes,
                ..blank
            },
            Event::Host(memory) => Row {
                event: "host_memory",
                process_bytes: Some(memory.resident),
                reserved: Some(memory.pinned),
                allocated: memory.heap.map(|heap| heap.allocated),
                other: memory.heap.map(|heap| heap.mapped),
                note: memory.heap.map(|heap| heap.allocator.name().to_owned()),
                ..blank
            },
            Event::Surge(share) => Row {
                event: "surge",
                requested: Some(share.asked),
                reserved: Some(share.grown),
                other: Some(share.over_ns),
                ..blank
            },
            Event::Mark { text, kind } => Row {
                event: match kind {
                    MarkKind::Instant => "mark",
                    MarkKind::Begin => "range_begin",
                    MarkKind::End => "range_end",
                },
                note: Some(process.text(text).to_owned()),
                ..blank
            },
            Event::Unknown { .. } => blank,
        }
    }
}
