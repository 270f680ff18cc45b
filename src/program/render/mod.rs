//! How results look, as text and as JSON. These parts serve more than one command.

pub mod format;
pub mod job_page;
pub mod progress;
pub mod reconciliation;
pub mod table;
pub mod variables;
