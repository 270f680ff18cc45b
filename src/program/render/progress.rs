//! The progress bars for what takes a while.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Smaller journals are read before a progress bar would be seen.
pub const WORTH_A_BAR_BYTES: u64 = 32 << 20;

/// A progress bar on standard error for reading `total` bytes. `name` is shown beside the bar. Without a terminal the
/// bar is hidden.
pub fn reading(total: u64, name: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("reading {msg} {wide_bar} {binary_bytes}/{binary_total_bytes}") {
        bar.set_style(style);
    }
    bar.set_message(name.to_owned());
    bar
}

/// A progress bar on standard error for questions to the driver. Its length is set when it is known.
pub fn asking() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("asked {pos} of {len} {wide_bar} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar
}
