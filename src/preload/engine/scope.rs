//! The call that a thread is in: one user-visible call is one record, under the outermost API's name.
//!
//! A hooked runtime function notes its name and forwards. The runtime then calls a driver function of ours, which does
//! the work and finds the name here. While a driver function of ours runs, a call that the next layer makes to one of our
//! functions passes straight through. The thread-local is constant and has no destructor, so that it may be used at any
//! moment of a thread's life. A scope keeps its address, because in a library each look-up of a thread-local is a call.
//!
//! The outermost scope also keeps its thread from being cancelled, but for that of a tensor (`tensor`): two atomic operations
//! are much of what a tensor costs. Most tensors make no call that can end a cancelled thread. What does is uncancelled itself.

use std::cell::Cell;
use std::ptr::NonNull;

use base::api::Api;
use base::cancellation::Uncancelled;

#[derive(Clone, Copy)]
struct Current {
    /// The runtime function that the application called, if it called one.
    runtime: Option<Api>,
    in_driver: bool,
}

/// The application called nothing.
const NOWHERE: Current = Current {
    runtime: None,
    in_driver: false,
};

thread_local! {
    static CURRENT: Cell<Current> = const { Cell::new(NOWHERE) };
}

/// The variable of the calling thread. What has it stays in the thread, because it is not `Send`.
#[derive(Clone, Copy)]
struct OfThisThread(NonNull<Cell<Current>>);

impl OfThisThread {
    #[inline]
    fn find() -> OfThisThread {
        CURRENT.with(|current| OfThisThread(NonNull::from(current)))
    }

    #[inline]
    fn cell(&self) -> &Cell<Current> {
        // SAFETY: the variable has no destructor, so it lives as long as its thread, and only that thread has `self`.
        unsafe { self.0.as_ref() }
    }
}

/// A runtime function that is running; dropping this ends it.
pub struct RuntimeScope {
    current: OfThisThread,
    before: Current,
    /// `None` inside another scope.
    _uncancelled: Option<Uncancelled>,
}

/// Notes that the application called the runtime function `api`.
pub fn runtime(api: Api) -> RuntimeScope {
    let current = OfThisThread::find();
    let before = current.cell().get();
    let is_outermost = before.runtime.is_none() && !before.in_driver;
    if is_outermost {
        current.cell().set(Current {
            runtime: Some(api),
            ..before
        });
    }
    RuntimeScope {
        current,
        before,
        _uncancelled: is_outermost.then(Uncancelled::begin),
    }
}

impl Drop for RuntimeScope {
    fn drop(&mut self) {
        self.current.cell().set(self.before);
    }
}

/// A driver function of ours that is running; dropping this ends it.
pub struct DriverScope {
    current: OfThisThread,
    /// The API that the application called: the outermost one.
    pub api: Api,
    /// `None` inside a runtime function, and for a tensor.
    _uncancelled: Option<Uncancelled>,
}

/// Enters a driver function. `None` inside another driver function of ours.
#[inline]
pub fn driver(api: Api) -> Option<DriverScope> {
    enter(api, true)
}

/// As `driver`, for a request for a tensor and its free: the thread can be cancelled.
#[inline]
pub fn tensor(api: Api) -> Option<DriverScope> {
    enter(api, false)
}

#[inline]
fn enter(api: Api, is_uncancelled: bool) -> Option<DriverScope> {
    let current = OfThisThread::find();
    let before = current.cell().get();
    if before.in_driver {
        return None;
    }
    current.cell().set(Current {
        in_driver: true,
        ..before
    });
    Some(DriverScope {
        current,
        api: before.runtime.unwrap_or(api),
        _uncancelled: (is_uncancelled && before.runtime.is_none()).then(Uncancelled::begin),
    })
}

/// Whether a driver function of ours runs in this thread.
pub fn is_in_driver() -> bool {
    CURRENT.get().in_driver
}

impl Drop for DriverScope {
    fn drop(&mut self) {
        let current = self.current.cell();
        current.set(Current {
            in_driver: false,
            ..current.get()
        });
    }
}

/// A forked child is in no call, whatever its parent's thread was doing.
pub fn reset() {
    CURRENT.set(NOWHERE);
}
