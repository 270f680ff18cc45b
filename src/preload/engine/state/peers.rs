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
    access: Mutex<Access>,
    /// Whether a context was ever granted access to another's memory, readable without the lock.
    any: AtomicBool,
}

#[derive(Default)]
struct Access {
    /// Pairs of a device and the device whose memory its graphs copy, with access or without.
    copies: HashSet<(i16, i16)>,
    /// Pairs of a context that has access and the context whose memory it may use.
    allowed: HashSet<(Location, Location)>,
    /// By context, the contexts that were ever granted access to its memory. Access to a range that is mapped already
    /// outlives `cuCtxDisablePeerAccess`, and so does work that was submitted before.
    ever_allowed: HashMap<u64, Vec<u64>>,
}

impl Access {
    fn has_user(&mut self, owner: u64, user: u64) {
        let users = self.ever_allowed.entry(owner).or_default();
        if !users.contains(&user) {
            users.push(user);
        }
    }
}

impl Peers {
    /// Notes whether `user` may use the memory of `owner`. After access is disabled, mapped memory stays accessible,
    /// which harms neither context.
    pub fn note(&self, user: Location, owner: Location, may: bool) {
        let mut access = lock(&self.access);
        if may {
            access.allowed.insert((user, owner));
            access.has_user(owner.context, user.context);
            self.any.store(true, Ordering::Release);
        } else {
            access.allowed.remove(&(user, owner));
        }
    }

    /// Notes that work of the context `user` has used memory of the context `owner`, as copies between devices do that need
    /// no access.
    pub fn note_user(&self, user: u64, owner: u64) {
        lock(&self.access).has_user(owner, user);
        self.any.store(true, Ordering::Release);
    }

    /// Notes that graphs of the device `user` copy memory of the device `owner`.
    pub fn note_copies(&self, user: i16, owner: i16) {
        lock(&self.access).copies.insert((user, owner));
    }

    /// Whether the job has allowed work of the context `user` to use memory of the context `owner`.
    pub fn may_use(&self, user: Location, owner: Location) -> bool {
        self.any.load(Ordering::Acquire) && lock(&self.access).allowed.contains(&(user, owner))
    }

    /// The other devices that need access to mapped memory of `device`.
    pub fn with_access_to(&self, device: i16) -> DeviceSet {
        let access = lock(&self.access);
        let allowed = access.allowed.iter().map(|(user, owner)| (user.device, owner.device));
        let pairs = allowed.chain(access.copies.iter().copied());
        let users = pairs.filter(|&(user, owner)| owner == device && user != device);
        users.map(|(user, _)| user).collect()
    }

    /// The contexts whose work may use memory of `context`, besides its own.
    #[inline]
    pub fn users_of(&self, context: u64) -> Vec<u64> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let access = lock(&self.access);
        access.ever_allowed.get(&context).cloned().unwrap_or_default()
    }

    pub fn context_gone(&self, context: u64) {
        let Access {
            allowed, ever_allowed, ..
        } = &mut *lock(&self.access);
        ever_allowed.remove(&context);
        for users in ever_allowed.values_mut() {
            users.retain(|&user| user != context);
        }
        allowed.retain(|(user, owner)| user.context != context && owner.context != context);
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
    /// A context ends while another thread enables access to it.
    #[test]
    fn access_is_noted_while_contexts_end() {
        let [a, b] = [(0, 10), (1, 11)].map(|(device, context)| Location { device, context });
        let peers = std::sync::Arc::new(Peers::default());
        let (done, all_done) = std::sync::mpsc::channel();
        for number in 0..4 {
            let (peers, done) = (peers.clone(), done.clone());
            std::thread::spawn(move || {
                for _ in 0..200_000 {
                    match number {
                        0 => peers.context_gone(11),
                        1 => drop(peers.users_of(10)),
                        2 => peers.note(b, a, false),
                        _ => peers.note(b, a, true),
                    }
                }
                let _ = done.send(());
            });
        }
        for _ in 0..4 {
            let patience = std::time::Duration::from_secs(100);
            all_done
                .recv_timeout(patience)
                .expect("the threads wait for each other");
        }
    }
}
