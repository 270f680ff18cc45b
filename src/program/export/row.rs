//! One record as a row of a table.

use journal::format::{Allocation, ContextMeasure, Event, MarkKind, Record};

use super::exported_process::Process;
use crate::analysis::names::class_name;

/// What an event has of the columns of tables; `None` stands for "has no such thing".
#[derive(Default)]
pub struct Row {
    pub event: &'static str,
    pub class: Option<String>,
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
}

impl Row {
    pub fn new(process: &Process, record: &Record) -> Row {
        let mut row = Row::default();
        row.event = row.fill(process, record);
        row
    }

    fn fill_allocation(&mut self, one: Allocation) {
        self.class = Some(class_name(one.class.number()));
        self.stream = Some(one.stream);
        (self.address, self.reserved) = (Some(one.address), one.reserved);
        (self.requested, self.allocated) = (Some(one.requested), Some(one.allocated));
    }

    /// Sets what the event has. Returns its name.
    fn fill(&mut self, process: &Process, record: &Record) -> &'static str {
        let note = |is: bool, text: &str| is.then(|| text.to_owned());
        match record.event {
            Event::Alloc(one) => {
                self.fill_allocation(one);
                "alloc"
            }
            Event::Free {
                allocation,
                context_gone,
            } => {
                self.fill_allocation(allocation);
                self.note = note(context_gone, "context_gone");
                "free"
            }
            Event::AllocFailed {
                class,
                requested,
                result,
                over_limit,
                guard,
            } => {
                self.class = Some(class_name(class.number()));
                (self.requested, self.result) = (Some(requested), Some(result));
                self.note = note(over_limit, "over_limit").or(note(guard.is_some(), "guard"));
                "alloc_failed"
            }
            Event::FreeFailed {
                address,
                segment,
                result,
            } => {
                (self.address, self.reserved, self.result) = (Some(address), segment, Some(result));
                "free_failed"
            }
            Event::SegmentAlloc { address, size, again } => {
                (self.address, self.reserved) = (Some(address), Some(size));
                if again { "stitch" } else { "segment_alloc" }
            }
            Event::SegmentFree {
                address,
                size,
                again,
                context_gone,
            } => {
                (self.address, self.reserved) = (Some(address), Some(size));
                self.note = note(context_gone, "context_gone");
                if again { "stitch_free" } else { "segment_free" }
            }
            Event::StitchPart { address, size, home } => {
                (self.address, self.reserved, self.other) = (Some(address), Some(size), Some(home));
                "stitch_part"
            }
            Event::PoolReserved { class, reserved, used } => {
                self.class = Some(class_name(class.number()));
                (self.reserved, self.allocated) = (Some(reserved), Some(used));
                "pool"
            }
            Event::ContextDestroyed { context } => {
                self.other = Some(context);
                "context_destroyed"
            }
            Event::Map { address, size, handle } => {
                (self.address, self.reserved, self.other) = (Some(address), Some(size), Some(handle));
                "map"
            }
            Event::Unmap { address, size } => {
                (self.address, self.reserved) = (Some(address), Some(size));
                "unmap"
            }
            Event::Process(process) => {
                (self.process_bytes, self.other) = (process.bytes, Some(process.pid.into()));
                self.note = Some(process.name.text());
                "process"
            }
            Event::Limit(state) => {
                (self.requested, self.allocated, self.reserved) =
                    (Some(state.limit), Some(state.used), Some(state.own));
                self.note = note(state.group, "group");
                "limit"
            }
            Event::Refused(refusal) => {
                self.result = refusal.result;
                self.note = Some(refusal.by.name().to_owned());
                self.device_total = refusal.driver.map(|driver| driver.total);
                self.device_free = refusal.driver.map(|driver| driver.free);
                "refused"
            }
            Event::Reclaimed {
                bytes,
                processes,
                for_others,
            } => {
                (self.reserved, self.other) = (Some(bytes), Some(processes.into()));
                self.note = note(for_others, "for_others");
                "reclaimed"
            }
            Event::Measured {
                mem_info,
                process_bytes,
                reserved,
                ..
            } => {
                (self.reserved, self.process_bytes) = (Some(reserved), process_bytes);
                self.device_total = mem_info.map(|info| info.total);
                self.device_free = mem_info.map(|info| info.free);
                "measured"
            }
            Event::Host(memory) => {
                (self.process_bytes, self.reserved) = (Some(memory.resident), Some(memory.pinned));
                "host_memory"
            }
            Event::Surge(share) => {
                (self.requested, self.reserved, self.other) =
                    (Some(share.asked), Some(share.grown), Some(share.over_ns));
                "surge"
            }
            Event::Mark { text, kind } => {
                self.note = Some(process.text(text).to_owned());
                match kind {
                    MarkKind::Instant => "mark",
                    MarkKind::Begin => "range_begin",
                    MarkKind::End => "range_end",
                }
            }
            Event::ContextCreated {
                context,
                bytes,
                measure,
            } => {
                self.other = Some(context);
                self.reserved = (measure != ContextMeasure::NotKnown).then_some(bytes);
                "context_created"
            }
            Event::FrameworkRequest(request) => {
                self.requested = request.requested;
                "framework_request"
            }
            Event::Unknown { .. } => "unknown",
        }
    }
}
