//! Enters allocations and frees into ledger, account and journal, whichever family of functions they come from.

use crate::engine::state::allocation::{Allocation, Key};
use crate::engine::state::limits::Grant;
use crate::engine::state::location::Location;
use crate::engine::state::records;
use crate::engine::{Call, Engine};
use crate::next;
use base::api::{Api, Class};
use base::cancellation::Uncancelled;
use base::cuda::{CudaResult, DriverError, HOST_DEVICE, result_code};
use base::shortage::Allowance;
use journal::format::Event;
use journal::writer::Claim;
use quota::Refusal;

/// The ledger's entry for `requested` bytes that took `reserved` bytes from the next layer.
pub fn entry(class: Class, location: Location, requested: u64, reserved: u64) -> Allocation {
    let Location { device, context } = location;
    Allocation {
        class,
        device,
        context,
        requested,
        allocated: reserved,
        takes_nothing: false,
    }
}

/// The same for bytes that take nothing from the next layer: they lie in a pool of the driver, or are another process's.
pub fn entry_elsewhere(class: Class, location: Location, bytes: u64) -> Allocation {
    Allocation {
        takes_nothing: true,
        ..entry(class, location, bytes, bytes)
    }
}

impl Engine {
    /// Charges `bytes` of a device, if need be after idle memory of the pools was given back.
    pub(super) fn grant(&'static self, device: i16, bytes: u64) -> Result<Grant<'static>, Refusal> {
        let limits = &self.state.limits;
        if bytes > 0 && limits.of(device).is_some() {
            // What the driver holds for contexts is charged first.
            self.measure_if_due(device);
        }
        let ask = || {
            let refused = limits.grant(device, bytes);
            match refused.is_err() && self.refund_closed_descriptors(device, Api::Policy) > 0 {
                true => limits.grant(device, bytes),
                false => refused,
            }
        };
        self.pools.find_room(device, bytes, ask(), Result::is_err, ask)
    }
}

impl Call {
    /// The API that the application called: the outermost one.
    pub(super) fn api(&self) -> Api {
        self.scope.api
    }

    /// An error if every request for memory is refused, as `VRAMSHIM_STRICT` asks.
    pub(super) fn may_have_memory(&self) -> CudaResult {
        if self.engine.refuses {
            return Err(DriverError::NOT_PERMITTED);
        }
        Ok(())
    }

    /// Memory that `ask` obtains from the next layer: the bytes that were asked for, and the most that the next layer may
    /// take for them. `booked` makes the ledger's entry for it.
    pub(super) fn obtain(
        &self,
        class: Class,
        location: Option<Location>,
        (size, most): (u64, u64),
        ask: impl Fn() -> CudaResult,
        booked: impl FnOnce() -> (Key, Allocation),
    ) -> CudaResult {
        self.may_have_memory()?;
        if let Some(location) = location {
            self.pass_guard(class, location, size)?;
        }
        // Stream-ordered memory is charged when the driver's pool takes it, not when the job does.
        let charged = match location {
            Some(location) if class.is_device_memory() && class != Class::Async => {
                self.engine.grant(location.device, most)
            }
            _ => self.engine.grant(HOST_DEVICE, 0),
        };
        let Ok(mut grant) = charged else {
            self.failed(class, location, size, DriverError::OUT_OF_MEMORY, None);
            return Err(DriverError::OUT_OF_MEMORY);
        };
        let of_device = if class.is_device_memory() { size } else { 0 };
        let ask = || next::of_request(ask(), of_device);
        let mut result = ask();
        if let Some(location) = location {
            let lacks_memory = |result: &CudaResult| *result == Err(DriverError::OUT_OF_MEMORY);
            let pools = &self.engine.pools;
            result = pools.find_room(location.device, most, result, lacks_memory, ask);
        }
        match result {
            Ok(()) => {
                let (key, allocation) = booked();
                grant.spend(allocation.reserved());
                self.book(key, allocation);
            }
            Err(problem) => {
                drop(grant);
                self.failed(class, location, size, problem, None);
            }
        }
        result
    }

