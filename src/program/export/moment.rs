//! The moment that an export shows: `--at peak|oom|end`.

use std::io;

use base::cuda::HOST_DEVICE;
use journal::format::Event;

use super::exported_process::Process;
use crate::analysis::ledger::Ledger;
use crate::analysis::scene::is_out_of_memory;

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

/// Finds the moment. `None` if the process has no such moment.
pub fn find(process: &Process, at: At) -> io::Result<Option<Cut>> {
    if at == At::End {
        return Ok(Some(Cut::MAX));
    }
    let (mut found, mut ledger, mut highest) = (None, Ledger::default(), 0);
    process.each(|count, record| {
        let is_it = if at == At::Peak {
            ledger.apply(record);
            let device = ledger
                .devices
                .get(&record.device)
                .filter(|_| record.device != HOST_DEVICE);
            let level = device.map_or(0, |device| device.all.allocated.current);
            let is_higher = level > highest;
            highest = highest.max(level);
            is_higher
        } else {
            matches!(record.event, Event::AllocFailed { result, .. } if is_out_of_memory(result))
        };
        if is_it {
            found = Some(count + 1);
        }
        Ok(())
    })?;
    Ok(found)
}
