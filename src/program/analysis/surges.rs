//! Surges of a job: memory that grew faster than `VRAMSHIM_SURGE`, and the stacks that asked for memory meanwhile.

use journal::format::{NoStack, Record, SurgeShare};

/// So many surges are kept, the largest ones.
const MOST: usize = 16;
/// So many stacks of a surge are kept.
const MOST_SHARES: usize = 8;

#[derive(Clone, Debug, Default)]
pub struct Surges {
    pub count: u64,
    /// The largest of them, in the order of time. Journals of older libraries have none.
    pub list: Vec<Surge>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surge {
    /// When it was noticed.
    pub time_ns: u64,
    /// `HOST_DEVICE` for resident memory of the process.
    pub device: i16,
    /// By how many bytes the memory grew, and within which time.
    pub grown: u64,
    pub over_ns: u64,
    /// The stacks that asked for most meanwhile, and the bytes that they asked for.
    pub shares: Vec<(u32, u64)>,
}

impl Surges {
    /// A record of a surge. Those of one surge follow each other; the first has place 0 or 1.
    pub fn add(&mut self, record: &Record, share: SurgeShare) {
        if share.place > 1 {
            let of_same = |surge: &&mut Surge| surge.device == record.device && surge.grown == share.grown;
            if let Some(surge) = self.list.last_mut().filter(of_same)
                && surge.shares.len() < MOST_SHARES
            {
                surge.shares.push((record.stack, share.asked));
            }
            return;
        }
        self.list.push(Surge {
            time_ns: record.time_ns,
            device: record.device,
            grown: share.grown,
            over_ns: share.over_ns,
            shares: match NoStack::stack(record.stack) {
                Ok(stack) if share.place == 1 && stack > 0 => vec![(stack, share.asked)],
                _ => Vec::new(),
            },
        });
        if self.list.len() > MOST {
            let smallest = (0..self.list.len()).min_by_key(|&place| self.list[place].grown);
            smallest.map(|place| self.list.remove(place));
        }
    }

    pub fn largest(&self) -> Option<&Surge> {
        self.list.iter().max_by_key(|surge| surge.grown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::samples;
    use journal::format::Event;

    #[test]
    fn the_largest_are_kept_with_their_stacks() {
        let mut surges = Surges::default();
        let mut add = |time_ns, stack, grown, asked, place| {
            let share = SurgeShare {
                grown,
                over_ns: 5,
                asked,
                place,
            };
            let record = samples::record(time_ns, Event::Surge(share));
            surges.add(&Record { stack, ..record }, share);
        };
        add(1, 0, 7, 0, 0);
        for time_ns in 2..30 {
            add(time_ns, 3, 100 * time_ns, 60, 1);
            add(time_ns, 4, 100 * time_ns, 40, 2);
        }
        assert_eq!((surges.list.len(), surges.list[0].time_ns), (MOST, 14));
        let largest = surges.largest().unwrap();
        assert_eq!((largest.time_ns, &largest.shares[..]), (29, &[(3, 60), (4, 40)][..]));
    }
}
