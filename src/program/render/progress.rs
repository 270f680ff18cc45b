//! The progress bar for journals that take a while to read.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Journals shorter than this are read before a progress bar would be seen.
pub const WORTH_A_BAR_BYTES: u64 = 32 << 20;

/// A bar on standard error for reading `total` bytes of what is called `name`. It is hidden unless standard error is a
/// terminal.
pub fn reading(total: u64, name: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("reading {msg} {wide_bar} {binary_bytes}/{binary_total_bytes}") {
        bar.set_style(style);
    }
    bar.set_message(name.to_owned());
    bar
}
