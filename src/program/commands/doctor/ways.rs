//! How the calls of a process reached the library, as its journal has it.

use std::collections::BTreeMap;

use base::api::{Api, FIRST_RUNTIME_API};
use journal::format::Route;
use serde::Serialize;

use crate::analysis::job::Job;
use crate::analysis::names::api_name;
use crate::render::format::{count, times};

/// The most functions that are named.
const MOST_NAMES: usize = 6;
/// `Api` numbers from this one on stand for functions that are not part of CUDA.
const FIRST_OTHER_API: u16 = 300;

/// How the calls of one process reached the library.
#[derive(Default, Serialize)]
pub struct Ways {
    pub runtime_calls: u64,
    driver_calls: u64,
    pluggable_allocator_calls: u64,
    /// APIs whose functions were called but never looked up: the loader bound the process to the exported symbols.
    direct: Vec<String>,
    /// How many functions each kind of look-up (such as `dlsym`) handed out, if any.
    pub handed_out: BTreeMap<&'static str, u64>,
}

impl Ways {
    pub fn in_journal(job: &Job) -> Ways {
        let routes = &job.header.routes;
        let mut ways = Ways::default();
        for (route, handed_out) in Route::ALL.into_iter().zip(routes) {
            if handed_out.times > 0 {
                ways.handed_out.insert(route_name(route), handed_out.times);
            }
        }
        for (&api, totals) in &job.ledger.apis {
            match api {
                0..FIRST_RUNTIME_API => ways.driver_calls += totals.calls,
                FIRST_RUNTIME_API..FIRST_OTHER_API => ways.runtime_calls += totals.calls,
                _ => {
                    if let Some(Api::vramshim_torch_alloc | Api::vramshim_torch_free) = Api::from_number(api) {
                        ways.pluggable_allocator_calls += totals.calls;
                    }
                }
            }
            if api < FIRST_OTHER_API && !routes.iter().any(|handed_out| handed_out.has(api)) {
                ways.direct.push(api_name(api));
            }
        }
        ways
    }

    pub fn text(&self) -> String {
        let calls = [
            (self.runtime_calls, "of the runtime"),
            (self.driver_calls, "of the driver"),
            (self.pluggable_allocator_calls, "of PyTorch's pluggable allocator"),
        ];
        let calls = calls.into_iter().filter(|(number, _)| *number > 0);
        let calls: Vec<String> = calls
            .map(|(number, what)| format!("{} {what}", count(number)))
            .collect();
        let mut text = match calls.as_slice() {
            [] => "no calls for memory".to_owned(),
            calls => format!("calls: {}", calls.join(", ")),
        };
        let mut ways = Vec::new();
        if !self.direct.is_empty() {
            let mut names = self.direct[..self.direct.len().min(MOST_NAMES)].join(", ");
            if let Some(more @ 1..) = self.direct.len().checked_sub(MOST_NAMES) {
                names += &format!(" and {more} more");
            }
            ways.push(format!("direct symbol ({names})"));
        }
        ways.extend(
            self.handed_out
                .iter()
                .map(|(route, number)| format!("{route} {}", times(*number))),
        );
        if !ways.is_empty() {
            text += &format!("; ways: {}", ways.join(", "));
        }
        text
    }
}

pub fn route_name(route: Route) -> &'static str {
    match route {
        Route::Dlsym => "dlsym",
        Route::Dlvsym => "dlvsym",
        Route::GetProcAddress => "cuGetProcAddress",
        Route::EntryPoint => "cudaGetDriverEntryPoint",
    }
}
