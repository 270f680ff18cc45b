//! Allocations as records of the journal have them: those that the ledger knows, and blocks of a policy.

use crate::engine::state::ledger::{self, Key};
use base::api::Class;
use journal::format::Allocation;
use policy::Block;

/// An allocation of the ledger.
pub fn recorded(key: Key, allocation: &ledger::Allocation) -> Allocation {
    Allocation {
        class: allocation.class.into(),
        address: key.value(),
        requested: allocation.requested,
        allocated: allocation.allocated,
        reserved: (allocation.reserved > 0).then_some(allocation.reserved),
        stream: 0,
    }
}

/// A block of a policy. `stream` is the number of the stream that the call named, or 0.
pub fn recorded_block(block: &Block, stream: u8) -> Allocation {
    Allocation {
        class: Class::Linear.into(),
        address: block.address,
        requested: block.requested,
        allocated: block.allocated,
        reserved: None,
        stream,
    }
}
