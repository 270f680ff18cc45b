//! Signs of life for traces that take long.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

/// Fewer requests times strategies than this are played before a progress bar would be seen.
const WORTH_A_BAR: u64 = 1_000_000;
/// How often a trace is played for one strategy: once for the table, and for the smallest device as often as a search
/// to 0.1% usually takes.
const PLAYS: u64 = 10;

/// Files of fewer bytes are read before anybody wonders.
const LONG_FILE: u64 = 8 << 20;

/// Shows that a long file is being read, until it is dropped.
pub fn reading(path: &Path) -> Option<ProgressBar> {
    let length = std::fs::metadata(path).ok()?.len();
    (length >= LONG_FILE).then(|| {
        // Hidden unless standard error is a terminal.
        let spinner = ProgressBar::new_spinner()
            .with_finish(ProgressFinish::AndClear)
            .with_message(format!("reading {}", path.display()));
        spinner.enable_steady_tick(Duration::from_millis(100));
        spinner
    })
}

pub struct Progress {
    bar: Option<ProgressBar>,
    /// Of one strategy, in requests.
    share: u64,
    /// Where the share of the strategy that is being played ends.
    end: Cell<u64>,
}

impl Progress {
    pub fn new(requests: u64, strategies: u64) -> Progress {
        let share = requests.saturating_mul(PLAYS);
        let worth_it = requests.saturating_mul(strategies) > WORTH_A_BAR;
        let bar = worth_it.then(|| {
            // Hidden unless standard error is a terminal.
            let whole = Some(share.saturating_mul(strategies));
            let bar = ProgressBar::with_draw_target(whole, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("playing {msg} {wide_bar} {percent} %") {
                bar.set_style(style);
            }
            bar
        });
        Progress {
            bar,
            share,
            end: Cell::new(0),
        }
    }

    /// The next strategy.
    pub fn begin(&self, name: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(name.to_owned());
            bar.set_position(self.end.get());
        }
        self.end.set(self.end.get().saturating_add(self.share));
    }

    pub fn tick(&self, requests: u64) {
        if let Some(bar) = &self.bar {
            // How often a strategy is played is a guess: where it is more often, the bar waits at the end of its share.
            bar.set_position((bar.position() + requests).min(self.end.get()));
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
