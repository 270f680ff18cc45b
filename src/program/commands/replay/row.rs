//! One row of the answer: how a strategy did.

use crate::replay::{Outcome, Trace};

/// How a strategy fared, and the smallest device it fits.
pub struct Row {
    pub outcome: Outcome,
    pub smallest: Option<u64>,
}

impl Row {
    /// Nothing where requests failed: the two peaks are of different runs then.
    pub fn utilisation(&self, trace: &Trace) -> Option<f64> {
        let utilisation = trace.peak_live as f64 / self.outcome.peak_reserved.max(1) as f64;
        (self.outcome.failed == 0).then_some(utilisation)
    }
}
