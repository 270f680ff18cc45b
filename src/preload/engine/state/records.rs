//! The recorder, which writes records into the journal, and the records that more than one caller makes. A caller that is
//! the only one of its kind encodes the `Event` itself.

use std::path::Path;

use base::cancellation::Uncancelled;
use base::mutant;
use base::say::warn;

use super::allocation::{Allocation, Key};
use super::surges::Askers;
use base::api::{Api, Class};
use base::cuda::HOST_DEVICE;
use base::text::shown;
use journal::format::{self, Event, MarkKind, NoStack, RawRecord, STACKS_EXTENSION, SurgeShare, line_of_the_job};
use journal::writer::{Claim, Journal, Outcome};
use policy::Block;

use crate::stacks::Stacks;

/// An allocation of the ledger as the journal has it.
fn entry(key: Key, allocation: &Allocation) -> format::Allocation {
    format::Allocation {
        class: allocation.class.into(),
        address: key.value(),
        // Mutant 5: a wrong size in the journal.
        requested: allocation.requested + u64::from(mutant::is(5)),
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
    pub journal: Option<Journal>,
    /// The stacks that are recorded, if there is a journal.
    pub stacks: Option<Stacks>,
    /// Which stacks asked for memory; `None` without `VRAMSHIM_SURGE`, which alone asks for them.
    pub askers: Option<Askers>,
}

impl Recorder {
    /// The calling thread's stack. Notes who asks for memory: the device and bytes of the request.
    #[cold]
    fn stack_of(&self, stacks: &Stacks, (device, bytes): (i16, u64)) -> u32 {
        let _uncancelled = Uncancelled::begin();
        let stack = stacks.here();
        if let Some(askers) = &self.askers
            && NoStack::stack(stack).is_ok()
        {
            askers.add(device, stack, bytes);
        }
        stack
    }

    /// Records a surge: the memory of a device, or of the host, grew by `grown` bytes within `over_ns`. `responsible` has the
    /// stacks that asked for memory meanwhile, with their bytes, largest first.
    pub fn surge(&self, device: i16, text: &str, grown: u64, over_ns: u64, responsible: &[(u32, u64)]) {
        let text = self.text(text.as_bytes());
        if text == 0 {
            return;
        }
        let write = |event: Event, stack: u32| {
            self.commit(self.claim(), event.encode(Api::Policy, device).with_stack(stack));
        };
        let (most, kind) = (responsible.first().map_or(0, |&(stack, _)| stack), MarkKind::Instant);
        write(Event::Mark { text, kind }, most);
        let share = |asked, place| {
            Event::Surge(SurgeShare {
                grown,
                over_ns,
                asked,
                place,
            })
        };
        if responsible.is_empty() {
            write(share(0, 0), 0);
        }
        for (&(stack, asked), place) in responsible.iter().zip(1..) {
            write(share(asked, place), stack);
        }
    }

    /// Writes a record. If stacks are recorded, that of a request gets the calling thread's stack.
    #[inline(never)]
    pub fn write(&self, record: RawRecord) {
        self.write_while(record, || ());
    }

    /// As `write`, and runs `work` meanwhile. The record's time is from before. Always inlined, so that the record goes from
    /// the caller's registers to the journal.
    #[inline(always)]
    pub fn write_while(&self, record: RawRecord, work: impl FnOnce()) {
        let (Some(journal), Some(stacks)) = (&self.journal, &self.stacks) else {
            return work();
        };
        let record = if record.is_request() && stacks.are_recorded() {
            record.with_stack(self.stack_of(stacks, record.request()))
        } else {
            record
        };
        let claim = journal.claim();
        work();
        report_loss(journal, journal.commit(claim, record));
    }

    /// Writes a record about a device that no call of the job is the reason of.
    pub fn note(&self, device: i16, event: Event) {
        self.write(event.encode(Api::Policy, device));
    }

    /// Writes the record of a mark with this text.
    pub fn mark(&self, api: Api, text: u64, kind: MarkKind) {
        self.commit(self.claim(), Event::Mark { text, kind }.encode(api, HOST_DEVICE));
    }

    /// The line of the job's code that is calling, if stacks are recorded. It is read from the file of stacks, for
    /// messages that are rare.
    pub fn place(&self) -> Option<String> {
        let stacks = self.stacks.as_ref().filter(|stacks| stacks.are_recorded())?;
        self.places_of(&[stacks.here()]).pop()?
    }

    /// The lines of the job's code in the stacks of these numbers.
    pub fn places_of(&self, stacks: &[u32]) -> Vec<Option<String>> {
        let known = self.known_stacks();
        let place = |&stack: &u32| {
            let number = NoStack::stack(stack).ok().filter(|&number| number > 0)?;
            let frame = line_of_the_job(&known.as_ref()?.get(number)?.frames)?;
            Some(match frame.line {
                0 => frame.function.to_string(),
                line => format!("{}:{line}", frame.file),
            })
        };
        stacks.iter().map(place).collect()
    }

    /// The file of stacks, if it is short enough to be read in the middle of a call.
    fn known_stacks(&self) -> Option<journal::reader::Stacks> {
        const LONGEST_BYTES: u64 = 1 << 20;
        let journal = self.journal.as_ref()?.path();
        let file = std::fs::metadata(journal.with_extension(STACKS_EXTENSION)).ok()?;
        if file.len() > LONGEST_BYTES {
            return None;
        }
        journal::reader::Stacks::beside(journal).ok()?
    }

    /// The number of a mark's text in this process's file; 0 if it is not kept.
    pub fn text(&self, text: &[u8]) -> u64 {
        self.stacks.as_ref().map_or(0, |stacks| stacks.text(text))
    }

    /// Takes the next slot of the journal for a record that follows.
    #[inline(always)]
    pub fn claim(&self) -> Option<Claim> {
        self.journal.as_ref().map(Journal::claim)
    }

    /// Writes a record into the slot that was claimed for it.
    #[inline(always)]
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
    let _uncancelled = Uncancelled::begin();
    let (path, why) = (shown(journal.path()), journal.loss_reason());
    warn!(
        "journal {path} cannot grow: {why}; the job goes on, and the newest events take the place of older ones, \
         which are counted as lost"
    );
}
