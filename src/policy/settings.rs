//! The variables that size what a policy asks the next layer for.

/// Values of Paddle's flags (`paddle/common/flags.cc`), with Paddle's defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Share of the available memory that naive_best_fit reserves if no size is given.
    pub fraction: f64,
    /// First reservation of naive_best_fit; 0 if it is a share of the available memory.
    pub initial_bytes: u64,
    /// Later reservations of naive_best_fit; 0 if they are a share of the available memory.
    pub reallocate_bytes: u64,
    /// Size of a granule of auto_growth, or the least size of a chunk.
    pub chunk_bytes: u64,
    /// Whether auto_growth gives a chunk back as soon as no block in it is live.
    pub free_idle_chunk: bool,
    /// Whether auto_growth gives idle chunks back before it obtains a new one.
    pub free_when_no_cache_hit: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            fraction: 0.92,
            initial_bytes: 0,
            reallocate_bytes: 0,
            chunk_bytes: 0,
            free_idle_chunk: false,
            free_when_no_cache_hit: false,
        }
    }
}
