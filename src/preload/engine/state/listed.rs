//! Which of the processes that NVML lists is this one.
//!
//! NVML tells pids of the host. In another pid namespace they name nobody, or a stranger (nvidia-docker#1483), and a process
//! cannot read its own. It is then the process that appeared in the list when its first context was made, and that never held
//! less than the ledger has. As long as several appeared, the least that one of them held besides is what counts: the
//! allocation of a neighbour is charged to nobody else.

use std::collections::HashMap;
use std::sync::Mutex;

use base::holders::{Holder, Role};
use base::identity;
use base::sync::lock;
use journal::format::ContextMeasure;

/// The pid namespace of the host (`PROC_PID_INIT_INO` of Linux).
const HOST_NAMESPACE: u64 = 0xeffffffc;

#[derive(Default)]
pub struct Listed(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// The pid of this process in NVML's lists, once it is certain.
    own: Option<u32>,
    /// Those that were listed on a device before this process had a context there. `None` if nobody looked.
    strangers: Option<Vec<u32>>,
    /// Those that appeared since and may be this process, and the least that one of them held besides the ledger's bytes.
    may_be: Option<Vec<u32>>,
    least: u64,
    /// By device: what was used of it before this process had a context there, and how its contexts were measured last.
    used_before: HashMap<i16, u64>,
    contexts: HashMap<i16, ContextMeasure>,
}

impl Listed {
    /// What NVML says of a device on which this process has no context yet: who is there, and what is used.
    pub fn before_context(&self, device: i16, list: Option<&[Holder]>, used: Option<u64>) {
        let mut known = lock(&self.0);
        if let Some(list) = list {
            let pids = list.iter().map(|process| process.pid);
            known.strangers.get_or_insert_default().extend(pids);
        }
        known.used_before.extend(used.map(|used| (device, used)));
    }

    /// How the contexts of this process on a device were measured last.
    pub fn contexts(&self, device: i16) -> ContextMeasure {
        lock(&self.0).contexts.get(&device).copied().unwrap_or_default()
    }

    /// The contexts on a device are measured anew. Returns what was used of it before there was one, once.
    pub fn measured(&self, device: i16, how: ContextMeasure) -> Option<u64> {
        let mut known = lock(&self.0);
        known.contexts.insert(device, how);
        known.used_before.remove(&device)
    }

    /// What NVML says of this process, of which the ledger has `reserved` bytes. The pid is 0 as long as it may be one of
    /// several. `most`: what contexts may take, if nobody looked before there were any.
    pub fn own(&self, list: &[Holder], reserved: u64, most: u64) -> Option<Holder> {
        let mut known = lock(&self.0);
        let here = std::process::id();
        let strangers = known.strangers.clone();
        let is_stranger = |pid: u32| strangers.as_ref().is_some_and(|strangers| strangers.contains(&pid));
        let listed = |pid: u32| list.iter().find(|process| process.pid == pid).copied();
        if known.own.is_none() && !is_stranger(here) && listed(here).is_some() {
            known.own = Some(here);
        }
        if let Some(own) = known.own {
            // It was listed before, so what is not listed any more holds nothing.
            let gone = Holder {
                pid: own,
                bytes: Some(0),
                role: Role::Alone,
            };
            return Some(listed(own).unwrap_or(gone));
        }
        let looked = strangers.is_some();
        let besides = |process: &Holder| {
            process
                .bytes?
                .checked_sub(reserved)
                .filter(|&bytes| bytes >= known.least)
        };
        let may_be: Vec<(u64, Holder)> = list
            .iter()
            .filter(|process| !is_stranger(process.pid))
            .filter(|process| known.may_be.as_ref().is_none_or(|pids| pids.contains(&process.pid)))
            .filter_map(|process| Some((besides(process)?, *process)))
            .filter(|&(bytes, _)| looked || bytes <= most)
            .collect();
        let &(least, first) = may_be.iter().min_by_key(|(bytes, _)| *bytes)?;
        let is_only = may_be.len() == 1;
        if looked {
            known.least = least;
            known.own = is_only.then_some(first.pid);
            known.may_be = Some(may_be.iter().map(|(_, process)| process.pid).collect());
        }
        let pid = if is_only { first.pid } else { 0 };
        (looked || is_only).then_some(Holder { pid, ..first })
    }

    /// Whether NVML's pids are those of this process's namespace.
    pub fn is_here(&self) -> bool {
        lock(&self.0).own == Some(std::process::id()) || identity::pid_namespace() == HOST_NAMESPACE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: u64 = 450;

    fn holder(pid: u32, bytes: u64) -> Holder {
        let role = Role::Alone;
        Holder {
            pid,
            bytes: Some(bytes),
            role,
        }
    }

    #[test]
    fn of_two_that_appear_the_least_counts_until_one_cannot_be_this_process() {
        let (listed, here) = (Listed::default(), std::process::id());
        // A stranger has the number that this process has in its own namespace.
        listed.before_context(0, Some(&[holder(here, 9000), holder(10, 100)]), None);
        let told = |list: &[Holder], reserved| listed.own(list, reserved, 0).map(|own| (own.pid, own.bytes));
        let both = |first, second| {
            [
                holder(here, 9000),
                holder(10, 100),
                holder(20, first),
                holder(30, second),
            ]
        };
        assert_eq!(told(&both(CONTEXT + 700, CONTEXT), 0), Some((0, Some(CONTEXT))));
        // The other one holds less than this process would, and is left out.
        assert_eq!(
            told(&both(CONTEXT + 700, CONTEXT + 2000), 2000),
            Some((30, Some(CONTEXT + 2000)))
        );
        assert_eq!(told(&both(0, 0)[..2], 0), Some((30, Some(0))));
        assert!(!listed.is_here() || identity::pid_namespace() == HOST_NAMESPACE);
    }

    #[test]
    fn if_nobody_looked_before_only_one_may_fit() {
        let listed = Listed::default();
        let told = |list: &[Holder]| listed.own(list, 1000, CONTEXT).map(|own| own.pid);
        assert_eq!(
            told(&[holder(0x7fff_0001, 1300), holder(0x7fff_0002, 9000)]),
            Some(0x7fff_0001)
        );
        assert_eq!(told(&[holder(0x7fff_0001, 1300), holder(0x7fff_0002, 1200)]), None);
        assert_eq!(
            told(&[holder(0x7fff_0001, 1300), holder(0x7fff_0002, 900)]),
            Some(0x7fff_0001)
        );
    }
}
