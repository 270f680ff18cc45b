//! How often a job has freed most of its memory and used it again.
//!
//! A job that does so works in steps that are much alike, though its sizes may differ a little. After the first steps it
//! shall call the driver no more, so it pays for the tightest places only until then.

/// A step uses at least this part of the reserved memory, and has ended when less than the other part is live.
const MOST_LIVE: (u64, u64) = (3, 4);
const LEAST_LIVE: (u64, u64) = (1, 8);
/// The bytes that two steps use differ by at most this part if the steps are alike.
const MOST_DIFFERENCE: u64 = 4;
/// After so many steps that are alike a job is taken to repeat itself.
const STEPS: u32 = 2;

/// Steps count when they end. So a job that is taken to repeat itself does so from the beginning of a step on, and finds
/// the same memory at the beginning of the next one. The step after that makes the same choices.
#[derive(Default)]
pub struct Cycles {
    is_high: bool,
    /// How many steps there were, each like the one before.
    steps: u32,
    /// Bytes that were freed until the last step ended, and within it.
    freed: u64,
    used: u64,
    /// The most bytes that were reserved when a step counted.
    reserved: u64,
}

impl Cycles {
    /// `freed` counts the bytes of all blocks that were ever freed.
    #[inline]
    pub fn note(&mut self, live: u64, reserved: u64, freed: u64) {
        let is_below = |(part, of): (u64, u64)| live / part * of < reserved;
        if !is_below(MOST_LIVE) {
            self.is_high = reserved > 0;
        } else if self.is_high && is_below(LEAST_LIVE) {
            self.is_high = false;
            let used = freed - self.freed;
            let is_alike = used.abs_diff(self.used) <= self.used / MOST_DIFFERENCE;
            (self.freed, self.used) = (freed, used);
            self.steps = if is_alike && !self.has_grown(reserved) {
                self.steps + 1
            } else {
                1
            };
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

    /// Each of the steps has the live bytes and the reserved ones. What is live no more was freed.
    fn after(steps: &[(u64, u64)]) -> Cycles {
        let mut cycles = Cycles::default();
        let (mut before, mut freed) = (0, 0);
        for &(live, reserved) in steps {
            freed += before - live.min(before);
            cycles.note(live, reserved, freed);
            before = live;
        }
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
    fn steps_that_use_different_amounts_are_not_alike() {
        let twice = [(90, 100), (30, 100), (90, 100), (0, 100)];
        let once = [(90, 100), (0, 100)];
        assert!(after(&[twice, twice].concat()).repeat(100));
        assert!(!after(&[&twice[..], &once[..], &twice[..]].concat()).repeat(100));
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
