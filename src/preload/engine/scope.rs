//! One user-visible call is one record, under the outermost API's name.
//!
//! A runtime function notes its name and forwards; the driver function that the runtime then calls does the work and
//! finds the name here. While a driver function of ours is at work, calls that come back to us from the layer below
//! are that layer's own and pass straight through. The thread-local is constant and has no destructor: it may be
//! touched at any moment of a thread's life.

use std::cell::Cell;

use base::api::Api;

#[derive(Clone, Copy)]
struct Current {
    /// What the application called, where it called a runtime function.
    runtime: Option<Api>,
    in_driver: bool,
}

thread_local! {
    static CURRENT: Cell<Current> = const { Cell::new(Current { runtime: None, in_driver: false }) };
}

/// A runtime function under way; dropping it ends it.
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

/// A driver function under way; dropping it ends it.
pub struct DriverScope {
    api: Api,
}

/// Enters a driver function; `None` inside another one.
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

/// A forked child begins with no call under way, whatever its parent's thread was doing.
pub fn reset() {
    CURRENT.set(Current {
        runtime: None,
        in_driver: false,
    });
}
