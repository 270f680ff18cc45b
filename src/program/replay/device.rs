//! The model device of a replay. It counts bytes, and each call with its price. Its segments lie far apart, so that a
//! policy never joins two segments by accident.
//!
//! The device has a clock. It shows the time of the trace, plus what calls and waits took so far. The GPU is behind:
//! work is done `lag` after the host submitted it. The host submits work while the time of the trace passes, and none
//! while it calls the driver or waits. After a wait the GPU has caught up. From then on it falls behind by at most the
//! time of the trace that has passed, because it has no more work than the host submitted since.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use base::cuda::DriverError;
use policy::device_memory::{Available, DeviceMemory, EventId, NoEvent};
use prices::{Bill, Call, Prices};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doing {
    #[default]
    Allocates,
    Frees,
}

#[derive(Default)]
pub struct ModelDevice {
    pub total: u64,
    prices: Prices,
    /// How far the host runs ahead of the GPU.
    lag_ns: u64,
    held: Cell<u64>,
    peak: Cell<u64>,
    bill: RefCell<Bill>,
    doing: Cell<Doing>,
    /// How many requests and frees of the job have come.
    requests: Cell<u64>,
    /// The time of the latest request in the trace.
    trace_ns: Cell<u64>,
    /// When the host submitted its latest work, by the clock.
    submitted_ns: Cell<u64>,
    /// The time of the trace at the latest wait.
    waited_at_ns: Cell<u64>,
    next: Cell<u64>,
    next_event: Cell<u64>,
    /// By number, when an event is done: the time, and after how many requests.
    events: RefCell<HashMap<u64, (u64, u64)>>,
    /// Sizes of segments by first address, or by handle.
    segments: RefCell<HashMap<u64, u64>>,
    /// Sizes of mappings by first address.
    mappings: RefCell<BTreeMap<u64, u64>>,
}

/// The least distance between two segments, which is larger than any rounding of a policy.
const GAP: u64 = 1 << 32;
/// The granularity of current GPUs in bytes.
const GRANULARITY: u64 = 2 << 20;

impl ModelDevice {
    /// A device of `total` bytes, whose work is done so long after it was submitted.
    pub fn new(total: u64, prices: Prices, lag_ns: u64) -> Self {
        ModelDevice {
            total,
            prices,
            lag_ns,
            next: Cell::new(GAP),
            ..ModelDevice::default()
        }
    }

    pub fn peak(&self) -> u64 {
        self.peak.get()
    }

    pub fn bill(&self) -> Bill {
        *self.bill.borrow()
    }

    /// The job allocates or frees, at this time of the trace, which is not before that of the last call.
    pub fn requested(&self, doing: Doing, trace_ns: u64) {
        self.doing.set(doing);
        self.requests.set(self.requests.get() + 1);
        if self.trace_ns.replace(trace_ns) < trace_ns {
            self.submitted_ns.set(self.now_ns());
        }
    }

    fn now_ns(&self) -> u64 {
        self.trace_ns.get().saturating_add(self.bill.borrow().total_ns())
    }

    /// When the work is done that was submitted until now.
    fn done_ns(&self) -> u64 {
        let since_wait_ns = self.trace_ns.get() - self.waited_at_ns.get();
        self.submitted_ns.get().saturating_add(self.lag_ns.min(since_wait_ns))
    }

    pub fn wait(&self) {
        let takes_ns = self.done_ns().saturating_sub(self.now_ns());
        let mut bill = self.bill.borrow_mut();
        match self.doing.get() {
            Doing::Allocates => bill.waits_in_allocations += 1,
            Doing::Frees => bill.waits_in_frees += 1,
        }
        bill.waited_ns = bill.waited_ns.saturating_add(takes_ns);
        self.waited_at_ns.set(self.trace_ns.get());
    }

    fn called(&self, call: Call, size: u64) {
        self.called_often(call, size, 1);
    }

    /// `count` calls were made for `size` bytes each.
    fn called_often(&self, call: Call, size: u64, count: u64) {
        self.bill
            .borrow_mut()
            .add_many(call, self.prices.price_ns(call, size), count);
    }

    /// A call was made for the mappings in a range. Returns their first addresses.
    fn called_for_each(&self, call: Call, address: u64, size: u64) -> Result<Vec<u64>, DriverError> {
        let mappings = self.mappings.borrow();
        let inside = mappings.range(address..address.saturating_add(size));
        let prices = inside.clone().map(|(_, &size)| self.prices.price_ns(call, size));
        let (price_ns, starts) = (prices.fold(0, u64::saturating_add), inside.map(|(&start, _)| start));
        let starts: Vec<u64> = starts.collect();
        if starts.is_empty() {
            return Err(DriverError::INVALID_VALUE);
        }
        self.bill.borrow_mut().add(call, price_ns);
        Ok(starts)
    }

