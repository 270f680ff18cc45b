//! Which stacks hold how much at a moment, and have allocated how much in all: what pprof, collapsed stacks and
//! speedscope show. The memory that this takes grows with the live allocations and the stacks, not with the journal.

use std::collections::{BTreeMap, HashMap};
use std::io;

use base::api::Class;
use journal::format::{Allocation, Event, Frame};

use super::moment::Cut;
use super::source::Process;
use crate::analysis::device_ledger::NameSpace;
use crate::analysis::frameless::Frameless;
use crate::analysis::names::api_name;

/// What allocations of one sum have in common. Memory of the host has the device `HOST_DEVICE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub device: i16,
    pub stack: u32,
    pub api: u16,
    pub thread: u32,
}

/// Bytes are allocated bytes, as the ledger has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Live at the moment.
    pub held_bytes: u64,
    pub held_count: u64,
    /// Allocated until the moment, freed or not.
    pub all_bytes: u64,
    pub all_count: u64,
}

fn counts(allocation: &Allocation) -> bool {
    !matches!(
        allocation.class.known(),
        None | Some(Class::Imported | Class::AddressRange)
    )
}

/// Reads a process up to the moment.
pub fn of(process: &Process, cut: Cut, progress: &dyn Fn(u64)) -> io::Result<BTreeMap<Key, Sums>> {
    let mut sums: BTreeMap<Key, Sums> = BTreeMap::new();
    let mut live: HashMap<(NameSpace, u64), (Key, u64)> = HashMap::new();
    let forget = |sums: &mut BTreeMap<Key, Sums>, one: Option<(Key, u64)>| {
        if let Some((key, bytes)) = one {
            let sum = sums.entry(key).or_default();
            sum.held_bytes = sum.held_bytes.saturating_sub(bytes);
            sum.held_count = sum.held_count.saturating_sub(1);
        }
    };
    process.each(progress, |count, record| {
        if count >= cut {
            return Ok(());
        }
        match record.event {
            Event::Alloc(one) if counts(&one) => {
                let key = Key {
                    device: record.device,
                    stack: record.stack,
                    api: record.api.number(),
                    thread: record.tid,
                };
                let place = (NameSpace::of(one.class.number()), one.address);
                forget(&mut sums, live.insert(place, (key, one.allocated)));
                let sum = sums.entry(key).or_default();
                sum.held_bytes = sum.held_bytes.saturating_add(one.allocated);
                sum.held_count += 1;
                sum.all_bytes = sum.all_bytes.saturating_add(one.allocated);
                sum.all_count += 1;
            }
            Event::Free { allocation: one, .. } if counts(&one) => {
                let place = (NameSpace::of(one.class.number()), one.address);
                forget(&mut sums, live.remove(&place));
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(sums)
}

/// The frames that an export shows for a sum, innermost first. A sum without a stack gets one frame that says so, so
/// that no byte is left out of a picture.
pub fn shown_frames(process: &Process, key: &Key) -> Vec<Frame> {
    let Some(why) = process.frameless(key.stack) else {
        return process.frames(key.stack).to_vec();
    };
    let why = match why {
        Frameless::NoStack(reason) => format!("no stack: {}", reason.words()),
        Frameless::NoPython => "no Python stack".to_owned(),
        Frameless::NotInFile => "its stack is not in the file".to_owned(),
    };
    vec![Frame {
        file: "".into(),
        line: 0,
        function: format!("{} ({why})", api_name(key.api)).into(),
    }]
}

/// The name of the memory that a sum is of.
pub fn memory_name(device: i16) -> String {
    match device {
        base::cuda::HOST_DEVICE => "host memory".to_owned(),
        device => format!("GPU {device}"),
    }
}
