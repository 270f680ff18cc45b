//! Counts by which route (`dlsym`, `cuGetProcAddress` ...) the job obtained our functions.
//!
//! A function can be looked up long before an engine runs, and in places where nothing may be locked or allocated. So the
//! counts are plain atomics. A journal shows them from its beginning, and again after every look-up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::process;
use super::state::records::Recorder;
use base::api::Api;
use base::api::FIRST_RUNTIME_API;
use journal::format::{MAX_ROUTES, RouteEntry};

pub use journal::format::Route;

static HANDED_OUT: [RouteEntry; MAX_ROUTES] = [const {
    RouteEntry {
        handed_out: AtomicU64::new(0),
        driver: AtomicU64::new(0),
        runtime: AtomicU64::new(0),
    }
}; MAX_ROUTES];

/// The job obtained one of our functions by `route`; `api` is what its calls are recorded under, if they are recorded.
pub fn handed_out(route: Route, api: Option<Api>) {
    let entry = &HANDED_OUT[route as usize];
    entry.handed_out.fetch_add(1, Relaxed);
    if let Some(number) = api.map(Api::number) {
        let (word, bit) = match number.checked_sub(FIRST_RUNTIME_API) {
            Some(bit) => (&entry.runtime, bit),
            None => (&entry.driver, number),
        };
        word.fetch_or(1u64.checked_shl(bit.into()).unwrap_or(0), Relaxed);
    }
    if let Some(engine) = process::running() {
        show(&engine.state.records);
    }
}

/// Shows the counts in the journal.
pub fn show(records: &Recorder) {
    if let Some(journal) = records.journal() {
        journal.routes(&HANDED_OUT);
    }
}
