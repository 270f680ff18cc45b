//! The call that a thread is in: one user-visible call is one record, under the outermost API's name.
//!
//! A hooked runtime function notes its name and forwards. The runtime then calls a driver function of ours, which does
//! the work and finds the name here. While a driver function of ours runs, a call that the next layer makes to one of our
//! functions passes straight through. The thread-local is constant and has no destructor, so that it may be used at any
//! moment of a thread's life.

use std::cell::Cell;

use base::api::Api;

#[derive(Clone, Copy)]
struct Current {
    /// The runtime function that the application called, if it called one.
    runtime: Option<Api>,
    in_driver: bool,
}

thread_local! {
    static CURRENT: Cell<Current> = const { Cell::new(Current { runtime: None, in_driver: false }) };
}

/// A runtime function that is running; dropping this ends it.
pub struct RuntimeScope {
    before: Current,
}

/// Notes that the application called the runtime function `api`.
pub fn runtime(api: Api) -> RuntimeScope {
    let before = CURRENT.get();
    if before.runtime.is_none() && !before.in_driver {
        CURRENT.set(Current {
            runtime: Some(api),
            ..before
        });
    }
    RuntimeScope { before }
}

impl Drop for RuntimeScope {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// A driver function of ours that is running; dropping this ends it.
pub struct DriverScope {
    api: Api,
}

/// Enters a driver function. `None` inside another driver function of ours.
pub fn driver(api: Api) -> Option<DriverScope> {
    let current = CURRENT.get();
    if current.in_driver {
        return None;
    }
    CURRENT.set(Current {
        in_driver: true,
        ..current
    });
    Some(DriverScope {
        api: current.runtime.unwrap_or(api),
    })
}

impl DriverScope {
    pub fn api(&self) -> Api {
        self.api
    }
}

impl Drop for DriverScope {
    fn drop(&mut self) {
        CURRENT.set(Current {
            in_driver: false,
            ..CURRENT.get()
        });
    }
}

/// A forked child is in no call, whatever its parent's thread was doing.
pub fn reset() {
    CURRENT.set(Current {
        runtime: None,
        in_driver: false,
    });
}
