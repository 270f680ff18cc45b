//! The records that the engine writes into the journal: what each holds, and the recorder that writes them.

use std::path::Path;

use tracing::warn;

use super::allocation::{Allocation, Key};
use base::api::{Api, Class};
use base::cuda::{DriverError, HOST_DEVICE};
use journal::format::{FLAG_DIRECT, Kind, MAX_ROUTES, Record, RouteEntry};
use journal::writer::{Claim, Journal, Outcome};
use policy::Block;
use quota::Device;

const BLANK: Record = Record {
    time_ns: 0,
    address: 0,
    size: 0,
    allocated: 0,
    detail: 0,
    tid: 0,
    result: 0,
    api: 0,
    device: HOST_DEVICE,
    kind: 0,
    class: 0,
    flags: 0,
    stream: 0,
};

/// An allocation that the next layer served by itself: obtained (`Kind::Alloc`) or freed (`Kind::Free`).
pub fn allocation(kind: Kind, api: Api, key: Key, allocation: &Allocation, flags: u8) -> Record {
    Record {
        kind: kind as u8,
        api: api.number(),
        address: key.value(),
        size: allocation.requested,
        allocated: allocation.allocated,
        detail: allocation.reserved,
        device: allocation.device,
        class: allocation.class.number(),
        flags: flags | if allocation.reserved > 0 { FLAG_DIRECT } else { 0 },
        ..BLANK
    }
}

/// A block of a pool: obtained (`Kind::Alloc`) or freed (`Kind::Free`). `stream` is the journal's number of the stream.
pub fn block(kind: Kind, api: Api, device: i16, block: &Block, stream: u8, flags: u8) -> Record {
    Record {
        kind: kind as u8,
        api: api.number(),
        class: Class::Linear.number(),
        device,
        address: block.address,
        size: block.requested,
        allocated: block.allocated,
        stream,
        flags,
        ..BLANK
    }
}

/// A request for memory that failed.
pub fn allocation_failed(api: Api, class: Class, device: i16, size: u64, problem: DriverError, flags: u8) -> Record {
    Record {
        kind: Kind::AllocFailed as u8,
        api: api.number(),
        class: class.number(),
        device,
        size,
        result: problem.0,
        flags,
        ..BLANK
    }
}

/// A free that failed; `result` is 0 if the next layer freed an allocation that the ledger did not have.
pub fn free_failed(api: Api, key: Key, device: i16, result: i32) -> Record {
    Record {
        kind: Kind::FreeFailed as u8,
        api: api.number(),
        address: key.value(),
        device,
        result,
        ..BLANK
    }
}

/// A segment of a pool: obtained (`Kind::SegmentAlloc`) or given back (`Kind::SegmentFree`).
pub fn segment(kind: Kind, device: i16, address: u64, size: u64, flags: u8) -> Record {
    Record {
        kind: kind as u8,
        api: Api::Policy.number(),
        class: Class::Linear.number(),
        device,
        address,
        size,
        allocated: size,
        detail: size,
        flags,
        ..BLANK
    }
}

/// A segment that the next layer did not take back.
pub fn segment_free_failed(device: i16, address: u64, size: u64, problem: DriverError) -> Record {
    Record {
        result: problem.0,
        ..segment(Kind::FreeFailed, device, address, size, 0)
    }
}

/// What the driver's own pools hold of a device, and how much of that is used.
pub fn driver_pools(api: Api, class: Class, device: i16, size: u64, used: u64) -> Record {
    Record {
        kind: Kind::PoolReserved as u8,
        api: api.number(),
        class: class.number(),
        device,
        size,
        allocated: used,
        ..BLANK
    }
}

/// A context that is destroyed.
pub fn context_destroyed(api: Api, device: i16, context: u64) -> Record {
    Record {
        kind: Kind::ContextDestroyed as u8,
        api: api.number(),
        device,
        address: context,
        ..BLANK
    }
}

/// Physical memory that was mapped (`Kind::Map`) or unmapped (`Kind::Unmap`).
pub fn mapping(kind: Kind, api: Api, device: i16, address: u64, size: u64, handle: u64) -> Record {
    Record {
        kind: kind as u8,
        api: api.number(),
        class: Class::Vmm.number(),
        device,
        address,
        size,
        detail: handle,
        ..BLANK
    }
}

/// A measurement of a device. Bytes.
pub struct Measured {
    /// What the ledger has reserved.
    pub reserved: u64,
    /// Free and total memory as the next layer tells it.
    pub free: u64,
    pub total: u64,
    /// What NVML says that this process holds; 0 if NVML does not say.
    pub of_process: u64,
}

pub fn measured(device: i16, figures: &Measured) -> Record {
    Record {
        kind: Kind::Measured as u8,
        api: Api::Policy.number(),
        device,
        address: figures.reserved,
        size: figures.total,
        allocated: figures.free,
        detail: figures.of_process,
        ..BLANK
    }
}

/// Writes records into the journal, if there is one.
pub struct Recorder {
    journal: Option<Journal>,
}

impl Recorder {
    pub fn new(journal: Option<Journal>) -> Recorder {
        Recorder { journal }
    }

    pub fn write(&self, record: Record) {
        if let Some(journal) = &self.journal {
            report_loss(journal, journal.write(record));
        }
    }

    /// Takes the next slot of the journal for a record that follows.
    pub fn claim(&self) -> Option<Claim> {
        self.journal.as_ref().map(Journal::claim)
    }

    /// Writes a record into the slot that was claimed for it.
    pub fn commit(&self, claim: Option<Claim>, record: Record) {
        if let (Some(journal), Some(claim)) = (&self.journal, claim) {
            report_loss(journal, journal.commit(claim, record));
        }
    }

    /// Whether a journal is written and has lost no record so far.
    pub fn is_complete(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.lost() == 0)
    }

    /// The number of records that could not be written.
    pub fn lost(&self) -> u64 {
        self.journal.as_ref().map_or(0, Journal::lost)
    }

    /// The next layer freed an allocation that the ledger did not have.
    pub fn unknown_free(&self) {
        if let Some(journal) = &self.journal {
            journal.unknown_free();
        }
    }

    /// Writes the name, size and limit of a device into the journal's header. `facts` asks for them; without a journal
    /// they are not asked for.
    pub fn device(&self, facts: impl FnOnce() -> Option<(Device, String, Option<u64>)>) {
        if let Some(journal) = &self.journal
            && let Some((device, name, limit)) = facts()
        {
            journal.device(device.ordinal, device.total, device.uuid, &name, limit);
        }
    }

    /// Writes into the journal's header how the job obtained our functions.
    pub fn routes(&self, routes: &[RouteEntry; MAX_ROUTES]) {
        if let Some(journal) = &self.journal {
            journal.routes(routes);
        }
    }

    /// The process exits with this status.
    pub fn process_ends(&self, status: i32) {
        if let Some(journal) = &self.journal {
            journal.ended(status);
        }
    }

    pub fn path(&self) -> Option<&Path> {
        self.journal.as_ref().map(Journal::path)
    }
}

/// Warns of the first record that is lost.
fn report_loss(journal: &Journal, outcome: Outcome) {
    if let Outcome::Lost { first: true } = outcome {
        let (path, why) = (journal.path().display(), journal.loss_reason());
        warn!("journal {path} cannot grow: {why}; the job goes on, events are counted as lost until there is room");
    }
}
