//! Which of the processes that NVML lists is this one.
//!
//! NVML tells pids of the host. In another pid namespace they name nobody, or a stranger (nvidia-docker#1483), and a process
//! cannot read its own. It is then the process that appeared in the list when its first context was made, and that never held
//! less than the ledger has. As long as several appeared, the least that one of them held besides is what counts: the
//! allocation of a neighbour is charged to nobody else.

use std::collections::HashMap;

use crate::next::nvml;
use base::identity;
use journal::format::{ContextMeasure, ProcessBytes};

/// The pid namespace of the host (`PROC_PID_INIT_INO` of Linux).
const HOST_NAMESPACE: u64 = 0xeffffffc;

/// What contexts of a process take at most, if nobody looked before there were any.
const MOST: u64 = 1 << 30;

/// The processes on a device. `None` if NVML does not tell.
pub fn on_device(uuid: [u8; 16]) -> Option<Vec<ProcessBytes>> {
    nvml::holders(uuid).map(|[list, clients]| ProcessBytes::listed(list, &clients))
}

#[derive(Default)]
pub struct Listed {
    /// The pid of this process in NVML's lists, once it is certain.
    own: Option<u32>,
    /// Those that were listed on a device before this process had a context there. `None` if nobody looked.
    pub strangers: Option<Vec<u32>>,
    /// Those that appeared since and may be this process, and the least that one of them held besides the ledger's bytes.
    may_be: Option<Vec<u32>>,
    least: u64,
    /// By device: what was used of it before this process had a context there, and how its contexts were measured last.
    pub used_before: HashMap<i16, u64>,
    pub contexts: HashMap<i16, ContextMeasure>,
}

impl Listed {
    /// What NVML says of this process, of which the ledger has `reserved` bytes. Its pid is 0 while several may be it.
    pub fn own(&mut self, list: &[ProcessBytes], reserved: u64) -> Option<ProcessBytes> {
        let here = std::process::id();
        let is_stranger = |pid| self.strangers.iter().flatten().any(|&stranger| stranger == pid);
        let listed = |pid| list.iter().find(|process| process.host_pid == pid).copied();
        self.own = self.own.or(listed(here).map(|_| here).filter(|_| !is_stranger(here)));
        if let Some(pid) = self.own {
            // It was listed before, so what is not listed any more holds nothing.
            let (host_pid, bytes, gone) = (pid, Some(0), ProcessBytes::default());
            return listed(pid).or(Some(ProcessBytes {
                host_pid,
                bytes,
                ..gone
            }));
        }
        let looked = self.strangers.is_some();
        let fits = |process: &ProcessBytes| {
            let bytes = process.bytes?.checked_sub(reserved)?;
            let remains = self.may_be.as_ref().is_none_or(|pids| pids.contains(&process.host_pid));
            let fits = remains && !is_stranger(process.host_pid) && bytes >= self.least && (looked || bytes <= MOST);
            fits.then_some((bytes, *process))
        };
        let may_be: Vec<_> = list.iter().filter_map(fits).collect();
        let &(least, first) = may_be.iter().min_by_key(|(bytes, _)| *bytes)?;
        let is_only = may_be.len() == 1;
        if looked {
            self.least = least;
            self.own = is_only.then_some(first.host_pid);
            self.may_be = Some(may_be.iter().map(|(_, process)| process.host_pid).collect());
        }
        let host_pid = if is_only { first.host_pid } else { 0 };
        (looked || is_only).then_some(ProcessBytes { host_pid, ..first })
    }

    /// Whether NVML's pids are those of this process's namespace.
    pub fn is_here(&self) -> bool {
        self.own == Some(std::process::id()) || identity::pid_namespace() == HOST_NAMESPACE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_that_appear_the_least_counts_until_one_is_left() {
        // A stranger has the number that this process has in its own namespace.
        let here = std::process::id();
        let told = |listed: &mut Listed, list: [(u32, u64); 2], reserved| {
            let list = [(here, 9000), list[0], list[1]].map(|(pid, bytes)| (pid, Some(bytes)));
            let own = listed.own(&ProcessBytes::listed(list.to_vec(), &[]), reserved);
            own.map(|own| (own.host_pid, own.bytes.unwrap()))
        };
        let strangers = Some(vec![here, 10]);
        let mut listed = Listed {
            strangers,
            ..Listed::default()
        };
        assert_eq!(told(&mut listed, [(20, 1150), (30, 450)], 0), Some((0, 450)));
        // The other one holds less than this process would, and is left out.
        assert_eq!(told(&mut listed, [(20, 1150), (30, 2450)], 2000), Some((30, 2450)));
        assert_eq!(told(&mut listed, [(20, 1150), (10, 2450)], 2000), Some((30, 0)));
    }
}
