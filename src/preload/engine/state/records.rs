//! The recorder, which writes records into the journal, and the records that more than one caller makes. A caller that is
//! the only one of its kind encodes the `Event` itself.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use base::say::warn;

use super::allocation::{Allocation, Key};
use base::api::{Api, Class};
use base::cuda::{DriverError, HOST_DEVICE, MAX_DEVICES};
use journal::copy::Dumped;
use journal::format::{
    self, Event, MAX_ROUTES, MarkKind, NoStack, RawRecord, RouteEntry, STACKS_EXTENSION, line_of_the_job,
};
use journal::writer::{Claim, Journal, Outcome};
use policy::Block;
use quota::Device;

use crate::stacks::Stacks;

/// An allocation of the ledger as the journal has it.
fn entry(key: Key, allocation: &Allocation) -> format::Allocation {
    format::Allocation {
        class: allocation.class.into(),
        address: key.value(),
        requested: allocation.requested,
        allocated: allocation.allocated,
        reserved: (allocation.reserved() > 0).then_some(allocation.reserved()),
        stream: 0,
    }
}

/// A block of a pool as the journal has it. `stream` is the journal's number of the stream, or 0.
#[inline]
fn block(block: &Block, stream: u8) -> format::Allocation {
    format::Allocation {
        class: Class::Linear.into(),
        address: block.address,
        requested: block.requested,
        allocated: block.allocated,
        reserved: None,
        stream,
    }
}

/// An allocation that the next layer served by itself.
pub fn obtained(api: Api, key: Key, allocation: &Allocation) -> RawRecord {
    Event::Alloc(entry(key, allocation)).encode(api, allocation.device)
}

/// The free of such an allocation; if `context_gone`, its context was destroyed.
pub fn freed(api: Api, key: Key, allocation: &Allocation, context_gone: bool) -> RawRecord {
    let event = Event::Free {
        allocation: entry(key, allocation),
        context_gone,
    };
    event.encode(api, allocation.device)
}

/// A block that the job obtained from a pool.
#[inline]
pub fn block_obtained(api: Api, device: i16, obtained: &Block, stream: u8) -> RawRecord {
    Event::Alloc(block(obtained, stream)).encode(api, device)
}

/// A block that returned to a pool; if `context_gone`, its context was destroyed.
#[inline]
pub fn block_freed(api: Api, device: i16, freed: &Block, stream: u8, context_gone: bool) -> RawRecord {
    let event = Event::Free {
        allocation: block(freed, stream),
        context_gone,
    };
    event.encode(api, device)
}

/// A segment that a pool obtained; `again` if it is a stitch.
pub fn segment_obtained(device: i16, address: u64, size: u64, again: bool) -> RawRecord {
    Event::SegmentAlloc { address, size, again }.encode(Api::Policy, device)
}

/// Which bytes of a segment a part of a stitch has.
pub fn stitch_part(device: i16, address: u64, size: u64, home: u64) -> RawRecord {
    Event::StitchPart { address, size, home }.encode(Api::Policy, device)
}

/// A segment that a pool gave back; `again` if it is a stitch.
pub fn segment_returned(device: i16, address: u64, size: u64, again: bool, context_gone: bool) -> RawRecord {
    let event = Event::SegmentFree {
        address,
        size,
        again,
        context_gone,
    };
    event.encode(Api::Policy, device)
}

/// A segment that the next layer did not take back.
pub fn segment_free_failed(device: i16, address: u64, size: u64, problem: DriverError) -> RawRecord {
    let event = Event::FreeFailed {
        address,
        segment: Some(size),
        result: problem.0,
    };
    event.encode(Api::Policy, device)
}

/// What the driver's own pools hold of a device, and how much of that is used.
pub fn driver_pools(api: Api, class: Class, device: i16, reserved: u64, used: u64) -> RawRecord {
    let event = Event::PoolReserved {
        class: class.into(),
        reserved,
        used,
    };
    event.encode(api, device)
}

/// Writes records into the journal, if there is one.
pub struct Recorder {
    journal: Option<Journal>,
    stacks: Option<Stacks>,
    /// Of each device, and of the host at the end, the largest request since `take_largest`: its KiB, and its stack in the
    /// low half. `None` if nobody asks.
    largest: Option<Box<[AtomicU64; MAX_DEVICES + 1]>>,
}

impl Recorder {
    /// `stacks` are those beside the journal. `keeps_largest`: somebody will ask for the largest requests.
    pub fn new(journal: Option<Journal>, stacks: Option<Stacks>, keeps_largest: bool) -> Recorder {
        let largest = keeps_largest.then(|| Box::new(std::array::from_fn(|_| AtomicU64::new(0))));
        Recorder {
            journal,
            stacks,
            largest,
        }
    }

    /// Notes a request that has a stack, if it is the largest of late.
    #[inline]
    fn note(&self, (device, bytes): (i16, u64), stack: u32) {
        let Some(largest) = &self.largest else { return };
        if NoStack::stack(stack).is_ok() {
            let kib = (bytes >> 10).min(u64::from(u32::MAX));
            let slot = &largest[usize::try_from(device).map_or(MAX_DEVICES, |device| device.min(MAX_DEVICES))];
            let request = kib << 32 | u64::from(stack);
            if request > slot.load(Relaxed) {
                slot.fetch_max(request, Relaxed);
            }
        }
    }

