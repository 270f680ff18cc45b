//! The progress bars for what takes a while.

use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

/// Smaller journals are read before a progress bar would be seen.
pub const WORTH_A_BAR_BYTES: u64 = 32 << 20;

/// A progress bar on standard error, until it is dropped. Without a terminal it is hidden.
fn bar(length: u64, template: &str) -> ProgressBar {
    let bar =
        ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr()).with_finish(ProgressFinish::AndClear);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// For reading `total` bytes. `name` is shown beside the bar.
pub fn reading(total: u64, name: &str) -> ProgressBar {
    let bar = bar(total, "reading {msg} {wide_bar} {binary_bytes}/{binary_total_bytes}");
    bar.set_message(name.to_owned());
    bar
}

/// Smaller files are read before a progress display would be seen.
const LONG_FILE_BYTES: u64 = 8 << 20;

/// Shows that these files are being read, until the returned bar is dropped. `None` if that is quick.
pub fn reading_files(paths: impl IntoIterator<Item = impl AsRef<Path>>, what: &str) -> Option<ProgressBar> {
    let lengths = paths.into_iter().filter_map(|path| std::fs::metadata(path).ok());
    (lengths.map(|found| found.len()).sum::<u64>() >= LONG_FILE_BYTES).then(|| spinner(format!("reading {what}")))
}

/// Shows that something is going on, until it is dropped. Hidden unless standard error is a terminal.
pub fn spinner(message: String) -> ProgressBar {
    let spinner = ProgressBar::new_spinner()
        .with_finish(ProgressFinish::AndClear)
        .with_message(message);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// For work of a known duration. Its position is in milliseconds.
pub fn working(whole: Duration) -> ProgressBar {
    bar(whole.as_millis() as u64, "{wide_bar} {percent} % {elapsed} {msg}")
}
