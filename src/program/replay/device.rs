//! The model device of a replay: counts calls and bytes. Its segments lie far apart, so that a policy never joins two
//! segments by accident.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use base::cuda::DriverError;
use policy::device_memory::{Available, DeviceMemory, EventId, NoEvent};

pub struct ModelDevice {
    total: u64,
    /// The size of a granule; `None` if the device has no virtual memory management.
    granularity: Option<u64>,
    held: Cell<u64>,
    peak: Cell<u64>,
    calls: Cell<u64>,
    /// How many requests of the job have come.
    requests: Cell<u64>,
    next: Cell<u64>,
    /// Sizes of segments by first address, or by handle.
    segments: RefCell<HashMap<u64, u64>>,
}

/// The least distance between two segments, which is larger than any rounding of a policy.
const GAP: u64 = 1 << 32;
/// The granularity of current GPUs in bytes.
const GRANULARITY: u64 = 2 << 20;

impl ModelDevice {
    pub fn new(total: u64) -> Self {
        ModelDevice {
            total,
            granularity: Some(GRANULARITY),
            held: Cell::new(0),
            peak: Cell::new(0),
            calls: Cell::new(0),
            requests: Cell::new(0),
            next: Cell::new(GAP),
            segments: RefCell::default(),
        }
    }

    pub fn peak(&self) -> u64 {
        self.peak.get()
    }

    pub fn calls(&self) -> u64 {
        self.calls.get()
    }

    /// The job makes a request.
    pub fn requested(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    fn called(&self) {
        self.calls.set(self.calls.get() + 1);
    }

    /// Takes `bytes` of the device without making a segment, for a model that maps memory itself.
    pub fn take(&self, bytes: u64) -> Result<(), DriverError> {
        self.called();
        if bytes > self.total - self.held.get() {
            return Err(DriverError::OUT_OF_MEMORY);
        }
        self.held.set(self.held.get() + bytes);
        self.peak.set(self.peak.get().max(self.held.get()));
        Ok(())
    }

    pub fn give(&self, bytes: u64) {
        self.called();
        self.held.set(self.held.get() - bytes);
    }

    /// Returns an unused address for `bytes`, far from all earlier addresses.
    pub fn place(&self, bytes: u64) -> u64 {
        let address = self.next.get();
        self.next
            .set(address.saturating_add(bytes).saturating_add(GAP).next_multiple_of(GAP));
        address
    }

    /// Gives a segment or physical memory back, named by first address or handle.
    pub fn give_back(&self, name: u64) -> Result<(), DriverError> {
        let size = self
            .segments
            .borrow_mut()
            .remove(&name)
            .ok_or(DriverError::INVALID_VALUE)?;
        self.give(size);
        Ok(())
    }
}

impl DeviceMemory for ModelDevice {
    fn allocate(&self, size: u64) -> Result<u64, DriverError> {
        self.take(size)?;
        let address = self.place(size);
        self.segments.borrow_mut().insert(address, size);
        Ok(address)
    }

    fn free(&self, address: u64, _size: u64) -> Result<(), DriverError> {
        self.give_back(address)
    }

    fn is_capturing(&self) -> bool {
        false
    }

    fn record_event(&self, _stream: u64) -> Result<EventId, NoEvent> {
        Ok(EventId(self.requests.get()))
    }

    fn record_all(&self) -> Result<Vec<EventId>, NoEvent> {
        self.record_event(0).map(|event| vec![event])
    }

    /// An event is done when the next request comes.
    fn event_is_done(&self, event: EventId) -> bool {
        event.0 < self.requests.get()
    }

    fn forget_event(&self, _event: EventId) {}

    fn available(&self) -> Result<Available, DriverError> {
        Ok(Available {
            free: self.total - self.held.get(),
            total: self.total,
        })
    }

    fn granularity(&self) -> Option<u64> {
        self.granularity
    }

    fn reserve(&self, size: u64, _alignment: u64) -> Result<u64, DriverError> {
        self.called();
        Ok(self.place(size))
    }

    fn create(&self, size: u64) -> Result<u64, DriverError> {
        self.allocate(size)
    }

    fn release(&self, handle: u64, _size: u64) -> Result<(), DriverError> {
        self.give_back(handle)
    }

    fn map(&self, _address: u64, _size: u64, _handle: u64) -> Result<(), DriverError> {
        self.called();
        Ok(())
    }

    fn unmap(&self, _address: u64, _size: u64) -> Result<(), DriverError> {
        self.called();
        Ok(())
    }

    fn allow_access(&self, _address: u64, _size: u64) -> Result<(), DriverError> {
        self.called();
        Ok(())
    }

    fn mapped(&self, _address: u64, _size: u64, _again: bool) {}

    fn unmapped(&self, _address: u64, _size: u64, _again: bool) {}

    fn no_virtual_memory(&self, _why: DriverError) {}
}