    /// The largest request for memory of this device since the last call: a number that is larger for a larger request, and
    /// has the number of its stack in the low half. 0 if there is none.
    pub fn take_largest(&self, device: i16) -> u64 {
        let place = usize::try_from(device).map_or(MAX_DEVICES, |device| device.min(MAX_DEVICES));
        let largest = self.largest.as_ref();
        largest.map_or(0, |largest| largest[place].swap(0, Relaxed))
    }

    /// Marks a surge of a device's memory, or the host's, with the stack that explains it; 0 if none is known.
    pub fn surge(&self, device: i16, text: &str, stack: u32) {
        let number = self.text(text.as_bytes());
        if let Some(journal) = self.journal.as_ref().filter(|_| number != 0) {
            let (text, kind) = (number, MarkKind::Instant);
            let record = Event::Mark { text, kind }.encode(Api::Policy, device).with_stack(stack);
            report_loss(journal, journal.write(record));
        }
    }

    /// Writes a record. If stacks are recorded, that of a request gets the calling thread's stack.
    #[inline]
    pub fn write(&self, record: RawRecord) {
        self.write_while(record, || ());
    }

    /// As `write`, and runs `work` meanwhile. The record's time is from before.
    #[inline]
    pub fn write_while(&self, record: RawRecord, work: impl FnOnce()) {
        let (Some(journal), Some(stacks)) = (&self.journal, &self.stacks) else {
            return work();
        };
        let record = match record.is_request() && stacks.are_recorded() {
            true => {
                let stack = stacks.here();
                self.note(record.request(), stack);
                record.with_stack(stack)
            }
            false => record,
        };
        let claim = journal.claim();
        work();
        report_loss(journal, journal.commit(claim, record));
    }

    /// Writes the record of a mark with this text.
    pub fn mark(&self, api: Api, text: u64, kind: MarkKind) {
        if let Some(journal) = &self.journal {
            let record = Event::Mark { text, kind }.encode(api, HOST_DEVICE);
            report_loss(journal, journal.write(record));
        }
    }

    /// The line of the job's code that is calling, if stacks are recorded. It is read from the file of stacks, for
    /// messages that are rare.
    pub fn place(&self) -> Option<String> {
        let stacks = self.stacks.as_ref().filter(|stacks| stacks.are_recorded())?;
        self.place_of(stacks.here())
    }

    /// The line of the job's code in the stack of this number.
    pub fn place_of(&self, stack: u32) -> Option<String> {
        /// A longer file is not read in the middle of a call.
        const LONGEST_BYTES: u64 = 1 << 20;
        let number = NoStack::stack(stack).ok().filter(|&number| number > 0)?;
        let journal = self.journal.as_ref()?.path();
        let file = journal.with_extension(STACKS_EXTENSION);
        std::fs::metadata(file)
            .ok()
            .filter(|file| file.len() <= LONGEST_BYTES)?;
        let known = journal::reader::Stacks::beside(journal).ok()??;
        let frame = line_of_the_job(&known.get(number)?.frames)?;
        Some(match frame.line {
            0 => frame.function.to_string(),
            line => format!("{}:{line}", frame.file),
        })
    }

    /// The number of a mark's text in this process's file; 0 if it is not kept.
    pub fn text(&self, text: &[u8]) -> u64 {
        self.stacks.as_ref().map_or(0, |stacks| stacks.text(text))
    }

    /// Takes the next slot of the journal for a record that follows.
    pub fn claim(&self) -> Option<Claim> {
        self.journal.as_ref().map(Journal::claim)
    }

    /// Writes a record into the slot that was claimed for it.
    pub fn commit(&self, claim: Option<Claim>, record: RawRecord) {
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

    /// Writes the software that the job uses into the journal's header. `text` finds it out; without a journal it is
    /// not called.
    pub fn software(&self, text: impl FnOnce() -> Vec<u8>) {
        if let Some(journal) = &self.journal {
            journal.software(&text());
        }
    }

    /// The stacks that are recorded, if there is a journal.
    pub fn stacks(&self) -> Option<&Stacks> {
        self.stacks.as_ref()
    }

    /// Writes a copy of the journal as it is now. Without a journal the error is `ENODATA`.
    pub fn dump(&self, to: &Path) -> io::Result<Dumped> {
        let journal = self.journal.as_ref();
        journal.map_or_else(
            || Err(io::Error::from_raw_os_error(libc::ENODATA)),
            |journal| journal.dump(to),
        )
    }

    /// Nanoseconds since the journal was created; 0 without one.
    pub fn now_ns(&self) -> u64 {
        self.journal.as_ref().map_or(0, Journal::now_ns)
    }

    /// The process is alive.
    pub fn alive(&self) {
        if let Some(journal) = &self.journal {
            journal.alive();
        }
    }

    /// The calling thread, which sleeps on `word`, touches pages of the journal before writers get there
    /// (`touch_pages`).
    pub fn serve_writers(&self, word: &'static AtomicU32) {
        if let Some(journal) = &self.journal {
            journal.serve_writers(word);
        }
    }

    pub fn touch_pages(&self) {
        if let Some(journal) = &self.journal {
            journal.touch_pages();
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
#[inline]
fn report_loss(journal: &Journal, outcome: Outcome) {
    if let Outcome::Lost { first: true } = outcome {
        warn_of_loss(journal);
    }
}

#[cold]
fn warn_of_loss(journal: &Journal) {
    let (path, why) = (journal.path().display(), journal.loss_reason());
    warn!(
        "journal {path} cannot grow: {why}; the job goes on, and the newest events take the place of older ones, \
         which are counted as lost"
    );
}
