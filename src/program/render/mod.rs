//! The parts of text and JSON output that more than one command uses.

pub mod format;
pub mod job_page;
pub mod progress;
pub mod reconciliation;
pub mod table;
pub mod tensors;
pub mod variables;
pub mod verdict;
