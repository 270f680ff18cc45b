//! Collects the history of one device from PyTorch's memory snapshot. Memory that was allocated before the recording
//! began counts as allocated at its start.

use std::collections::BTreeMap;
use std::path::Path;

use super::gathering::{Gathering, Unplayed, choose_device};
use super::requests::{TorchSettings, Way};
use crate::analysis::tensor_records::DEFAULT_POOL;
use crate::import::snapshot::{Action, Event, WANTED, read};

/// Collects the history of `device`, or of the device with the most events.
pub fn gather(path: &Path, device: Option<i16>, gathering: &mut Gathering) -> Result<(), Unplayed> {
    let (page, _) = read(path)?;
    let recorded = (0..).zip(&page.device_traces).filter(|(_, events)| !events.is_empty());
    let recorded: BTreeMap<i16, &Vec<Event>> = recorded.collect();
    if recorded.is_empty() {
        return Err(
            "has no recorded history: call torch.cuda.memory._record_memory_history() at the start of the job and run it again".into(),
        );
    }
    let device = choose_device("snapshot", &recorded, device, |events| events.len() as u128, gathering)?;
    let events = page.events_of(device);
    let settings = &page.allocator_settings;
    gathering.trace.torch = TorchSettings {
        max_split_size: settings.max_split_size,
        roundup_divisions: settings.roundup_power2_divisions.clone(),
        has_tensors: true,
    };
    // PyTorch before 2.12 tells the pools of segments alone.
    let mut pools = BTreeMap::new();
    for segment in page.segments_of(device) {
        let (start, size) = (segment.address.unwrap_or(0), segment.total_size.unwrap_or(0));
        pools.insert(start, (start.saturating_add(size), segment.segment_pool_id));
    }
    let pool_of = |address: u64, told: Option<(u64, u64)>| {
        let around = pools.range(..=address).next_back();
        let pool = around.and_then(|(_, &(end, pool))| pool.filter(|_| address < end));
        told.or(pool).unwrap_or(DEFAULT_POOL)
    };

    if let Some(first_us) = events.iter().find_map(|event| event.time_us) {
        gathering.at(first_us.saturating_mul(1000));
    }
    for (address, one) in page.live_before(device) {
        let way = gathering.tensor(one.stream, pool_of(address, one.pool_id));
        gathering.allocate(address, one.requested, way);
    }
    for (index, event) in events.iter().enumerate() {
        if let Some(us) = event.time_us {
            gathering.at(us.saturating_mul(1000));
        }
        if event.action == Action::OutOfMemory {
            gathering.fail(event.size.unwrap_or(0), Way::Tensor(event.stream));
        }
        let Some(address) = event.addr else { continue };
        match event.action {
            Action::Alloc => {
                let size = (event.size)
                    .ok_or_else(|| format!("event {index} of device {device} allocates no size: {WANTED}"))?;
                let way = gathering.tensor(event.stream, pool_of(address, event.pool_id));
                gathering.allocate(address, size, way);
            }
            // PyTorch completes a free when no stream uses the memory any more. Before that no allocator could reuse
            // it.
            Action::FreeCompleted => gathering.free_used_alone(address),
            _ => {}
        }
    }
    Ok(())
}
