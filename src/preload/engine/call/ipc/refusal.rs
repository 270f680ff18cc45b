//! Why a block is not shared.

use base::cuda::DriverError;
use base::say::warn;

/// What the user can do about memory that `auto_growth` mapped. Segments of the driver are shared in another way.
pub const MAPPED: &str = "run the job with VRAMSHIM_STRATEGY=naive_best_fit or passthrough to share memory";
/// The same about a segment of the driver, which holds blocks of other requests too.
pub const SEGMENT: &str = "run the job with VRAMSHIM_STRATEGY=passthrough to share memory";

pub struct Refusal {
    /// The error that the job gets.
    pub error: DriverError,
    /// The explanation on stderr; empty for an error that the driver would not explain either.
    pub why: String,
}

impl Refusal {
    pub fn new(error: DriverError, why: impl Into<String>) -> Self {
        let why = why.into();
        Refusal { error, why }
    }

    pub fn silent(error: DriverError) -> Self {
        Refusal::new(error, "")
    }

    /// The driver failed: `what` and its error.
    pub fn by_driver(error: DriverError, what: &str) -> Self {
        Refusal::new(error, format!("{what} (CUDA error {})", error.0))
    }

    /// As `by_driver`, for failures that another strategy avoids.
    pub fn with_way_out(error: DriverError, what: &str, way_out: &str) -> Self {
        let Refusal { error, why } = Refusal::by_driver(error, what);
        Refusal::new(error, format!("{why}; {way_out}"))
    }

    /// Warns of the refusal of `what`; returns the error for the job.
    pub fn report(self, what: &str) -> DriverError {
        if !self.why.is_empty() {
            warn!("{what}: {}", self.why);
        }
        self.error
    }
}
