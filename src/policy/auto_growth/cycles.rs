//! How often a job has freed most of its memory and used it again.
//!
//! A job that does so works in steps that are much alike, though its sizes may differ a little. After the first steps it
//! shall call the driver no more, so it pays for the tightest places only until then.

/// A step begins when less than this part of the reserved memory is live, and counts when more than the other part is.
const LEAST_LIVE: (u64, u64) = (1, 8);
const MOST_LIVE: (u64, u64) = (3, 4);
/// After so many steps a job is taken to repeat itself.
const STEPS: u32 = 2;

#[derive(Default)]
pub struct Cycles {
    is_low: bool,
    steps: u32,
    /// The most bytes that were reserved when a step counted.
    reserved: u64,
}

impl Cycles {
    #[inline]
    pub fn note(&mut self, live: u64, reserved: u64) {
        let is_below = |(part, of): (u64, u64)| live / part * of < reserved;
        if is_below(LEAST_LIVE) {
            self.is_low = true;
        } else if self.is_low && !is_below(MOST_LIVE) {
            self.is_low = false;
            self.steps = if self.has_grown(reserved) { 1 } else { self.steps + 1 };
            self.reserved = self.reserved.max(reserved);
        }
    }

    /// Whether the reserved memory has doubled since, so that the steps until then tell little.
    fn has_grown(&self, reserved: u64) -> bool {
        reserved / 2 >= self.reserved
    }

    pub fn repeat(&self, reserved: u64) -> bool {
        self.steps >= STEPS && !self.has_grown(reserved)
    }
}

#[cfg(test)]
mod tests {
    use super::Cycles;

    fn after(steps: &[(u64, u64)]) -> Cycles {
        let mut cycles = Cycles::default();
        steps.iter().for_each(|&(live, reserved)| cycles.note(live, reserved));
        cycles
    }

    #[test]
    fn a_job_repeats_when_it_has_filled_its_memory_again_twice() {
        assert!(!after(&[(100, 100), (0, 100), (90, 100)]).repeat(100));
        assert!(after(&[(100, 100), (0, 100), (90, 100), (0, 100), (90, 100)]).repeat(100));
    }

    #[test]
    fn a_job_that_keeps_much_of_its_memory_does_not_repeat() {
        let steps = [(100, 100), (50, 100)].repeat(10);
        assert!(!after(&steps).repeat(100));
    }

    #[test]
    fn steps_in_half_of_the_memory_do_not_count() {
        let steps = [(100, 100), (0, 100)].repeat(10);
        assert!(after(&steps).repeat(199));
        assert!(!after(&steps).repeat(200));
        let grown = [steps, vec![(200, 200)]].concat();
        assert!(!after(&grown).repeat(200));
    }
}
