//! Measures a device: writes down what the next layer (`cuMemGetInfo`) and NVML say of it, beside the ledger's figure.
//!
//! NVML is asked only if a limit or a shared account is in force. What NVML says that the process holds, less what the
//! ledger has reserved, is what the driver holds for the process's contexts. It is charged to the account. If NVML does not
//! tell it, what was used of the device before and after is compared, and else a bound is assumed, when there is a context.

use base::cancellation::Uncancelled;
use base::say::warn;

use crate::engine::Engine;
use crate::engine::state::limits::{describe, uuid};
use crate::engine::state::listed::on_device;
use crate::engine::state::measurements::{Due, now_ms};
use crate::next::{self, nvml};
use base::api::Api;
use base::cuda::MAX_DEVICES;
use base::sync::lock;
use base::units::size;
use journal::format::{ContextMeasure, Device, Event, LimitSource, Teller};
use quota::DeviceQuota;

/// How often NVML's figure for the process is read, until it can be compared with the ledger. It cannot if a thread
/// obtained or returned memory meanwhile.
const ATTEMPTS: u32 = 4;

/// The most that the driver takes for the few bytes of a wait beside captures: a page. No account counts them.
const MOST_OF_A_WAIT: u64 = 2 << 20;

impl Engine {
    /// A call of the job uses this device. Measures it if that is due.
    #[inline]
    pub(super) fn measure_if_due(&'static self, device: i16) {
        if self.state.measurements.may_be_due(device) {
            self.measure_due(device);
        }
    }

    #[cold]
    fn measure_due(&'static self, device: i16) {
        let _uncancelled = Uncancelled::begin();
        let state = self.state;
        match state.measurements.take_due(device, || state.captures.any_open()) {
            Some(Due::FirstUse) => {
                if let Some(total) = self.note_device(device) {
                    state.surges.device(device, total);
                }
                if let Some(journal) = &state.records.journal {
                    journal.software(&next::software::in_use());
                }
                let first = state.measurements.used_devices().count() == 1;
                for remark in state.limits.without_effect(device, first) {
                    warn!("{remark}");
                }
                self.show_life();
                self.take_orders();
                self.measure(device);
                self.note_context(device);
                if first {
                    state.note_host_memory();
                }
            }
            Some(Due::Growth) => self.measure(device),
            None => {}
        }
    }

    /// Writes down which device this is: the job uses it, or has a context there. Returns its bytes.
    pub(super) fn note_device(&self, device: i16) -> Option<u64> {
        let described = describe(device)?;
        let quota = self.state.limits.of(device);
        let limit = quota.and_then(|quota| quota.limit);
        self.state.records.journal.as_ref()?.device(&Device {
            ordinal: described.ordinal,
            total_memory: described.total,
            uuid: described.uuid,
            name: next::device_name(described.ordinal),
            limit,
            limit_source: quota
                .filter(|_| limit.is_some())
                .map_or(LimitSource::NotKnown, |quota| self.state.limits.source(quota)),
        });
        Some(described.total)
    }

    /// Measures a device now, unless a capture is open.
    pub(super) fn measure(&self, device: i16) {
        let state = self.state;
        if !(0..MAX_DEVICES as i16).contains(&device) || state.captures.any_open() {
            return;
        }
        state.measurements.measured_at(device, now_ms());
        self.book_what_the_driver_holds(device);
        let shown = state.shown_of(device);
        let (reserved, of_process) = match state.limits.of(device) {
            Some(quota) => self.measure_contexts(device, quota),
            None => (state.reserved(device), 0),
        };
        // A measurement takes no slot from an event of the job, and is not counted as a lost event.
        if !state.records.is_complete() {
            return;
        }
        let event = Event::Measured {
            mem_info: (shown.total > 0).then_some(shown),
            told_by: next_teller(),
            process_bytes: (of_process > 0).then_some(of_process),
            reserved,
        };
        state.records.note(device, event);
    }

    /// Writes down that a context of this device is used for the first time, and what was measured of it.
    fn note_context(&self, device: i16) {
        let quota = self.state.limits.of(device);
        let event = Event::ContextCreated {
            context: next::current_context().map_or(0, |context| context as u64),
            bytes: quota.map_or(0, DeviceQuota::context_bytes),
            measure: self.contexts_measured(device),
        };
        self.state.records.note(device, event);
    }

    /// Books what the driver's pools and launched graphs hold. Pools give memory back when a thread waits for a stream. A graph
    /// has its memory before the thread that launched it has booked it; NVML's figure would then count it as a context's.
    pub(super) fn book_what_the_driver_holds(&self, device: i16) {
        self.refresh_pools(Api::Policy);
        self.refund_closed_descriptors(device, Api::Policy);
        self.graphs.refresh(self.state, device, Api::Policy);
    }

    /// Measures a device whose context is gone. The next context is measured when it is used first.
    pub(super) fn measure_last(&self, device: i16) {
        if let Some(quota) = self.state.limits.of(device) {
            let mut listed = lock(&self.state.listed);
            if listed.context_gone() || listed.contexts.get(&device) != Some(&ContextMeasure::Nvml) {
                quota.set_context_bytes(0);
                listed.contexts.remove(&device);
            }
        }
        self.measure(device);
        self.state.measurements.measured_at(device, 0);
        self.state.measurements.device_grew(device);
    }

