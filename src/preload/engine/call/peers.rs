//! Peer access: one device uses memory of another.

use crate::engine::state::location::Location;
use crate::engine::{Call, Engine};
use crate::next;
use base::cuda::{CudaResult, HOST_DEVICE};

impl Engine {
    /// Gives the peers of a device access to all of its memory that the library has mapped.
    pub(super) fn allow_peers(&self, device: i16) {
        self.pools.allow_peers(device);
        self.sharing
            .allow_peers(device, self.state.peers.with_access_to(device));
    }
}

impl Call {
    /// The current context may use memory of the context `peer` from now on, or no longer may.
    pub fn peer_access(&self, peer: u64, may: bool, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        ask()?;
        if let Some(user) = Location::current() {
            let device = next::device_of_context(peer).unwrap_or(HOST_DEVICE);
            let context = next::owner_of(peer);
            let owner = Location { device, context };
            self.engine.state.peers.note(user, owner, may);
            if may {
                self.engine.allow_peers(device);
            }
        }
        Ok(())
    }
}
