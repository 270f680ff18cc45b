//! Which devices may use which others' memory.
//!
//! The driver keeps this for what it allocates. Access to memory that is mapped is given a range at a time, so a policy
//! that maps has to give it: to what is mapped when `cuCtxEnablePeerAccess` is called, and to what is mapped after.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::engine::{Place, lock};

#[derive(Default)]
pub struct Peers {
    /// Who may, and whose memory.
    allowed: Mutex<HashSet<(Place, Place)>>,
}

impl Peers {
    /// Whether the first context may use the second one's memory. Access that was given to ranges in use stays: it is
    /// no loss to anybody, and goes with the range.
    pub fn note(&self, who: Place, whose: Place, may: bool) {
        let mut allowed = lock(&self.allowed);
        if may {
            allowed.insert((who, whose));
        } else {
            allowed.remove(&(who, whose));
        }
    }

    /// Devices that may use memory of `device`, each once.
    pub fn of(&self, device: i16) -> Vec<i32> {
        let allowed = lock(&self.allowed);
        let its = allowed.iter().filter(|(_, whose)| whose.device == device);
        let mut devices: Vec<i32> = its.map(|(who, _)| i32::from(who.device)).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    pub fn context_gone(&self, context: u64) {
        lock(&self.allowed).retain(|(who, whose)| who.context != context && whose.context != context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_goes_one_way_and_with_its_context() {
        let [a, b, c] = [(0, 10), (1, 11), (1, 12)].map(|(device, context)| Place { device, context });
        let peers = Peers::default();
        peers.note(b, a, true);
        peers.note(c, a, true);
        assert_eq!((peers.of(0), peers.of(1)), (vec![1], vec![]));
        peers.note(b, a, false);
        assert_eq!(peers.of(0), [1]);
        peers.context_gone(12);
        assert!(peers.of(0).is_empty());
    }
}
