//! One row of the table that `replay` prints.

use crate::replay::{Outcome, Trace};

/// The result of a strategy, and the smallest device on which the strategy serves all requests.
pub struct Row {
    pub outcome: Outcome,
    pub smallest: Option<u64>,
}

impl Row {
    /// Peak live / peak reserved. `None` if requests failed, because peak live contains the failed requests, too.
    pub fn utilisation(&self, trace: &Trace) -> Option<f64> {
        let utilisation = trace.peak_live as f64 / self.outcome.peak_reserved.max(1) as f64;
        (self.outcome.failed == 0).then_some(utilisation)
    }

    /// What calls and waits take, as a share of the time of the trace, over all repetitions.
    pub fn share_of_trace(&self, trace: &Trace) -> Option<f64> {
        let repetitions = self.outcome.repetitions.len() as f64;
        let duration_ns = trace.duration_ns? as f64 * repetitions;
        Some(self.outcome.bill().total_ns() as f64 / duration_ns)
    }
}
