//! Checks resource limits (`ulimit`) that affect a job or the library, and whether /proc is mounted.

use super::report::Findings;
use crate::render::format::size;

const CHECK: &str = "limits";

pub fn check(findings: &mut Findings, journal_max: u64) {
    let before = findings.0.len();
    if let Some(limit) = soft_limit(libc::RLIMIT_AS) {
        findings.warning(
            CHECK,
            format!("address space is limited to {}", size(limit)),
            "CUDA and auto_growth reserve many more addresses than they use. `ulimit -v unlimited` removes the limit.",
            "ulimit -v",
        );
    }
    if let Some(limit) = soft_limit(libc::RLIMIT_FSIZE).filter(|limit| *limit < journal_max) {
        findings.note(
            CHECK,
            format!("files may grow to {} only, and so may a journal", size(limit)),
            "Later events are counted as lost. `ulimit -f unlimited` removes the limit.",
            "ulimit -f",
        );
    }
    if let Some(limit) = soft_limit(libc::RLIMIT_NOFILE).filter(|limit| *limit <= 128) {
        findings.note(
                CHECK,
                format!("{limit} files may be open at once"),
                "Sharing memory between processes takes a descriptor for each handle of physical memory. `ulimit -n 4096` raises the limit.", "ulimit -n");
    }
    if !std::path::Path::new("/proc/self/maps").exists() {
        findings.problem(
            CHECK,
            "/proc is not mounted",
            "Mount it: the driver needs it, and journals cannot name their process.",
            "/proc",
        );
    }
    if findings.0.len() == before {
        findings.ok(CHECK, "ulimit: no resource limit is too low", "");
    }
}

/// The soft limit; `None` if there is none.
fn soft_limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is a local variable that the call may write.
    unsafe { libc::getrlimit(resource, &mut limit) };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
