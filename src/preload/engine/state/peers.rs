//! Which contexts may use the memory of which other contexts.
//!
//! The driver keeps this for memory that it allocates. Access to mapped memory is given one range at a time, so a policy
//! that maps memory has to give it: to all mapped ranges when `cuCtxEnablePeerAccess` is called, and to each range that
//! is mapped later.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::location::Location;
use base::cuda::MAX_DEVICES;
use base::sync::lock;

#[derive(Default)]
pub struct Peers {
    /// Pairs of a context that has access and the context whose memory it may use.
    allowed: Mutex<HashSet<(Location, Location)>>,
    /// Pairs of a device and the device whose memory its graphs copy, with access or without.
    copies: Mutex<HashSet<(i16, i16)>>,
    /// By context, the contexts that were ever granted access to its memory. Access to a range that is mapped already
    /// outlives `cuCtxDisablePeerAccess`, and so does work that was submitted before.
    ever_allowed: Mutex<HashMap<u64, Vec<u64>>>,
    /// Whether `ever_allowed` has an entry, readable without the lock.
    any: AtomicBool,
}

impl Peers {
    /// Notes whether `user` may use the memory of `owner`. After access is disabled, mapped memory stays accessible,
    /// which harms neither context.
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

    /// Notes that graphs of the device `user` copy memory of the device `owner`.
    pub fn note_copies(&self, user: i16, owner: i16) {
        lock(&self.copies).insert((user, owner));
    }

    /// Whether the job has allowed work of the context `user` to use memory of the context `owner`.
    pub fn may_use(&self, user: Location, owner: Location) -> bool {
        self.any.load(Ordering::Acquire) && lock(&self.allowed).contains(&(user, owner))
    }

    /// The other devices that need access to mapped memory of `device`.
    pub fn with_access_to(&self, device: i16) -> DeviceSet {
        let allowed = lock(&self.allowed);
        let pairs = allowed.iter().map(|(user, owner)| (user.device, owner.device));
        let copies = lock(&self.copies);
        let users = pairs.chain(copies.iter().copied());
        let users = users.filter(|&(user, owner)| owner == device && user != device);
        users.map(|(user, _)| user).collect()
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

/// Devices by their numbers, which are below `MAX_DEVICES`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceSet(pub u32);

const _: () = assert!(MAX_DEVICES <= u32::BITS as usize);

impl DeviceSet {
    pub fn union(self, other: DeviceSet) -> DeviceSet {
        DeviceSet(self.0 | other.0)
    }

    pub fn without(self, other: DeviceSet) -> DeviceSet {
        DeviceSet(self.0 & !other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn devices(self) -> impl Iterator<Item = i32> {
        (0..MAX_DEVICES as i32).filter(move |device| self.0 & 1 << device != 0)
    }
}

impl FromIterator<i16> for DeviceSet {
    fn from_iter<T: IntoIterator<Item = i16>>(devices: T) -> Self {
        let known = devices
            .into_iter()
            .filter(|&device| (0..MAX_DEVICES as i16).contains(&device));
        DeviceSet(known.fold(0, |set, device| set | 1 << device))
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
        let devices = |device| peers.with_access_to(device).devices().collect::<Vec<_>>();
        assert_eq!((devices(0), devices(1)), (vec![1], vec![]));
        peers.note(b, a, false);
        assert_eq!(devices(0), [1]);
        assert!(peers.may_use(c, a) && !peers.may_use(b, a) && !peers.may_use(a, c));
        peers.note_copies(3, 1);
        peers.note_copies(1, 1);
        assert_eq!(devices(1), [3]);
        assert_eq!((peers.users_of(10), peers.users_of(11)), (vec![11, 12], vec![]));
        peers.context_gone(12);
        assert_eq!(peers.users_of(10), [11]);
        assert!(peers.with_access_to(0).is_empty() && !peers.may_use(c, a));
    }
}
