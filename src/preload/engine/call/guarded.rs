//! Requests that the guard refuses (`state/guards.rs`): counted, recorded and told, and nobody is asked for memory.

use std::ffi::CStr;

use base::say::warn;

use crate::engine::Call;
use crate::engine::call::out_of_memory::which;
use crate::engine::process::running;
use crate::engine::scope;
use crate::engine::state::failures::Due;
use crate::engine::state::location::Location;
use base::api::{Api, Class, is_of_host_guard};
use base::cancellation::Uncancelled;
use base::cuda::{CudaResult, DriverError, HOST_DEVICE};
use base::shortage::{Guard, Shortage};
use base::units::size as in_units;
use journal::format::Event;

impl Call {
    /// Refuses a request that is too large to be meant. The result is that of a driver without memory.
    #[inline]
    pub(super) fn pass_guard(&self, class: Class, location: Location, size: u64) -> CudaResult {
        match self.engine.state.guards.refuses(location.device, class, size) {
            None => Ok(()),
            Some(guard) => Err(self.refuse(guard, class, location.device, size)),
        }
    }

    #[cold]
    fn refuse(&self, guard: Guard, class: Class, device: i16, size: u64) -> DriverError {
        let _uncancelled = Uncancelled::begin();
        let state = self.engine.state;
        // The journal describes each device that the job used.
        self.engine.measure_if_due(device);
        state.ledger.failed(device, class);
        let count = state.guards.count(device);
        let shortage = Shortage {
            requested: size,
            result: DriverError::OUT_OF_MEMORY.0,
            guard: Some(guard),
            ..Shortage::default()
        };
        if let Some(due) = self.guard_is_to_be_told(device, size, count) {
            self.tell_refusal(device, size, &shortage, due);
        }
        let event = Event::AllocFailed {
            class: class.into(),
            requested: size,
            result: shortage.result,
            over_limit: false,
            guard: Some(guard),
        };
        state.records.write(event.encode(self.api(), device));
        DriverError::OUT_OF_MEMORY
    }

    /// Of repeated requests only the first is told: nothing that a framework gives back helps them.
    fn guard_is_to_be_told(&self, device: i16, size: u64, count: u64) -> Option<Due> {
        match device {
            HOST_DEVICE => count.is_power_of_two().then_some(Due { count, tries: 1 }),
            device => self.is_to_be_told(device, size).filter(|due| due.tries == 1),
        }
    }

    fn tell_refusal(&self, device: i16, size: u64, shortage: &Shortage, due: Due) {
        let (engine, asked) = (self.engine, in_units(size));
        let (where_, on) = match device {
            HOST_DEVICE => ("the host".to_owned(), "of the host".to_owned()),
            device => (format!("GPU {device}"), format!("on GPU {device}")),
        };
        warn!(
            "Out of memory error on {where_}. Cannot allocate {asked} memory {on}: the library's guard refused this \
             request{}{}\n    Refused by: the guard.\n    Verdict: {}.{}",
            which(due.count, due.tries),
            self.failed_line(&asked, &where_),
            shortage.explanation(),
            engine.see(),
        );
    }
}

/// Records that `libvramshim_hostguard.so` refused `size` bytes of host memory to `call`, because of a bound of `bound` bytes: a
/// failed request, without a stack.
///
/// This runs inside `malloc`, so nothing here allocates or writes a message. The journal's only lock is that of its growth:
/// a signal handler that interrupts a call of ours must not wait for it, so nothing is written then.
pub fn refused_by_host_guard(call: &CStr, size: u64, bound: u64) {
    let _uncancelled = Uncancelled::begin();
    let named = |api: &&Api| is_of_host_guard(api.number()) && api.name().as_bytes() == call.to_bytes();
    let Some(&api) = Api::ALL.iter().find(named) else {
        return;
    };
    let Some(engine) = running().filter(|_| !scope::is_in_driver()) else {
        return;
    };
    engine.state.guards.count(HOST_DEVICE);
    let event = Event::AllocFailed {
        class: Class::Host.into(),
        requested: size,
        result: DriverError::OUT_OF_MEMORY.0,
        over_limit: false,
        guard: Some(Guard {
            bytes: bound,
            of_device: false,
        }),
    };
    if let Some(journal) = &engine.state.records.journal {
        journal.write(event.encode(api, HOST_DEVICE));
    }
}
