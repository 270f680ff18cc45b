//! The parts of text and JSON output that more than one command uses.

pub mod answer;
pub mod format;
pub mod holders_and_next;
pub mod host_memory;
pub mod job_page;
pub mod next_step;
pub mod progress;
pub mod table;
pub mod text_or_json;
pub mod verdict_lines;
