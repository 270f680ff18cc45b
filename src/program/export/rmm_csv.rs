//! The log of RMM's logging adaptor, for one device: the requests of the job, without its segments. `vramshim replay`
//! and RMM's own replay benchmark read it.

use std::io::{self, Write};

use base::api::Class;
use base::cuda::DriverError;
use journal::format::{Allocation, Event, Library, Record};

use super::source::Process;

pub struct Writer<'w> {
    out: &'w mut dyn Write,
    device: i16,
    /// Rows that were written.
    pub rows: u64,
    /// Requests that have no address, so that the log cannot name them.
    pub left_out: u64,
}

/// Whether the log names this allocation: device memory with an address.
pub fn has_address(allocation: &Allocation) -> bool {
    matches!(
        allocation.class.known(),
        Some(Class::Linear | Class::Pitched | Class::Managed | Class::Async)
    )
}

impl<'w> Writer<'w> {
    pub fn new(out: &'w mut dyn Write, device: i16) -> io::Result<Writer<'w>> {
        writeln!(out, "Thread,Time,Action,Pointer,Size,Stream")?;
        Ok(Writer {
            out,
            device,
            rows: 0,
            left_out: 0,
        })
    }

    pub fn add(&mut self, process: &Process, record: &Record) -> io::Result<()> {
        if record.device != self.device {
            return Ok(());
        }
        let (action, allocation) = match record.event {
            Event::Alloc(allocation) => ("allocate", allocation),
            Event::Free { allocation, .. } => ("free", allocation),
            Event::AllocFailed {
                class,
                requested,
                result,
                ..
            } if result == DriverError::OUT_OF_MEMORY.0 => {
                let failed = Allocation {
                    class,
                    address: 0,
                    requested,
                    allocated: 0,
                    reserved: None,
                    cache: Library::NotKnown,
                    stream: 0,
                };
                ("allocate failure", failed)
            }
            _ => return Ok(()),
        };
        if !has_address(&allocation) {
            self.left_out +=
                u64::from(action == "allocate" && allocation.class.known().is_some_and(Class::is_device_memory));
            return Ok(());
        }
        self.rows += 1;
        let of_day_us = process.unix_ns(record.time_ns) / 1000 % 86_400_000_000;
        let (seconds, us) = (of_day_us / 1_000_000, of_day_us % 1_000_000);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        writeln!(
            self.out,
            "{},{hours:02}:{minutes:02}:{seconds:02}.{us:06},{action},{:#x},{},{}",
            record.tid, allocation.address, allocation.requested, allocation.stream
        )
    }
}
