//! Explains on stderr why a request failed for lack of memory, in the words of Paddle's own message.

use tracing::warn;

use crate::engine::Engine;
use crate::engine::pools::patience::LONGEST_WAIT;
use crate::next;
use base::cuda::check;
use base::units::size as in_units;
use policy::device_memory::Available;

impl Engine {
    pub(super) fn explain_out_of_memory(&self, device: i16, requested: u64) {
        let Some(count) = self.state.limits.count_out_of_memory(device) else {
            return;
        };
        // Only the first, second, fourth ... failure is explained: some jobs request memory until they fail, on purpose.
        if !count.is_power_of_two() {
            return;
        }
        // What the device held at the failure is then in the journal.
        self.measure(device);
        let text = self.out_of_memory_report(device, requested);
        match count {
            1 => warn!("{text}"),
            _ => warn!("{text} (failure {count})"),
        }
    }

    /// Why a request failed, and what is known of the device's memory.
    pub(super) fn out_of_memory_report(&self, device: i16, requested: u64) -> String {
        let readings = self.state.ledger.readings(device, None);
        let (inside, largest) = self.pools.free_inside(device);
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: both pointers are to variables of this frame.
        let asked = check(unsafe { next::cuMemGetInfo_v2(&mut free, &mut total) });
        let actual = Available {
            free: if asked.is_ok() { free as u64 } else { 0 },
            total: total as u64,
        };
        let available = self.state.limits.within(device, actual).free + inside;
        let mut text = format!(
            "Out of memory error on GPU {device}. Cannot allocate {} memory on GPU {device}, {} memory has been allocated \
             and available memory is only {}. This process has {} reserved",
            in_units(requested),
            in_units(readings.allocated.current),
            in_units(available),
            in_units(readings.reserved.current),
        );
        if inside > 0 {
            text += &format!(
                ", {} of it free, the largest piece {}",
                in_units(inside),
                in_units(largest)
            );
        }
        if inside > 0 && self.pools.has_stuck_work(device) {
            let longest = LONGEST_WAIT.as_secs();
            text += &format!(
                "; the {} cannot be given back or used, because work of the GPU has not ended within {longest} seconds",
                in_units(inside)
            );
        }
        if self.state.captures.any_open() {
            text += "; while a stream capture is open, what was freed since it began cannot be used again";
        }
        if let Some(quota) = self.state.limits.of(device)
            && let Some(limit) = quota.limit
        {
            text += &format!(
                "; the limit of its {} is {} ({}), {} of it used",
                quota.scope.name(),
                in_units(limit),
                quota.from,
                in_units(quota.used())
            );
        }
        text
    }
}
