//! Work that a policy wants to be done: the calls of the driver that it needs.
//!
//! A policy decides under its lock, and `Work::carry_out` is called without it, because calls of the driver take their
//! time and may wait. The policy then learns by `Policy::commit` what was achieved. What a piece of work uses is taken out
//! of the policy's lists before, so no other request can use it meanwhile.
//!
//! Work that was not carried out, or only in part, can be committed too: then less was achieved.

use base::cuda::{CudaResult, DriverError};

use crate::arena::Region;
use crate::auto_growth::mapping::{Map, Unmap};
use crate::device_memory::{Available, DeviceMemory, EventId, NoEvent};
use crate::request::{LARGEST_UNITS, UNIT};

#[derive(Debug)]
pub enum Work {
    /// Find out what a policy must know before it grows.
    Ask(Ask),
    /// Look whether events are done.
    Look(Vec<Looked>),
    /// Record events that tell when blocks are clean.
    Record(Record),
    /// Forget events that tell nothing any more.
    Forget(Vec<EventId>),
    /// Obtain a segment from the next layer.
    Obtain(Obtain),
    /// Give segments back. The next layer may wait for the work that uses them.
    Return(Return),
    /// Make a place out of mapped memory.
    Map(Box<Map>),
    /// Give mapped memory back.
    Unmap(Box<Unmap>),
}

impl Work {
    /// Makes the calls of the driver. No policy is locked meanwhile.
    pub fn carry_out(&mut self, memory: &dyn DeviceMemory) {
        match self {
            Work::Ask(ask) => ask.carry_out(memory),
            Work::Look(batches) => {
                for looked in batches {
                    looked.are_done = looked.events.iter().all(|&event| memory.event_is_done(event));
                }
            }
            Work::Record(record) => record.carry_out(memory),
            Work::Forget(events) => events.drain(..).for_each(|event| memory.forget_event(event)),
            Work::Obtain(obtain) => obtain.carry_out(memory),
            Work::Return(give_back) => give_back.carry_out(memory),
            Work::Map(map) => map.carry_out(memory),
            Work::Unmap(unmap) => unmap.carry_out(memory),
        }
    }

    /// Whether this work gives memory back, so that another request can be served when it is done.
    pub fn gives_back(&self) -> bool {
        matches!(self, Work::Return(_) | Work::Unmap(_))
    }

    pub fn given_back(&self) -> u64 {
        match self {
            Work::Return(Return { pieces, .. }) => {
                let gone = pieces.iter().filter(|piece| piece.is_gone);
                gone.map(|piece| piece.size).sum()
            }
            Work::Unmap(unmap) => unmap.given_back(),
            _ => 0,
        }
    }
}

/// What a policy wants to know of the device, and the answer.
#[derive(Debug)]
pub enum Ask {
    Available(Option<Available>),
    /// The granularity of physical memory, and the memory of the device. `None`: there is no virtual memory management.
    VirtualMemory(Option<(u64, Available)>),
}

impl Ask {
    fn carry_out(&mut self, memory: &dyn DeviceMemory) {
        match self {
            Ask::Available(answer) => *answer = memory.available().ok(),
            Ask::VirtualMemory(answer) => {
                let granularity = memory.granularity();
                *answer = granularity.map(|bytes| (bytes, memory.available().unwrap_or_default()));
            }
        }
    }
}

/// Events that were recorded for one batch. They are taken out of it, so no other thread looks at them or forgets them meanwhile.
#[derive(Debug)]
pub struct Looked {
    pub(crate) batch: usize,
    pub(crate) generation: u64,
    pub(crate) recorded_at: u64,
    pub(crate) events: Vec<EventId>,
    pub(crate) are_done: bool,
}

/// Events to be recorded on the streams that may use the blocks of a batch.
#[derive(Debug)]
pub struct Record {
    pub(crate) batch: usize,
    pub(crate) generation: u64,
    pub(crate) joined: u64,
    /// `None` for all streams.
    pub(crate) streams: Option<Box<[u64]>>,
    pub(crate) outcome: Result<Vec<EventId>, NoEvent>,
}

impl Record {
    fn carry_out(&mut self, memory: &dyn DeviceMemory) {
        self.outcome = match &self.streams {
            None => memory.record_all(),
            Some(streams) => Self::record_each(memory, streams),
        };
    }

    fn record_each(memory: &dyn DeviceMemory, streams: &[u64]) -> Result<Vec<EventId>, NoEvent> {
        let mut events = Vec::with_capacity(streams.len());
        for &stream in streams {
            let event = memory.record_event(stream);
            let recorded = event.inspect_err(|_| events.drain(..).for_each(|event| memory.forget_event(event)));
            events.push(recorded?);
        }
        Ok(events)
    }
}

#[derive(Debug)]
pub struct Obtain {
    /// Bytes to ask for.
    pub(crate) size: u64,
    /// Bytes that are enough.
    pub(crate) least: u64,
    /// Whether half as much is asked for next if the device has no room; otherwise the least size at once.
    pub(crate) halves: bool,
    pub(crate) region: Region,
    /// The first address of the segment, which has `size` bytes.
    pub(crate) address: CudaResult<u64>,
}

impl Obtain {
    pub(crate) fn new(size: u64, least: u64, halves: bool) -> Self {
        Obtain {
            size: size.max(least),
            least,
            halves,
            region: Region::Main,
            address: Err(DriverError::OUT_OF_MEMORY),
        }
    }

    /// The segment serves a single request.
    pub(crate) fn dedicated(self) -> Self {
        Obtain {
            region: Region::Dedicated,
            ..self
        }
    }

    fn carry_out(&mut self, memory: &dyn DeviceMemory) {
        loop {
            self.address = match self.size / UNIT {
                ..=LARGEST_UNITS => memory.allocate(self.size),
                _ => Err(DriverError::OUT_OF_MEMORY),
            };
            if self.size <= self.least || self.address != Err(DriverError::OUT_OF_MEMORY) {
                return;
            }
            let half = if self.halves { self.size / 2 / UNIT * UNIT } else { 0 };
            self.size = half.max(self.least);
        }
    }
}

/// Segments, or parts of segments, that are given back. The arena does not list them any more.
#[derive(Debug)]
pub struct Return {
    pub(crate) pieces: Vec<Piece>,
    /// Whether they are kept if the next layer would have to wait: for a request that it may still have memory for. The work
    /// that it would wait for may wait for the caller.
    pub(crate) waits_for_nothing: bool,
}

#[derive(Debug)]
pub(crate) struct Piece {
    pub address: u64,
    pub size: u64,
    /// Whether no work uses it.
    pub is_clean: bool,
    pub is_gone: bool,
}

impl Return {
    /// `None` if there is nothing to give back.
    pub(crate) fn of_pieces(pieces: Vec<Piece>) -> Option<Self> {
        (!pieces.is_empty()).then_some(Return {
            pieces,
            waits_for_nothing: false,
        })
    }

    fn carry_out(&mut self, memory: &dyn DeviceMemory) {
        if self.waits_for_nothing && !memory.has_no_work() {
            return;
        }
        for piece in &mut self.pieces {
            // Giving memory back waits for the device, which an open stream capture does not allow.
            piece.is_gone = !memory.is_capturing() && memory.free(piece.address, piece.size).is_ok();
        }
    }
}
