//! The requests of a job that failed for lack of memory, each counted once.
//!
//! Frameworks ask again: PyTorch gives its cached memory back after a failure and repeats the request. So a repeated
//! request of a thread is the same failure, if the thread got no memory in between. Whether a failure ended the job is
//! not in the journal. But a job that went on, for example with a smaller batch, allocated after it.

use journal::format::{Event, Record};

const OUT_OF_MEMORY: i32 = 2;

/// Whether a call with this result failed for lack of memory.
pub fn is_out_of_memory(result: i32) -> bool {
    result == OUT_OF_MEMORY
}

/// A request that failed for lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    pub time_ns: u64,
    pub api: u16,
    pub device: i16,
    pub tid: u32,
    pub requested: u64,
    /// Bytes that the process had obtained on the device when it failed.
    pub held: u64,
    /// How often it was asked for.
    pub tries: u64,
    /// How many allocations succeeded after it.
    pub went_on: u64,
}

/// All such requests of a job: their number, and the last of them.
#[derive(Default)]
pub struct OutOfMemories {
    pub count: u64,
    last: Option<OutOfMemory>,
}

impl OutOfMemories {
    /// `held`: bytes that the process has obtained on the record's device.
    pub(super) fn apply(&mut self, record: &Record, held: u64) {
        match (record.event, &mut self.last) {
            (Event::Alloc(_), Some(last)) => last.went_on += 1,
            (Event::AllocFailed { requested, result, .. }, last) if is_out_of_memory(result) => {
                let failed = OutOfMemory {
                    time_ns: record.time_ns,
                    api: record.api.number(),
                    device: record.device,
                    tid: record.tid,
                    requested,
                    held,
                    tries: 1,
                    went_on: 0,
                };
                match last {
                    Some(last) if last.is_repeated_by(&failed) => {
                        *last = OutOfMemory {
                            tries: last.tries + 1,
                            ..failed
                        }
                    }
                    last => {
                        *last = Some(failed);
                        self.count += 1;
                    }
                }
            }
            _ => {}
        }
    }

    pub fn last(&self) -> Option<&OutOfMemory> {
        self.last.as_ref()
    }
}

impl OutOfMemory {
    fn is_repeated_by(&self, next: &OutOfMemory) -> bool {
        let what = |failed: &OutOfMemory| (failed.api, failed.device, failed.tid, failed.requested);
        self.went_on == 0 && what(self) == what(next)
    }
}
