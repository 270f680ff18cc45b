//! The segments and blocks of all devices in PyTorch's words (`torch.cuda.memory_snapshot`).
//!
//! Source of the keys: `_snapshot` in `torch/cuda/memory.py`, PyTorch 2.12, and `torch/cuda/_memory_viz.py`, which
//! wants the blocks of a segment to follow one another without a gap.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::graphs::{Listed, PoolId};
use crate::engine::Engine;
use crate::engine::pools::contents::Range;
use crate::engine::state::allocation::Key;
use base::api::Class;
use policy::Block;

impl Engine {
    /// The segments in the form of `torch._C._cuda_memorySnapshot`, as JSON.
    pub fn torch_snapshot(&self) -> String {
        let mut text = "{\"segments\":[".to_owned();
        let mut comma = "";
        let of_graphs = self.torch.graphs.listed();
        for device in self.state.measurements.used_devices() {
            let mut ranges = self.pools.contents(device);
            let direct = self.state.ledger.select(|key, one| {
                matches!(key, Key::Address(_)) && one.class == Class::Linear && one.device == device
            });
            ranges.extend(direct.into_iter().map(|(key, one)| {
                let block = Block {
                    address: key.value(),
                    requested: one.requested,
                    allocated: one.allocated,
                };
                Range::new(block.address, block.allocated, vec![block])
            }));
            for (range, pool) in ranges.into_iter().flat_map(|range| divided(range, &of_graphs)) {
                text.push_str(std::mem::replace(&mut comma, ","));
                write_segment(&mut text, device, pool, &range);
            }
        }
        text.push_str("]}");
        text
    }
}

/// A range as segments. PyTorch's segments belong to one pool each. So a block that graphs may use is a segment of its
/// own, which has no live block if PyTorch has freed the tensor.
fn divided(range: Range, of_graphs: &HashMap<u64, Listed>) -> Vec<(Range, Option<PoolId>)> {
    let end = range.address + range.size;
    let mut parts = Vec::new();
    let mut rest = Range::new(range.address, 0, Vec::new());
    for block in range.blocks {
        let Some(&(pool, is_free)) = of_graphs.get(&block.address) else {
            rest.blocks.push(block);
            continue;
        };
        let after = block.address + block.allocated;
        let mut before = std::mem::replace(&mut rest, Range::new(after, 0, Vec::new()));
        before.size = block.address - before.address;
        parts.push((before, None));
        let live = Vec::from_iter((!is_free).then_some(block));
        parts.push((Range::new(block.address, block.allocated, live), pool));
    }
    rest.size = end - rest.address;
    parts.push((rest, None));
    parts.retain(|(part, _)| part.size > 0);
    parts
}

fn write_segment(text: &mut String, device: i16, pool: Option<PoolId>, range: &Range) {
    let (_, first, second) = pool.unwrap_or_default();
    let allocated: u64 = range.blocks.iter().map(|block| block.allocated).sum();
    let requested: u64 = range.blocks.iter().map(|block| block.requested).sum();
    let _ = write!(
        text,
        "{{\"device\":{device},\"address\":{},\"total_size\":{},\"allocated_size\":{allocated},\
         \"active_size\":{allocated},\"requested_size\":{requested},\"stream\":0,\"segment_type\":\"large\",\
         \"segment_pool_id\":[{first},{second}],\"is_expandable\":false,\"frames\":[],\"blocks\":[",
        range.address, range.size,
    );
    let mut comma = "";
    let mut block = |address: u64, size: u64, requested: u64, state: &str| {
        let _ = write!(
            text,
            "{}{{\"address\":{address},\"size\":{size},\"requested_size\":{requested},\"state\":\"{state}\",\
             \"frames\":[]}}",
            std::mem::replace(&mut comma, ",")
        );
    };
    let mut at = range.address;
    for live in &range.blocks {
        if live.address > at {
            block(at, live.address - at, 0, "inactive");
        }
        block(live.address, live.allocated, live.requested, "active_allocated");
        at = live.address + live.allocated;
    }
    let end = range.address + range.size;
    if at < end {
        block(at, end - at, 0, "inactive");
    }
    text.push_str("]}");
}
