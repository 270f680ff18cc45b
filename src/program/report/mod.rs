//! The report: one HTML file that shows what jobs did with GPU memory, for a reader who has only this file.
//!
//! `gather` reads the journals, each twice (`read_process`), and keeps sums, so that neither memory nor file grow with a
//! journal. `data` has what the page is made from; `--json` prints it. `html` puts the data, the scripts and the style of
//! the folder `page` into one file.

mod columns;
mod data;
mod events;
mod gather;
mod groups;
mod html;
mod interned;
mod ranges;
mod read_process;
mod space;
mod strategies;

pub use data::Report;
pub use gather::gather;
pub use html::{is_report, write};
