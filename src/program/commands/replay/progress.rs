//! Progress on standard error for traces that take long to read or to play.

use std::cell::Cell;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Fewer requests (requests of the trace times strategies) are played before a progress bar would be seen.
const WORTH_A_BAR_REQUESTS: u64 = 1_000_000;
/// How often a trace is usually played for one strategy: once for the table, and nine times to find the smallest
/// device.
const PLAYS: u64 = 10;

pub struct Progress {
    bar: Option<ProgressBar>,
    /// The part of the bar for one strategy, in requests.
    share: u64,
    /// The position at which the part of the present strategy ends.
    end: Cell<u64>,
}

impl Progress {
    pub fn new(requests: u64, strategies: u64) -> Progress {
        let share = requests.saturating_mul(PLAYS);
        let worth_it = requests.saturating_mul(strategies) > WORTH_A_BAR_REQUESTS;
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

    /// Starts the part of the next strategy.
    pub fn begin(&self, name: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(name.to_owned());
            bar.set_position(self.end.get());
        }
        self.end.set(self.end.get().saturating_add(self.share));
    }

    pub fn tick(&self, requests: u64) {
        if let Some(bar) = &self.bar {
            // `PLAYS` is an estimate. If a strategy is played more often, the bar waits at the end of the strategy's
            // part.
            bar.set_position((bar.position() + requests).min(self.end.get()));
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
