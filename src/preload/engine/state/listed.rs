//! Which of the processes that NVML lists is this one.
//!
//! NVML tells pids of the host. In another pid namespace no process has such a pid, or a stranger has (nvidia-docker#1483), and
//! a process cannot read its own. It is then the process that appeared in the list when its first context was made, and that never held
//! less than the ledger has. As long as several appeared, the least that one of them held besides is what counts: the
//! allocation of a neighbour is charged to nobody else. In the namespace of the host there is nothing to guess.

use std::collections::HashMap;

use crate::next::nvml;
use base::identity;
use journal::format::{ContextMeasure, Mps, ProcessBytes};

/// The pid namespace of the host (`PROC_PID_INIT_INO` of Linux).
const HOST_NAMESPACE: u64 = 0xeffffffc;

/// What contexts of a process take at most, if nobody looked before there were any.
const MOST: u64 = 1 << 30;

/// The processes on a device. `None` if NVML does not tell.
pub fn on_device(uuid: [u8; 16]) -> Option<Vec<ProcessBytes>> {
    nvml::holders(uuid).map(|[list, clients]| ProcessBytes::listed(list, &clients))
}

#[derive(Clone, Default)]
pub struct Listed {
    /// Whether this process is in the namespace of the host, once it was asked.
    is_host: Option<bool>,
    /// The pid of this process in NVML's lists, once it is certain.
    own: Option<u32>,
    /// Those that were listed on a device before this process had a context there. `None` if nobody looked.
    strangers: Option<Vec<u32>>,
    /// Those that appeared since and may be this process.
    may_be: Option<Vec<u32>>,
    /// By device: what was used of it before this process had a context there, by how much that grew when the context was
    /// made, and how its contexts were measured last.
    pub used_before: HashMap<i16, u64>,
    pub grown: HashMap<i16, u64>,
    pub contexts: HashMap<i16, ContextMeasure>,
}

impl Listed {
    /// What NVML says of this process, of which the ledger has `reserved` bytes. Its pid is 0 while several may be it.
    pub fn own(&mut self, list: &[ProcessBytes], reserved: u64) -> Option<ProcessBytes> {
        let here = std::process::id();
        let is_host = *self
            .is_host
            .get_or_insert_with(|| identity::pid_namespace() == HOST_NAMESPACE);
        let is_stranger = |pid| self.strangers.iter().flatten().any(|&stranger| stranger == pid);
        let listed = |pid| list.iter().find(|process| process.host_pid == pid).copied();
        let is_listed = listed(here).is_some_and(|_| is_host || !is_stranger(here));
        self.own = self.own.or(is_listed.then_some(here));
        if let Some(pid) = self.own {
            // It was listed before, so what is not listed any more holds nothing.
            let (host_pid, bytes, gone) = (pid, Some(0), ProcessBytes::default());
            return listed(pid).or(Some(ProcessBytes {
                host_pid,
                bytes,
                ..gone
            }));
        }
        if is_host {
            return None;
        }
        let looked = self.strangers.is_some();
        let fits = |process: &ProcessBytes| {
            let bytes = process.bytes?.checked_sub(reserved)?;
            let remains = self.may_be.as_ref().is_none_or(|pids| pids.contains(&process.host_pid));
            let fits = remains && process.mps != Mps::Server && !is_stranger(process.host_pid);
            (fits && (looked || bytes <= MOST)).then_some((bytes, *process))
        };
        let may_be: Vec<_> = list.iter().filter_map(fits).collect();
        let &(_, first) = may_be.iter().min_by_key(|(bytes, _)| *bytes)?;
        let is_only = may_be.len() == 1;
        if looked {
            self.own = is_only.then_some(first.host_pid);
            self.may_be = Some(may_be.iter().map(|(_, process)| process.host_pid).collect());
        }
        let host_pid = if is_only { first.host_pid } else { 0 };
        (looked || is_only).then_some(ProcessBytes { host_pid, ..first })
    }

    /// What NVML lists before this process makes its first context of a device.
    pub fn look(&mut self, list: &[ProcessBytes]) {
        let strangers = self.strangers.get_or_insert_default();
        strangers.extend(list.iter().map(|process| process.host_pid));
        if self.own.is_none() {
            self.may_be = None;
        }
    }

    /// A context is gone. While several may be this process, nobody is taken for it until the next look: this process may be
    /// the one that is listed no more. Returns whether that is so.
    pub fn context_gone(&mut self) -> bool {
        let is_open = self.own.is_none() && self.strangers.is_some();
        if is_open {
            self.may_be = Some(Vec::new());
        }
        is_open
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
        let mut listed = Listed {
            is_host: Some(false),
            ..Listed::default()
        };
        listed.look(&ProcessBytes::listed(vec![(here, None), (10, None)], &[]));
        assert_eq!(told(&mut listed, [(20, 1150), (30, 450)], 0), Some((0, 450)));
        // The other one holds less than this process would, and is left out.
        assert_eq!(told(&mut listed, [(20, 1150), (30, 2450)], 2000), Some((30, 2450)));
        assert_eq!(told(&mut listed, [(20, 1150), (10, 2450)], 2000), Some((30, 0)));
    }

    #[test]
    fn a_neighbour_does_not_become_this_process_when_its_context_goes() {
        let list = |pids: &[u32]| ProcessBytes::listed(pids.iter().map(|&pid| (pid, Some(100))).collect(), &[]);
        let own = |listed: &mut Listed, pids: &[u32]| listed.own(&list(pids), 0).map(|own| own.host_pid);
        let mut listed = Listed {
            is_host: Some(false),
            ..Listed::default()
        };
        listed.look(&list(&[10]));
        assert_eq!(own(&mut listed, &[10, 20, 30]), Some(0), "this one and a neighbour");
        assert!(listed.context_gone());
        assert_eq!(own(&mut listed, &[10, 30]), None, "the neighbour is left");
        listed.look(&list(&[10, 30]));
        assert_eq!(own(&mut listed, &[10, 30, 20]), Some(20));
        assert!(!listed.context_gone(), "it is known");
    }

    #[test]
    fn on_the_host_nobody_else_is_taken_for_this_process() {
        let mut listed = Listed {
            is_host: Some(true),
            ..Listed::default()
        };
        let list = |pids: &[u32]| ProcessBytes::listed(pids.iter().map(|&pid| (pid, Some(100))).collect(), &[]);
        // Another thread had a context before this one looked.
        let here = std::process::id();
        listed.look(&list(&[here]));
        assert_eq!(listed.own(&list(&[30]), 0), None);
        assert_eq!(listed.own(&list(&[30, here]), 0).map(|own| own.host_pid), Some(here));
    }
}
