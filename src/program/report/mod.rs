//! The report: one HTML file that shows what jobs did with GPU memory, for a reader who has only this file.
//!
//! `gather` reads each journal twice and keeps sums, so that neither memory nor file grow with the journal. `data` has
//! what the page is made from; `--json` prints it. `page` puts the data, the scripts and the style of the folder `page`
//! into one file.

mod columns;
mod data;
mod detail;
mod events;
mod gather;
mod groups;
mod page;
mod process;
mod space;
mod stacks;
mod verdict;

pub use data::Report;
pub use gather::gather;
pub use page::{is_report, write};
