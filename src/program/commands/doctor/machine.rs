//! Checks resource limits (`ulimit`) that affect a job or the library, and whether /proc is mounted.

use base::file::resource_limit;

use super::Setup;
use super::report::Findings;
use crate::render::format::size;

pub fn check(told: &mut Findings, setup: &mut Setup) {
    let before = told.list.len();
    if let Some(limit) = soft_limit(libc::RLIMIT_AS) {
        told.warning(format!("address space is limited to {}", size(limit)))
            .advise("CUDA and auto_growth reserve many more addresses than they use: `ulimit -v unlimited`.");
    }
    if let Some(limit) = soft_limit(libc::RLIMIT_FSIZE).filter(|limit| *limit < setup.config.journal_max) {
        told.note(format!("files may grow to {} only, and so may a journal", size(limit)))
            .advise("Later events are counted as lost. `ulimit -f unlimited` removes the limit.");
    }
    if !std::path::Path::new("/proc/self/maps").exists() {
        told.problem("/proc is not mounted")
            .advise("Mount it: the driver needs it, and journals cannot name their process.");
    }
    if told.list.len() == before {
        told.ok("ulimit: no resource limit is too low");
    }
}

/// The soft limit; `None` if there is none.
fn soft_limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let limit = resource_limit(resource) as u64;
    (limit != libc::RLIM_INFINITY).then_some(limit)
}
