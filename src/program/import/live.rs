//! What is live in PyTorch's snapshot: at its end, and before PyTorch recorded.

use std::collections::BTreeMap;

use super::snapshot::{Action, Event, Segment, Snapshot, StackNumber};

/// An allocation that is live at a moment.
#[derive(Clone, Copy)]
pub struct Live {
    pub requested: u64,
    /// After rounding; `None` if the snapshot does not say it.
    pub allocated: Option<u64>,
    pub stream: Option<u64>,
    pub pool_id: Option<(u64, u64)>,
    pub frames: StackNumber,
}

impl Snapshot {
    /// The segments of a device. There are at most 128 devices, so looking through all is soon done.
    pub fn segments_of(&self, device: i16) -> impl Iterator<Item = &Segment> {
        let segments = self.segments.iter();
        segments.filter(move |segment| segment.device == Some(device))
    }

    pub fn events_of(&self, device: i16) -> &[Event] {
        let number = usize::try_from(device).unwrap_or(usize::MAX);
        self.device_traces.get(number).map_or(&[], Vec::as_slice)
    }

    pub fn live_at_end(&self, device: i16) -> BTreeMap<u64, Live> {
        let mut live = BTreeMap::new();
        for segment in self.segments_of(device) {
            let mut next = segment.address;
            for block in &segment.blocks {
                // Older versions of PyTorch write no addresses of blocks.
                let address = block.address.or(next);
                let size = block.size.unwrap_or(0);
                next = address.and_then(|address| address.checked_add(size));
                let is_live = matches!(
                    &*block.state,
                    "active_allocated" | "active_pending_free" | "active_awaiting_free"
                );
                if let Some(address) = address.filter(|_| is_live && size > 0) {
                    let one = Live {
                        requested: block.requested_size.unwrap_or(size).min(size),
                        allocated: Some(size),
                        stream: segment.stream,
                        pool_id: segment.segment_pool_id,
                        frames: block.frames,
                    };
                    live.insert(address, one);
                }
            }
        }
        live
    }

    /// What was live before PyTorch recorded: the trace is played backwards from what is live at the end.
    pub fn live_before(&self, device: i16) -> BTreeMap<u64, Live> {
        let mut live = self.live_at_end(device);
        for event in self.events_of(device).iter().rev() {
            match (event.action, event.addr, event.size) {
                (Action::Alloc, Some(address), _) => drop(live.remove(&address)),
                (Action::FreeCompleted, Some(address), Some(requested)) => {
                    let one = Live {
                        requested,
                        allocated: None,
                        stream: event.stream,
                        pool_id: event.pool_id,
                        frames: event.frames,
                    };
                    live.insert(address, one);
                }
                _ => {}
            }
        }
        live
    }
}
