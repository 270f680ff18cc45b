//! How the job came by our functions: counted where a look-up hands one out, which may be long before an engine runs, and
//! in places where nothing may be locked or allocated. So the counts are plain atomics; a journal shows them from its
//! beginning and after every look-up since.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Engine;
use base::api::Api;
use base::api::FIRST_RUNTIME_API;
use journal::format::{MAX_ROUTES, Route, RouteEntry};

static HANDED_OUT: [RouteEntry; MAX_ROUTES] = [const {
    RouteEntry {
        handed_out: AtomicU64::new(0),
        driver: AtomicU64::new(0),
        runtime: AtomicU64::new(0),
    }
}; MAX_ROUTES];

/// The job got one of our functions by `route`; `api` is what its calls are recorded under, if they are.
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
    if let Some(engine) = super::running() {
        engine.show_routes();
    }
}

impl Engine {
    pub(super) fn show_routes(&self) {
        if let Some(journal) = &self.journal {
            journal.routes(&HANDED_OUT);
        }
    }
}
