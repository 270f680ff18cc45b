//! How a hook enters the engine.

use std::cell::Cell;

use super::{Call, process, scope, start};
use base::api::Api;

/// Enters a driver function. `None` if the library stays out: it is inert in this process, or the next layer makes the
/// call while it serves a call of ours, which is counted already.
pub fn enter(api: Api) -> Option<Call> {
    let scope = scope::driver(api)?;
    Some(Call {
        engine: process::engine(start::at_fork, start::start)?,
        scope,
        stream: Cell::new(None),
    })
}

/// As `enter`, for functions that concern only memory that is booked already: they start no engine.
pub fn enter_running(api: Api) -> Option<Call> {
    let engine = process::running()?;
    Some(Call {
        engine,
        scope: scope::driver(api)?,
        stream: Cell::new(None),
    })
}

/// As `enter`, for questions whose answers a limit changes: without a limit they start no engine.
pub fn enter_if_limited(api: Api) -> Option<Call> {
    start::at_fork();
    match process::quota() {
        Some(quota) if quota.is_in_force() => enter(api),
        _ => enter_running(api),
    }
}
