//! Blocks that CUDA graphs may use whenever they are launched.
//!
//! PyTorch names a private pool when a capture begins and ends, and again when the graph is gone. Until then, a block
//! that was allocated or freed during the capture must not serve a tensor outside. If PyTorch names no pool (the job
//! has not passed `vramshim_torch_begin_pool`), such a block is kept for ever.
//!
//! A capture may use a block again that was allocated for its pool on the same stream: the graph's work on that stream
//! runs in order, and PyTorch asks jobs to launch the graphs of a pool in the order of their captures (`graph` in
//! `torch/cuda/graphs.py`, PyTorch 2.12). It does so for requests of the same size, rounded as PyTorch rounds them.
//!
//! A capture that fails leaves no graph. PyTorch then names its pool never again: `CUDAGraph::capture_end` in
//! `aten/src/ATen/cuda/CUDAGraph.cpp` raises the error before it ends the use of the pool.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::figures::rounded;
use crate::engine::state::captures::StreamKey;
use base::sync::lock;

/// A private pool of PyTorch: the device, and the two numbers that PyTorch gave.
pub type PoolId = (i32, u64, u64);

/// A capture that allocates from a private pool.
struct OpenCapture {
    /// The number of the thread that named the pool.
    thread: u64,
    /// The stream that is captured. PyTorch names the pool first, and then begins the capture.
    stream: Option<StreamKey>,
}

/// What a capture may use a block again for: requests on this stream, of this size.
type Use = (usize, u64);

#[derive(Default)]
struct PrivatePool {
    /// Graphs that were captured with this pool and are not gone.
    graphs: u32,
    /// Captures that allocate from this pool now.
    captures: Vec<OpenCapture>,
    /// Blocks that the pool's next captures may use again.
    idle: HashMap<Use, Vec<u64>>,
}

struct Kept {
    /// The pools whose graphs may use the block; none if it is kept for ever.
    pools: Vec<PoolId>,
    device: i32,
    /// PyTorch freed the tensor.
    is_free: bool,
    /// What the block was allocated for, if a capture did that.
    serves: Option<Use>,
}

