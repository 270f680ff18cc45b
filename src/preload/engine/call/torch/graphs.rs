//! Blocks that CUDA graphs may use whenever they are launched.
//!
//! PyTorch names a private pool when a capture begins and ends, and again when the graph is gone. Until then, a block
//! that was allocated or freed during the capture must not serve another tensor. If PyTorch names no pool (the job
//! has not passed `vramshim_torch_begin_pool`), such a block is kept for ever.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use base::sync::lock;

/// A private pool of PyTorch: the device, and the two numbers that PyTorch gave.
pub type PoolId = (i32, u64, u64);

#[derive(Default)]
struct PrivatePool {
    /// Graphs that were captured with this pool and are not gone.
    graphs: u32,
    /// Captures that allocate from this pool now.
    captures: u32,
}

struct Kept {
    /// The pools whose graphs may use the block; none if it is kept for ever.
    pools: Vec<PoolId>,
    device: i32,
    /// PyTorch freed the tensor.
    is_free: bool,
}

#[derive(Default)]
struct Inside {
    pools: HashMap<PoolId, PrivatePool>,
    blocks: HashMap<u64, Kept>,
}

#[derive(Default)]
pub struct Graphs {
    inside: Mutex<Inside>,
    /// Whether any block is kept, readable without the lock.
    any: AtomicBool,
}

/// What a graph that is gone has left.
#[derive(Default)]
pub struct Left {
    /// Blocks to be given back, with their devices.
    pub free: Vec<(u64, i32)>,
    /// Blocks of tensors that PyTorch still has. Launches of the graph may have used them on any stream.
    pub live: Vec<u64>,
}

impl Inside {
    /// The pools of the captures that are open on a device.
    fn open(&self, device: i32) -> Vec<PoolId> {
        let open = self
            .pools
            .iter()
            .filter(|(id, pool)| id.0 == device && pool.captures > 0);
        open.map(|(&id, _)| id).collect()
    }

    /// Keeps a block. Returns false if no pool is named, so that it is kept for ever.
    fn keep(&mut self, address: u64, device: i32, is_free: bool) -> bool {
        let pools = self.open(device);
        let named = !pools.is_empty();
        let kept = self.blocks.entry(address).or_insert(Kept {
            pools: Vec::new(),
            device,
            is_free,
        });
        kept.pools.extend(pools);
        kept.is_free |= is_free;
        named
    }
}

impl Graphs {
    /// A block was allocated on a stream that captures.
    pub fn allocated(&self, address: u64, device: i32) -> bool {
        self.any.store(true, Ordering::Relaxed);
        lock(&self.inside).keep(address, device, false)
    }

    /// PyTorch frees a block during a capture that may use it.
    pub fn freed_meanwhile(&self, address: u64, device: i32) -> bool {
        self.any.store(true, Ordering::Relaxed);
        lock(&self.inside).keep(address, device, true)
    }

    /// PyTorch frees a block. Returns whether a graph may still use it; if so, the block is kept.
    #[inline]
    pub fn keeps(&self, address: u64) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut inside = lock(&self.inside);
        let kept = inside.blocks.get_mut(&address);
        kept.map(|kept| kept.is_free = true).is_some()
    }

    pub fn capture_begins(&self, id: PoolId) {
        let mut inside = lock(&self.inside);
        let pool = inside.pools.entry(id).or_default();
        pool.graphs += 1;
        pool.captures += 1;
    }

    pub fn capture_ends(&self, id: PoolId) {
        if let Some(pool) = lock(&self.inside).pools.get_mut(&id) {
            pool.captures = pool.captures.saturating_sub(1);
        }
    }

    /// A graph that was captured with this pool is gone. If it was the last one, its blocks are free.
    pub fn graph_gone(&self, id: PoolId) -> Left {
        let mut left = Left::default();
        let mut inside = lock(&self.inside);
        let Some(pool) = inside.pools.get_mut(&id) else {
            return left;
        };
        pool.graphs = pool.graphs.saturating_sub(1);
        if pool.graphs > 0 {
            return left;
        }
        inside.pools.remove(&id);
        inside.blocks.retain(|&address, kept| {
            let before = kept.pools.len();
            kept.pools.retain(|&other| other != id);
            let gone = kept.pools.is_empty() && before > 0;
            match gone {
                true if kept.is_free => left.free.push((address, kept.device)),
                true => left.live.push(address),
                false => {}
            }
            !gone
        });
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = (0, 1, 0);

    #[test]
    fn the_last_graph_of_a_pool_gives_back_what_is_free() {
        let graphs = Graphs::default();
        graphs.capture_begins(POOL);
        assert!(graphs.allocated(0x1000, 0) && graphs.allocated(0x2000, 0) && graphs.freed_meanwhile(0x3000, 0));
        graphs.capture_ends(POOL);
        graphs.capture_begins(POOL);
        graphs.capture_ends(POOL);
        assert!(graphs.keeps(0x1000) && !graphs.keeps(0x4000));
        assert!(
            graphs.graph_gone(POOL).free.is_empty(),
            "the second graph may use the blocks"
        );
        let mut left = graphs.graph_gone(POOL);
        left.free.sort();
        assert_eq!(left.free, [(0x1000, 0), (0x3000, 0)]);
        assert_eq!(left.live, [0x2000]);
        assert!(!graphs.keeps(0x2000));
    }

    #[test]
    fn without_a_named_pool_a_block_is_kept_for_ever() {
        let graphs = Graphs::default();
        assert!(!graphs.allocated(0x1000, 0));
        graphs.capture_begins(POOL);
        graphs.capture_ends(POOL);
        assert!(graphs.graph_gone(POOL).free.is_empty() && graphs.keeps(0x1000));
    }
}
