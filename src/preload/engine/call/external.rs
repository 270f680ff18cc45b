//! Memory of another process or API that is made visible here. It is recorded, but it is not memory of this process.

use crate::engine::Call;
use crate::engine::call::booking;
use crate::engine::state::allocation::{Allocation, Key};
use crate::engine::state::location::Location;
use base::api::Class;
use base::cuda::CudaResult;

impl Call {
    /// Books imported memory. `name` reads the address or handle that a successful `ask` wrote, and `size` finds its
    /// bytes.
    pub fn import(
        &self,
        name: impl FnOnce() -> u64,
        key: impl FnOnce(u64) -> Key,
        size: impl FnOnce(u64) -> u64,
        ask: impl Fn() -> CudaResult,
    ) -> CudaResult {
        let location = Location::current();
        self.obtain(Class::Imported, location, 0, ask, || {
            let name = name();
            let bytes = size(name);
            let location = location.unwrap_or(Location::HOST);
            (
                key(name),
                Allocation {
                    allocated: bytes,
                    takes_nothing: true,
                    ..booking::entry(Class::Imported, location, bytes, 0)
                },
            )
        })
    }
}
