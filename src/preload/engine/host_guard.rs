//! Calls for host memory that `libvramshim_hostguard.so` refused. Each is a failed request of the journal, without a stack.
//!
//! This runs inside `malloc`, so nothing here allocates or writes a message. The journal's only lock is that of its growth:
//! a signal handler that interrupts a call of ours must not wait for it, so nothing is written then.

use std::ffi::CStr;

use base::api::{Api, Class, is_of_host_guard};
use base::cancellation::Uncancelled;
use base::cuda::{DriverError, HOST_DEVICE};
use base::shortage::Guard;
use journal::format::Event;

use super::{process, scope};

/// Records that `call` was refused `size` bytes, because of a bound of `bound` bytes.
pub fn refused(call: &CStr, size: u64, bound: u64) {
    let _uncancelled = Uncancelled::begin();
    let named = |api: &&Api| is_of_host_guard(api.number()) && api.name().as_bytes() == call.to_bytes();
    let Some(&api) = Api::ALL.iter().find(named) else {
        return;
    };
    let Some(engine) = process::running().filter(|_| !scope::is_in_driver()) else {
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
    if let Some(journal) = engine.state.records.journal() {
        journal.write(event.encode(api, HOST_DEVICE));
    }
}
