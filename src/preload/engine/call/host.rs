//! Host memory that is pinned or registered.

use std::ffi::c_void;

use crate::engine::Call;
use crate::engine::call::booking;
use crate::engine::state::allocation::Key;
use crate::engine::state::location::Location;
use base::api::Class;
use base::cuda::CudaResult;

impl Call {
    /// Host memory; it dies with the context that it was allocated in.
    pub fn obtain_host(
        &self,
        size: u64,
        ask: impl Fn() -> CudaResult,
        address: impl FnOnce() -> *mut c_void,
    ) -> CudaResult {
        let context = Location::current().map_or(0, |location| location.context);
        let location = Location {
            context,
            ..Location::HOST
        };
        self.obtain(Class::Host, Some(location), size, ask, || {
            let key = Key::Address(address() as u64);
            (key, booking::entry(Class::Host, location, size, size))
        })
    }

    pub fn register_host(&self, address: *mut c_void, size: u64, ask: impl Fn() -> CudaResult) -> CudaResult {
        self.obtain(Class::HostRegistered, Some(Location::HOST), size, ask, || {
            let key = Key::Registered(address as u64);
            (key, booking::entry(Class::HostRegistered, Location::HOST, size, size))
        })
    }
}