/// A block that graphs may use, for a list of all memory: the pool, if one was named, and whether PyTorch freed the tensor.
pub type Listed = (Option<PoolId>, bool);

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
            .filter(|(id, pool)| id.0 == device && !pool.captures.is_empty());
        open.map(|(&id, _)| id).collect()
    }

    /// Keeps a block. Returns false if no pool is named, so that it is kept for ever.
    fn keep(&mut self, address: u64, device: i32, is_free: bool, serves: Option<Use>) -> bool {
        let pools = self.open(device);
        let named = !pools.is_empty();
        let kept = self.blocks.entry(address).or_insert(Kept {
            pools: Vec::new(),
            device,
            is_free,
            serves,
        });
        kept.pools.extend(pools);
        kept.is_free |= is_free;
        named
    }

    /// A graph of this pool is gone. If it was the last one, its blocks are free.
    fn graph_gone(&mut self, id: PoolId) -> Left {
        let mut left = Left::default();
        let Some(pool) = self.pools.get_mut(&id) else {
            return left;
        };
        pool.graphs = pool.graphs.saturating_sub(1);
        if pool.graphs > 0 {
            return left;
        }
        self.pools.remove(&id);
        self.blocks.retain(|&address, kept| {
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

impl Graphs {
    /// A block of a request for `size` bytes was allocated on a stream that captures.
    pub fn allocated(&self, address: u64, device: i32, stream: usize, size: u64) -> bool {
        self.any.store(true, Ordering::Relaxed);
        lock(&self.inside).keep(address, device, false, Some((stream, rounded(size))))
    }

    /// A block that PyTorch has freed and that a request of the open capture may use.
    pub fn take_again(&self, device: i32, stream: usize, size: u64) -> Option<u64> {
        let mut inside = lock(&self.inside);
        // With two captures at once, it is not known for which of them PyTorch asks.
        let [id] = inside.open(device)[..] else { return None };
        let address = inside
            .pools
            .get_mut(&id)?
            .idle
            .get_mut(&(stream, rounded(size)))?
            .pop()?;
        inside.blocks.get_mut(&address)?.is_free = false;
        Some(address)
    }

    /// PyTorch frees a block during a capture that may use it.
    pub fn freed_meanwhile(&self, address: u64, device: i32) -> bool {
        self.any.store(true, Ordering::Relaxed);
        lock(&self.inside).keep(address, device, true, None)
    }

    /// PyTorch frees a block. Returns whether a graph may still use it; if so, the block is kept. `own_stream_only`: no
    /// other stream than the one that the block was allocated on has used it.
    #[inline]
    pub fn keeps(&self, address: u64, own_stream_only: bool) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut guard = lock(&self.inside);
        let inside = &mut *guard;
        let Some(kept) = inside.blocks.get_mut(&address) else {
            return false;
        };
        kept.is_free = true;
        if let (true, Some(serves), [id]) = (own_stream_only, kept.serves, &kept.pools[..])
            && let Some(pool) = inside.pools.get_mut(id)
        {
            pool.idle.entry(serves).or_default().push(address);
        }
        true
    }

    /// A thread names the pool of the capture that it begins next.
    pub fn capture_begins(&self, id: PoolId, thread: u64) {
        let mut inside = lock(&self.inside);
        let pool = inside.pools.entry(id).or_default();
        pool.graphs += 1;
        pool.captures.push(OpenCapture { thread, stream: None });
    }

    /// A thread has begun to capture this stream.
    pub fn stream_begins(&self, stream: StreamKey, thread: u64) {
        let mut inside = lock(&self.inside);
        let mut captures = inside.pools.values_mut().flat_map(|pool| &mut pool.captures);
        let named = captures.find(|capture| capture.thread == thread && capture.stream.is_none());
        if let Some(capture) = named {
            capture.stream = Some(stream);
        }
    }

    /// A capture of this pool has ended, and there is a graph.
    pub fn capture_ends(&self, id: PoolId, thread: u64) {
        if let Some(pool) = lock(&self.inside).pools.get_mut(&id) {
            let mut captures = pool.captures.iter();
            let own = captures.position(|capture| capture.thread == thread);
            if let Some(place) = own.or(pool.captures.len().checked_sub(1)) {
                pool.captures.remove(place);
            }
        }
    }

    /// The capture of this stream has failed, or could not begin: `stream` is then `None`. There is no graph.
    pub fn capture_failed(&self, stream: Option<StreamKey>, thread: u64) -> Left {
        let mut inside = lock(&self.inside);
        let failed = |capture: &OpenCapture| capture.stream == stream && (stream.is_some() || capture.thread == thread);
        for (&id, pool) in &mut inside.pools {
            if let Some(place) = pool.captures.iter().position(failed) {
                pool.captures.remove(place);
                return inside.graph_gone(id);
            }
        }
        Left::default()
    }

    /// The blocks that graphs may use, by address.
    pub fn listed(&self) -> HashMap<u64, Listed> {
        let inside = lock(&self.inside);
        let blocks = inside.blocks.iter();
        blocks
            .map(|(&address, kept)| (address, (kept.pools.first().copied(), kept.is_free)))
            .collect()
    }

    /// A graph that was captured with this pool is gone. If it was the last one, its blocks are free.
    pub fn graph_gone(&self, id: PoolId) -> Left {
        lock(&self.inside).graph_gone(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = (0, 1, 0);
    const STREAM: StreamKey = (0x77, 0);
    const THREAD: u64 = 5;

    fn allocated(graphs: &Graphs, address: u64) -> bool {
        graphs.allocated(address, 0, STREAM.0, 4000)
    }

    fn captured(graphs: &Graphs) {
        graphs.capture_begins(POOL, THREAD);
        graphs.stream_begins(STREAM, THREAD);
    }

    #[test]
    fn the_last_graph_of_a_pool_gives_back_what_is_free() {
        let graphs = Graphs::default();
        captured(&graphs);
        assert!(allocated(&graphs, 0x1000) && allocated(&graphs, 0x2000) && graphs.freed_meanwhile(0x3000, 0));
        graphs.capture_ends(POOL, THREAD);
        captured(&graphs);
        graphs.capture_ends(POOL, THREAD);
        assert!(graphs.keeps(0x1000, true) && !graphs.keeps(0x4000, true));
        assert!(
            graphs.graph_gone(POOL).free.is_empty(),
            "the second graph may use the blocks"
        );
        let mut left = graphs.graph_gone(POOL);
        left.free.sort();
        assert_eq!(left.free, [(0x1000, 0), (0x3000, 0)]);
        assert_eq!(left.live, [0x2000]);
        assert!(!graphs.keeps(0x2000, true));
    }

    #[test]
    fn a_capture_uses_again_what_died_on_its_stream() {
        let graphs = Graphs::default();
        captured(&graphs);
        for address in [0x1000, 0x2000] {
            allocated(&graphs, address);
        }
        assert!(graphs.keeps(0x1000, true) && graphs.keeps(0x2000, false));
        assert_eq!(graphs.take_again(0, STREAM.0, 5000), None, "another size");
        assert_eq!(graphs.take_again(0, 0x99, 4096), None, "another stream");
        assert_eq!(graphs.take_again(1, STREAM.0, 4096), None, "another device");
        assert_eq!(graphs.take_again(0, STREAM.0, 4096), Some(0x1000));
        assert_eq!(
            graphs.take_again(0, STREAM.0, 4096),
            None,
            "the other was used elsewhere"
        );
        assert!(graphs.keeps(0x1000, true));
        graphs.capture_ends(POOL, THREAD);
        assert_eq!(graphs.take_again(0, STREAM.0, 4096), None, "no capture is open");
        captured(&graphs);
        assert_eq!(
            graphs.take_again(0, STREAM.0, 4096),
            Some(0x1000),
            "a later capture of the pool"
        );
    }

    #[test]
    fn a_capture_that_fails_keeps_nothing() {
        let graphs = Graphs::default();
        captured(&graphs);
        allocated(&graphs, 0x1000);
        assert!(graphs.keeps(0x1000, true));
        assert_eq!(graphs.capture_failed(Some(STREAM), THREAD).free, [(0x1000, 0)]);
        // One that could not begin.
        graphs.capture_begins(POOL, THREAD);
        graphs.capture_failed(None, THREAD);
        assert!(lock(&graphs.inside).pools.is_empty());
        // A graph that was captured with the same pool before stays.
        captured(&graphs);
        allocated(&graphs, 0x2000);
        graphs.capture_ends(POOL, THREAD);
        captured(&graphs);
        assert!(graphs.capture_failed(Some(STREAM), THREAD).live.is_empty());
        assert_eq!(graphs.graph_gone(POOL).live, [0x2000]);
    }

    #[test]
    fn without_a_named_pool_a_block_is_kept_for_ever() {
        let graphs = Graphs::default();
        assert!(!allocated(&graphs, 0x1000));
        captured(&graphs);
        graphs.capture_ends(POOL, THREAD);
        assert!(graphs.graph_gone(POOL).free.is_empty() && graphs.keeps(0x1000, true));
    }
}