    /// Creates `count` handles of `size` bytes, or none, and maps them side by side. One call each creates and maps a handle,
    /// and one call gives access to all. The work does not depend on `count`, which a trace may make as large as it likes.
    pub fn add_pages(&self, count: u64, size: u64) -> Result<(), DriverError> {
        let fitting = count.min((self.total - self.held.get()) / size);
        self.called_often(Call::Create, size, fitting);
        let held = self.held.get() + fitting * size;
        self.peak.set(self.peak.get().max(held));
        if fitting < count {
            self.called(Call::Create, 0);
            self.called_often(Call::Release, size, fitting);
            return Err(DriverError::OUT_OF_MEMORY);
        }
        self.held.set(held);
        self.called_often(Call::Map, size, count);
        let access_ns = self.prices.price_ns(Call::SetAccess, size).saturating_mul(count);
        self.bill.borrow_mut().add(Call::SetAccess, access_ns);
        Ok(())
    }

    /// Unmaps and releases `count` handles of `size` bytes one by one. The caller got them from `add_pages`.
    pub fn give_pages(&self, count: u64, size: u64) {
        self.called_often(Call::Unmap, size, count);
        self.called_often(Call::Release, size, count);
        self.held.set(self.held.get() - count * size);
    }

    /// Takes `bytes` of the device. A call that is refused costs as much as a call for 0 bytes.
    fn take(&self, call: Call, bytes: u64) -> Result<u64, DriverError> {
        if bytes > self.total - self.held.get() {
            self.called(call, 0);
            return Err(DriverError::OUT_OF_MEMORY);
        }
        let name = self.place(bytes)?;
        self.called(call, bytes);
        self.held.set(self.held.get() + bytes);
        self.peak.set(self.peak.get().max(self.held.get()));
        self.segments.borrow_mut().insert(name, bytes);
        Ok(name)
    }

    fn give(&self, call: Call, name: u64) -> Result<(), DriverError> {
        let size = self.segments.borrow_mut().remove(&name);
        let size = size.ok_or(DriverError::INVALID_VALUE)?;
        self.called(call, size);
        self.held.set(self.held.get() - size);
        Ok(())
    }

    /// Gives a segment back. Waits for the GPU, as `cuMemFree` does.
    pub fn give_back(&self, address: u64) -> Result<(), DriverError> {
        self.wait();
        self.give(Call::Free, address)
    }

    /// Returns an unused address for `bytes`, far from all earlier addresses. Fails if the addresses are used up.
    fn place(&self, bytes: u64) -> Result<u64, DriverError> {
        let address = self.next.get();
        let end = address.checked_add(bytes).and_then(|end| end.checked_add(GAP));
        let next = end.and_then(|end| end.checked_next_multiple_of(GAP));
        self.next.set(next.ok_or(DriverError::OUT_OF_MEMORY)?);
        Ok(address)
    }
}

impl DeviceMemory for ModelDevice {
    fn allocate(&self, size: u64) -> Result<u64, DriverError> {
        self.take(Call::Allocate, size)
    }

    fn free(&self, address: u64, _size: u64) -> Result<(), DriverError> {
        self.give_back(address)
    }

    fn is_capturing(&self) -> bool {
        false
    }

    fn record_event(&self, _stream: u64) -> Result<EventId, NoEvent> {
        self.called(Call::RecordEvent, 0);
        let number = self.next_event.get();
        self.next_event.set(number + 1);
        let done = (self.done_ns(), self.requests.get());
        self.events.borrow_mut().insert(number, done);
        Ok(EventId(number))
    }

    fn record_all(&self) -> Result<Vec<EventId>, NoEvent> {
        self.record_event(0).map(|event| vec![event])
    }

    /// An event is done when its time has come, but not before the next request comes.
    fn event_is_done(&self, event: EventId) -> bool {
        self.called(Call::QueryEvent, 0);
        let is_done = |&(done_ns, requests): &(u64, u64)| requests < self.requests.get() && done_ns <= self.now_ns();
        self.events.borrow().get(&event.0).is_none_or(is_done)
    }

    fn forget_event(&self, event: EventId) {
        self.events.borrow_mut().remove(&event.0);
    }

    fn available(&self) -> Result<Available, DriverError> {
        Ok(Available {
            free: self.total - self.held.get(),
            total: self.total,
        })
    }

    fn granularity(&self) -> Option<u64> {
        Some(GRANULARITY)
    }

    fn reserve(&self, size: u64, _alignment: u64) -> Result<u64, DriverError> {
        self.called(Call::Reserve, size);
        self.place(size)
    }

    fn give_addresses_back(&self, _address: u64, size: u64) {
        self.called(Call::Unreserve, size);
    }

    fn create(&self, size: u64) -> Result<u64, DriverError> {
        self.take(Call::Create, size)
    }

    fn release(&self, handle: u64, _size: u64) -> Result<(), DriverError> {
        self.give(Call::Release, handle)
    }

    fn map(&self, address: u64, size: u64, _handle: u64) -> Result<(), DriverError> {
        self.called(Call::Map, size);
        self.mappings.borrow_mut().insert(address, size);
        Ok(())
    }

    fn unmap(&self, address: u64, size: u64) -> Result<(), DriverError> {
        for start in self.called_for_each(Call::Unmap, address, size)? {
            self.mappings.borrow_mut().remove(&start);
        }
        Ok(())
    }

    fn allow_access(&self, address: u64, size: u64) -> Result<(), DriverError> {
        self.called_for_each(Call::SetAccess, address, size).map(drop)
    }
}
