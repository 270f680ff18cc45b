//! How often a job has freed most of its memory and used it again.
//!
//! A job that does so works in steps that are much alike, though its sizes may differ a little. After the first steps it
//! shall call the driver no more, so it pays for the tightest places only until then.

/// A step uses at least this part of the reserved memory, and has ended when less than the other part is live.
const MOST_LIVE: (u64, u64) = (3, 4);
const LEAST_LIVE: (u64, u64) = (1, 8);
/// After so many steps a job is taken to repeat itself.
const STEPS: u32 = 2;

/// Steps count when they end. So a job that is taken to repeat itself does so from the beginning of a step on, and finds
/// the same memory at the beginning of the next one. The step after that makes the same choices.
#[derive(Default)]
pub struct Cycles {
    is_high: bool,
    steps: u32,
    /// The most bytes that were reserved when a step counted.
    reserved: u64,
}

impl Cycles {
    #[inline]
    pub fn note(&mut self, live: u64, reserved: u64) {
        let is_below = |(part, of): (u64, u64)| live / part * of < reserved;
        if !is_below(MOST_LIVE) {
            self.is_high = reserved > 0;
        } else if self.is_high && is_below(LEAST_LIVE) {
            self.is_high = false;
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
    fn a_job_repeats_when_it_has_used_its_memory_twice() {
        assert!(!after(&[(0, 100), (100, 100), (0, 100)]).repeat(100));
        assert!(after(&[(0, 100), (100, 100), (0, 100), (90, 100), (0, 100)]).repeat(100));
    }

    #[test]
    fn a_job_repeats_from_the_beginning_of_a_step_on() {
        let two_steps = [(100, 100), (0, 100), (90, 100), (0, 100)];
        assert!(!after(&two_steps[..3]).repeat(100));
        assert!(after(&two_steps).repeat(100));
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
