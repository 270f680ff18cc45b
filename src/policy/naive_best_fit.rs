//! Paddle's `naive_best_fit`: one contiguous reservation at first use, cut by best fit.
//!
//! A request gets the head of a free block. The next layer sees a few large requests, and then none.
//!
//! Sizes follow Paddle (`paddle/phi/core/platform/device/gpu/gpu_info.cc`). The first reservation has
//! `FLAGS_initial_gpu_memory_in_mb`, later ones have `FLAGS_reallocate_gpu_memory_in_mb`, and each is at least as large
//! as the request. If a size is 0, it is `FLAGS_fraction_of_gpu_memory_to_use` of 95% of the available memory. A
//! request that is larger than both sizes gets a segment of its own. There is one difference to Paddle: a reservation
//! that the device cannot grant is halved, down to the size of the request, before out of memory is reported.

use crate::Settings;
use crate::arena::{Arena, Cut, Region};
use crate::holdings::Block;
use crate::request::{Request, UNIT};
use crate::work::{Ask, Obtain, Work};

/// The share of the available memory that Paddle never reserves.
const UNRESERVED_SHARE: f64 = 0.05;

#[derive(Default)]
pub struct NaiveBestFit {
    settings: Settings,
    /// Size of the largest reservation, set by the first request. A larger request gets a dedicated segment.
    largest_reservation: Option<u64>,
    /// Whether the first reservation was made.
    pub reserved: bool,
    /// Available bytes, asked for the request that is served now.
    available: Option<u64>,
}

impl NaiveBestFit {
    pub fn new(settings: &Settings) -> Self {
        NaiveBestFit {
            settings: settings.clone(),
            ..NaiveBestFit::default()
        }
    }

    /// A size that was set, rounded up; if none was set, the share of the available memory.
    fn reservation_size(&self, bytes: u64, available: u64) -> u64 {
        match bytes.checked_next_multiple_of(UNIT) {
            None | Some(0) => {
                let share = available as f64 * (1.0 - UNRESERVED_SHARE) * self.settings.share();
                share as u64 / UNIT * UNIT
            }
            Some(bytes) => bytes,
        }
    }

    #[inline]
    pub fn find(arena: &mut Arena, request: &Request) -> Option<Block> {
        // A dedicated segment is kept if it was freed during a stream capture.
        let mut regions = [Region::Main, Region::Dedicated].into_iter();
        let found = regions.find_map(|region| arena.best(region, request))?;
        Some(arena.carve(found, request, Cut::Head))
    }

    pub fn grow(&mut self, request: &Request) -> Work {
        let (initial_bytes, reallocate_bytes) = (self.settings.initial_bytes, self.settings.reallocate_bytes);
        let is_set = initial_bytes > 0 && reallocate_bytes > 0;
        let available = match self.available.take() {
            Some(available) => available,
            None if is_set => 0,
            None => return Work::Ask(Ask::Available(None)),
        };
        let size = request.rounded();
        let initial = self.reservation_size(initial_bytes, available);
        let later = self.reservation_size(reallocate_bytes, available);
        let largest = *self.largest_reservation.get_or_insert(initial.max(later));
        if size > largest {
            return Work::Obtain(Obtain::new(size, size, true).dedicated());
        }
        let wanted = if self.reserved { later } else { initial };
        Work::Obtain(Obtain::new(wanted, size, true))
    }

    pub fn commit(&mut self, work: Work) {
        if let Work::Ask(Ask::Available(answer)) = work {
            self.available = Some(answer.map_or(0, |available| available.free));
        }
    }
}
