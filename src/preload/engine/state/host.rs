//! The memory of the host that this process holds: what is resident, what is pinned, and what the allocator says if it is
//! asked (`pools/heap.rs`). The keeper writes it into the journal from time to time, and the engine writes it at failures,
//! before a dump and at the end.
//!
//! Nothing here allocates or waits for the job.

use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use super::State;
use super::resident::resident_bytes;
use base::api::Api;
use base::cuda::HOST_DEVICE;
use base::sync::lock;
use journal::format::{Event, Heap, HostMemory, LARGEST_RANGE, RawRecord};

/// A change by more than this, and by more than a sixteenth, gets a record at the keeper's next look.
const CHANGE_BYTES: u64 = 64 << 20;
const CHANGE_SHARE: u64 = 16;
/// Without a change there is a record after this time.
const LONGEST: Duration = Duration::from_secs(60);
/// An older answer of the allocator is not told.
const FRESH: Duration = Duration::from_secs(10);

/// What the allocator last said.
pub struct Host {
    asks_heap: bool,
    heap: Mutex<Option<(Instant, Heap)>>,
}

/// The last record that the keeper wrote.
#[derive(Default)]
pub struct HostWatch(Option<(Instant, HostMemory)>);

impl Host {
    /// `asks_heap`: the user wants the allocator to be asked.
    pub fn new(asks_heap: bool) -> Host {
        Host {
            asks_heap,
            heap: Mutex::default(),
        }
    }

    pub fn asks_heap(&self) -> bool {
        self.asks_heap
    }

    pub fn set_heap(&self, heap: Heap) {
        if heap.allocated.max(heap.mapped) <= LARGEST_RANGE {
            *lock(&self.heap) = Some((Instant::now(), heap));
        }
    }

    /// What the allocator said of late; `None` too while another caller looks. A signal handler that ends the process asks,
    /// and may have interrupted that one.
    pub fn heap(&self) -> Option<Heap> {
        let known = match self.heap.try_lock() {
            Ok(known) => *known,
            Err(TryLockError::Poisoned(poisoned)) => *poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => None,
        };
        let (at, heap) = known?;
        (at.elapsed() <= FRESH).then_some(heap)
    }
}

/// Whether so much changed that it is worth a record.
fn differs(before: u64, now: u64) -> bool {
    before.abs_diff(now) > CHANGE_BYTES.max(before / CHANGE_SHARE)
}

impl HostWatch {
    fn is_due(&self, now: Instant, memory: HostMemory) -> bool {
        self.0.is_none_or(|(at, before)| {
            now.duration_since(at) >= LONGEST
                || differs(before.resident, memory.resident)
                || differs(before.pinned, memory.pinned)
                || before.heap.is_some() != memory.heap.is_some()
        })
    }
}

impl State {
    /// What the process holds of the host's memory; `None` if the kernel does not say.
    pub fn host_memory(&self) -> Option<HostMemory> {
        let resident = resident_bytes()?;
        let pinned = self.ledger.readings(HOST_DEVICE, None).allocated.current;
        Some(HostMemory {
            resident,
            pinned,
            heap: self.host.heap(),
        })
    }

    /// The record of what the process holds of the host's memory, if it uses a device and a journal is written.
    fn host_record(&self) -> Option<RawRecord> {
        self.records.path()?;
        self.measurements.used_devices().next()?;
        let memory = self.host_memory()?;
        Some(Event::Host(memory).encode(Api::Policy, HOST_DEVICE))
    }

    /// Writes down what the process holds of the host's memory, if it uses a device.
    pub fn note_host_memory(&self) {
        if let Some(record) = self.host_record() {
            self.records.write(record);
        }
    }

    /// The same at the end of the process, which may come in a signal handler: waits for no lock.
    pub fn note_host_memory_last(&self) {
        if let (Some(record), Some(journal)) = (self.host_record(), self.records.journal()) {
            journal.write_last(record);
        }
    }

    /// The keeper looks: writes the same down if it has changed much, or was not written for long. A look takes no slot of a
    /// full journal.
    pub fn look_at_host_memory(&self, watch: &mut HostWatch) {
        if !self.records.is_complete() {
            return;
        }
        let (now, memory) = (Instant::now(), self.host_memory());
        if let Some(memory) = memory.filter(|&memory| watch.is_due(now, memory)) {
            watch.0 = Some((now, memory));
            self.records.note(HOST_DEVICE, Event::Host(memory));
        }
    }
}

/// The memory of this machine; 0 if the kernel does not say. A control group may allow less.
pub fn machine_bytes() -> u64 {
    // SAFETY: `sysinfo` is plain data, valid if all zero.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a variable of this frame.
    match unsafe { libc::sysinfo(&mut info) } {
        0 => (info.totalram as u64).saturating_mul(u64::from(info.mem_unit)),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_due_after_a_change_or_a_while() {
        let of = |resident, pinned| HostMemory {
            resident,
            pinned,
            heap: None,
        };
        let (start, gib) = (Instant::now(), 1 << 30);
        let mut watch = HostWatch::default();
        assert!(watch.is_due(start, of(gib, 0)));
        watch.0 = Some((start, of(gib, 0)));
        assert!(!watch.is_due(start, of(gib + CHANGE_BYTES, 0)));
        assert!(watch.is_due(start, of(gib + CHANGE_BYTES + 1, 0)));
        assert!(watch.is_due(start, of(gib - CHANGE_BYTES - 1, 0)));
        assert!(watch.is_due(start, of(gib, CHANGE_BYTES + 1)));
        assert!(watch.is_due(start + LONGEST, of(gib, 0)));
        watch.0 = Some((start, of(64 * gib, 0)));
        assert!(!watch.is_due(start, of(67 * gib, 0)), "less than a sixteenth");
    }

    #[test]
    fn an_answer_that_cannot_be_is_not_kept() {
        let host = Host::new(true);
        let heap = |mapped| Heap {
            allocator: journal::format::Allocator::Glibc,
            allocated: 0,
            mapped,
        };
        host.set_heap(heap(LARGEST_RANGE + 1));
        assert_eq!(host.heap(), None);
        host.set_heap(heap(7));
        assert_eq!(host.heap(), Some(heap(7)));
    }
}
