//! The parts of text and JSON output that more than one command uses.

pub mod format;
pub mod host_memory;
pub mod job_page;
pub mod next_step;
pub mod odd_one;
pub mod page;
pub mod plot;
pub mod progress;
pub mod reclaims;
pub mod reconciliation;
pub mod stacks;
pub mod table;
pub mod tensors;
pub mod variables;
pub mod verdict;
pub mod width;