    /// Charges what the driver holds for this process besides what the ledger has reserved. Returns the ledger's figure
    /// and NVML's, which is 0 if NVML does not say.
    fn measure_contexts(&self, device: i16, quota: &DeviceQuota) -> (u64, u64) {
        for _ in 0..ATTEMPTS {
            let before = self.state.reserved(device);
            let seat = quota.seat();
            // Memory that another thread is obtaining or giving back appears in only one of the two figures.
            let in_flight = seat.held.saturating_sub(quota.context_bytes()) != before;
            let waits_ended = self.state.captures.waits_ended();
            let list = on_device(quota.uuid);
            let of_waits = MOST_OF_A_WAIT.saturating_mul(self.state.captures.waits_since(waits_ended));
            self.book_what_the_driver_holds(device);
            // An allocation or a free that came between changed the state of the seat.
            if !in_flight && quota.seat() == seat && self.state.reserved(device) == before {
                let mut listed = lock(&self.state.listed);
                let own = list.and_then(|list| listed.own(&list, before));
                let Some(of_process) = own.and_then(|own| own.bytes) else {
                    drop(listed);
                    self.estimate_contexts(device, quota);
                    return (before, 0);
                };
                // Without any bytes there is no context.
                listed
                    .contexts
                    .extend((of_process > 0).then_some((device, ContextMeasure::Nvml)));
                drop(listed);
                let (known, measured) = (quota.context_bytes(), of_process.saturating_sub(before));
                // Waits may explain this difference. After them the device is measured again.
                if measured < known || measured - known > of_waits {
                    quota.set_context_bytes(measured);
                }
                if of_waits > 0 {
                    self.state.measurements.device_grew(device);
                }
                return (before, of_process);
            }
        }
        // The other threads are too busy. The device is measured again at its next use.
        self.state.measurements.device_grew(device);
        (self.state.reserved(device), 0)
    }

    /// The job is about to retain a primary context. If that makes it, and no other thread has a context yet, what NVML says
    /// before tells later which process it lists is this one. Returns whether NVML was asked.
    pub(super) fn look_before_context(&self, device: i32) -> bool {
        let is_measured = || lock(&self.state.listed).contexts.contains_key(&(device as i16));
        let has_context = || next::current_device().is_ok() || next::is_primary_active(device) || is_measured();
        if !self.state.limits.quota.is_in_force || has_context() {
            return false;
        }
        let Some(uuid) = uuid(device as i16) else {
            return false;
        };
        let (list, used) = (on_device(uuid), nvml::used(uuid));
        let mut listed = lock(&self.state.listed);
        if let Some(list) = list {
            listed.look(&list);
        }
        listed.used_before.extend(used.map(|used| (device as i16, used)));
        true
    }

    /// The context is there.
    pub(super) fn look_after_context(&self, device: i16) {
        let used = uuid(device).and_then(nvml::used);
        let mut listed = lock(&self.state.listed);
        let before = listed.used_before.remove(&device);
        let grown = used.zip(before).and_then(|(used, before)| used.checked_sub(before));
        listed.grown.extend(grown.map(|grown| (device, grown)));
    }

    /// How the contexts of this process on a device were measured last.
    fn contexts_measured(&self, device: i16) -> ContextMeasure {
        let listed = lock(&self.state.listed);
        listed.contexts.get(&device).copied().unwrap_or_default()
    }

    /// Charges contexts that NVML does not tell, once: what the device has more in use than before, or else the bound.
    fn estimate_contexts(&self, device: i16, quota: &DeviceQuota) {
        let has_context = || next::current_device() == Ok(device.into()) || next::is_primary_active(device.into());
        if quota.context_bytes() > 0 || self.contexts_measured(device) == ContextMeasure::Assumed || !has_context() {
            return;
        }
        let grown = lock(&self.state.listed).grown.remove(&device);
        // Others may have allocated or freed meanwhile, so nothing and more than the bound are not believed.
        let (bytes, measure, how) = match grown.filter(|grown| (1..=quota.assumed_context).contains(grown)) {
            Some(grown) => (
                grown,
                ContextMeasure::MemInfo,
                "by which the device's used bytes grew when it was made",
            ),
            None => (
                quota.assumed_context,
                ContextMeasure::Assumed,
                "a bound that is assumed (VRAMSHIM_CONTEXT)",
            ),
        };
        quota.set_context_bytes(bytes);
        lock(&self.state.listed).contexts.insert(device, measure);
        warn!(
            "NVML does not tell what this process holds of device {device}: its context counts {} towards the limit, {how}. \
             What the driver takes later, such as for code, is outside the limit",
            size(bytes)
        );
    }
}

pub(super) fn next_teller() -> Teller {
    if next::shows_its_own_memory() {
        Teller::Layer
    } else {
        Teller::Driver
    }
}
