//! What the next layer shows as free of each device, and whether that falls with what is taken.
//!
//! nvshare's `cuMemGetInfo` always tells the device less a reserve (its `hook.c`). It grants that much linear memory, so
//! what is taken must be subtracted from what it tells.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::per_device::PerDevice;

/// What is known of a device.
#[derive(Default)]
struct Seen {
    /// The first figure, plus 1; 0 before the first figure.
    first: AtomicU64,
    /// The linear memory that was reserved at the first figure.
    reserved: AtomicU64,
    /// Whether another figure was seen since.
    varies: AtomicBool,
}

#[derive(Default)]
pub struct Shown(PerDevice<Seen>);

impl Shown {
    /// The next layer has shown `free` bytes while `reserved` bytes of linear memory were taken from it.
    pub fn saw(&self, device: i16, free: u64, reserved: u64) {
        let Some(seen) = self.0.of_device(device) else {
            return;
        };
        match seen.first.compare_exchange(0, free.saturating_add(1), Relaxed, Relaxed) {
            Ok(_) => seen.reserved.store(reserved, Relaxed),
            Err(first) if first != free.saturating_add(1) => seen.varies.store(true, Relaxed),
            Err(_) => {}
        }
    }

    /// What a layer still gives of the `free` bytes that it shows, if it shows them whatever was taken. `None` if its figures
    /// are not known to be so, or if it gave more than it shows: then it has no quota.
    pub fn left(&self, device: i16, free: u64, reserved: u64) -> Option<u64> {
        let seen = self.0.of_device(device)?;
        let is_constant = seen.first.load(Relaxed) == free.saturating_add(1)
            && reserved > seen.reserved.load(Relaxed)
            && !seen.varies.load(Relaxed);
        is_constant.then(|| free.checked_sub(reserved)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::Shown;

    #[test]
    fn only_a_figure_that_stayed_as_it_was_is_corrected() {
        let shown = Shown::default();
        shown.saw(0, 1000, 0);
        assert_eq!(shown.left(0, 1000, 0), None, "nothing is taken");
        shown.saw(0, 1000, 300);
        assert_eq!(shown.left(0, 1000, 300), Some(700));
        assert_eq!(shown.left(0, 1000, 1001), None, "more was given than is shown");
        assert_eq!(shown.left(1, 1000, 300), None, "another device");
        shown.saw(0, 900, 100);
        assert_eq!(shown.left(0, 1000, 300), None, "the figure is not always the same");
    }
}
