//! The moment that an export shows: `--at peak|oom|end`.

use std::collections::HashMap;
use std::io;

use base::api::Class;
use base::cuda::DriverError;
use journal::format::{Event, Record};

use super::exported_process::Process;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum At {
    /// When the job's allocations on one device had the most bytes, for the first time
    Peak,
    /// The last request that failed for lack of memory
    Oom,
    /// The end of the journal
    End,
}

/// How many entries have taken effect at a moment.
pub type Cut = u64;

/// The bytes of live allocations on each device, by what counts towards a device.
#[derive(Default)]
struct Levels {
    by_device: HashMap<i16, u64>,
    /// Launched graphs, which have no allocations of their own.
    graphs: HashMap<i16, u64>,
    highest: u64,
}

impl Levels {
    /// Applies one record. True if a device has more bytes than any had before.
    fn apply(&mut self, record: &Record) -> bool {
        let (before, now) = match record.event {
            Event::Alloc(one) if one.class.known().is_some_and(Class::is_device_memory) => (0, one.allocated),
            Event::Free { allocation: one, .. } if one.class.known().is_some_and(Class::is_device_memory) => {
                (one.allocated, 0)
            }
            Event::PoolReserved { class, used, .. } if class == Class::Graph.into() => {
                (self.graphs.insert(record.device, used).unwrap_or(0), used)
            }
            _ => return false,
        };
        let level = self.by_device.entry(record.device).or_default();
        *level = level.saturating_sub(before).saturating_add(now);
        let higher = *level > self.highest;
        self.highest = self.highest.max(*level);
        higher
    }
}

pub fn is_out_of_memory(record: &Record) -> bool {
    let out_of_memory = DriverError::OUT_OF_MEMORY.0;
    matches!(record.event, Event::AllocFailed { result, .. } if result == out_of_memory)
}

/// Finds the moment. `None` if the process has no such moment.
pub fn find(process: &Process, at: At, progress: &dyn Fn(u64)) -> io::Result<Option<Cut>> {
    if at == At::End {
        return Ok(Some(Cut::MAX));
    }
    let mut found = None;
    let mut levels = Levels::default();
    process.each(progress, |count, record| {
        let is_it = if at == At::Peak {
            levels.apply(record)
        } else {
            is_out_of_memory(record)
        };
        if is_it {
            found = Some(count + 1);
        }
        Ok(())
    })?;
    Ok(found)
}
