//! Lists that stay short: numbers as differences from one entry to the next, which take fewer digits, and the first and
//! the last of many entries.

use serde::Serialize;

use crate::analysis::timeline::Point;

/// The first number, then the difference to the number before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Differences(Vec<i64>);

impl FromIterator<u64> for Differences {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Self {
        let mut before = 0;
        let differences = numbers.into_iter().map(|number| {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            number - std::mem::replace(&mut before, number)
        });
        Differences(differences.collect())
    }
}

/// A level over time.
#[derive(Debug, Default, Serialize)]
pub struct Steps {
    /// Nanoseconds since the journal began.
    times_ns: Differences,
    bytes: Differences,
}

impl From<Vec<Point>> for Steps {
    fn from(points: Vec<Point>) -> Steps {
        Steps {
            times_ns: points.iter().map(|point| point.time_ns).collect(),
            bytes: points.iter().map(|point| point.bytes).collect(),
        }
    }
}

pub struct FirstAndLast<T> {
    most: usize,
    pub list: Vec<T>,
    pub in_all: u64,
}

impl<T> FirstAndLast<T> {
    pub fn new(most: usize) -> Self {
        FirstAndLast {
            most: most.max(2),
            list: Vec::new(),
            in_all: 0,
        }
    }

    /// Adds an entry. If there are many, one from the middle of the list goes.
    pub fn push(&mut self, entry: T) {
        self.in_all += 1;
        if self.list.len() == self.most {
            self.list.remove(self.most / 2);
        }
        self.list.push(entry);
    }
}