    /// Enters an allocation of the next layer into ledger and journal.
    pub(super) fn book(&self, key: Key, allocation: Allocation) {
        let state = self.engine.state;
        state.ledger.expect(key);
        let record = records::obtained(self.api(), key, &allocation);
        state.records.write_while(record, || {
            if let Some(stale) = state.ledger.insert(key, allocation) {
                state.refund(&stale);
            }
        });
        state.measurements.device_grew(allocation.device);
        self.engine.measure_if_due(allocation.device);
    }

    /// Counts and records a request that failed, and explains it on stderr if memory ran out. `allowance` refused it if
    /// that is a limit which only the caller knows.
    pub(super) fn failed(
        &self,
        class: Class,
        location: Option<Location>,
        size: u64,
        problem: DriverError,
        allowance: Option<Allowance>,
    ) {
        let _uncancelled = Uncancelled::begin();
        let state = self.engine.state;
        let device = location.map_or(HOST_DEVICE, |location| location.device);
        self.engine.measure_if_due(device);
        state.ledger.failed(device, class);
        let mut over_limit = false;
        if location.is_some() && class.is_device_memory() {
            if problem == DriverError::OUT_OF_MEMORY {
                over_limit = allowance.is_some()
                    || state.limits.refused(device).is_some()
                    || state.limits.would_refuse(device, size);
                self.explain_out_of_memory(device, size, over_limit, allowance);
            } else if problem.is_of_driver() {
                self.explain_driver_failure(device, size, problem);
            }
        } else if device == HOST_DEVICE && state.failures.takes_measurement() {
            state.note_host_memory();
        }
        let event = Event::AllocFailed {
            class: class.into(),
            requested: size,
            result: problem.0,
            over_limit,
            guard: None,
        };
        state.records.write(event.encode(self.api(), device));
        state.limits.told();
    }

    /// Gives back the allocation that `key` names. Before the memory is free for other threads, its entry leaves the
    /// ledger and its record takes a slot in the journal.
    pub fn give_back(&self, key: Key, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        self.give_back_claimed(None, key, ask, |_, refusal| Err(refusal))
    }

    /// As `give_back`, with the slot in the journal that was claimed already, if one was. If `ask` fails, `otherwise` is
    /// told the error and the allocation, if the ledger has it, and may free it in another way.
    pub(super) fn give_back_claimed(
        &self,
        claim: Option<Claim>,
        key: Key,
        ask: impl FnOnce() -> CudaResult,
        otherwise: impl FnOnce(Option<&Allocation>, DriverError) -> CudaResult,
    ) -> CudaResult {
        let state = self.engine.state;
        let free = state.ledger.begin_free(key);
        let claim = claim.or_else(|| free.taken.and_then(|_| state.records.claim()));
        let Some(allocation) = free.taken else {
            let result = ask().or_else(|refusal| otherwise(None, refusal));
            if result.is_ok()
                && key.value() != 0
                && let Some(journal) = &state.records.journal
            {
                journal.unknown_free();
            }
            // A claimed slot must be filled.
            if result.is_err() || claim.is_some() {
                self.free_failed(claim, key, result);
            }
            return result;
        };
        let result = ask().or_else(|refusal| otherwise(Some(&allocation), refusal));
        match result {
            Ok(()) => {
                state.refund(&allocation);
                let record = records::freed(self.api(), key, &allocation, false);
                state.records.commit(claim, record);
            }
            Err(_) => {
                state.ledger.insert(key, allocation);
                self.free_failed(claim, key, result);
            }
        }
        result
    }

    /// Records a free that failed, or that the ledger knows nothing of.
    pub(super) fn free_failed(&self, claim: Option<Claim>, key: Key, result: CudaResult) {
        let _uncancelled = Uncancelled::begin();
        let records = &self.engine.state.records;
        let claim = claim.or_else(|| records.claim());
        let device = Location::device_here();
        let event = Event::FreeFailed {
            address: key.value(),
            segment: None,
            result: result_code(result),
        };
        records.commit(claim, event.encode(self.api(), device));
    }
}
