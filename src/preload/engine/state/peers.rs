//! Which contexts may use the memory of which other contexts.
//!
//! The driver keeps this for memory that it allocates. Access to mapped memory is given one range at a time, so a policy
//! that maps memory has to give it: to all mapped ranges when `cuCtxEnablePeerAccess` is called, and to each range that
//! is mapped later.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::location::Location;
use base::sync::lock;

#[derive(Default)]
pub struct Peers {
    /// Pairs of a context that has access and the context whose memory it may use.
    allowed: Mutex<HashSet<(Location, Location)>>,
    /// By context, the contexts that were ever granted access to its memory. Access to a range that is mapped already
    /// outlives `cuCtxDisablePeerAccess`, and so does work that was submitted before.
    ever_allowed: Mutex<HashMap<u64, Vec<u64>>>,
    /// Whether `ever_allowed` has an entry, readable without the lock.
    any: AtomicBool,
}

impl Peers {
    /// Notes whether `user` may use the memory of `owner`. After access is disabled, ranges that are mapped already stay
    /// accessible until they are unmapped, which harms neither context.
    pub fn note(&self, user: Location, owner: Location, may: bool) {
        let mut allowed = lock(&self.allowed);
        if may {
            allowed.insert((user, owner));
            let mut ever_allowed = lock(&self.ever_allowed);
            let users = ever_allowed.entry(owner.context).or_default();
            if !users.contains(&user.context) {
                users.push(user.context);
            }
            self.any.store(true, Ordering::Release);
        } else {
            allowed.remove(&(user, owner));
        }
    }

    /// Devices that may use memory of `device`, without duplicates.
    pub fn with_access_to(&self, device: i16) -> Vec<i32> {
        let allowed = lock(&self.allowed);
        let pairs = allowed.iter().filter(|(_, owner)| owner.device == device);
        let mut devices: Vec<i32> = pairs.map(|(user, _)| i32::from(user.device)).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// The contexts whose work may use memory of `context`, besides its own.
    #[inline]
    pub fn users_of(&self, context: u64) -> Vec<u64> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        lock(&self.ever_allowed).get(&context).cloned().unwrap_or_default()
    }

    pub fn context_gone(&self, context: u64) {
        let mut ever_allowed = lock(&self.ever_allowed);
        ever_allowed.remove(&context);
        for users in ever_allowed.values_mut() {
            users.retain(|&user| user != context);
        }
        lock(&self.allowed).retain(|(user, owner)| user.context != context && owner.context != context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_goes_one_way_and_with_its_context() {
        let [a, b, c] = [(0, 10), (1, 11), (1, 12)].map(|(device, context)| Location { device, context });
        let peers = Peers::default();
        peers.note(b, a, true);
        peers.note(c, a, true);
        assert_eq!((peers.with_access_to(0), peers.with_access_to(1)), (vec![1], vec![]));
        peers.note(b, a, false);
        assert_eq!(peers.with_access_to(0), [1]);
        assert_eq!((peers.users_of(10), peers.users_of(11)), (vec![11, 12], vec![]));
        peers.context_gone(12);
        assert_eq!(peers.users_of(10), [11]);
        assert!(peers.with_access_to(0).is_empty());
    }
}
