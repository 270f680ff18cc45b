//! How answers look, for people and for programs. The commands share these; nothing here decides anything.

pub mod format;
pub mod job_page;
pub mod progress;
pub mod reconciliation;
pub mod table;
pub mod variables;
