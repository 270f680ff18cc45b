//! Sends the metrics again and again, on a thread of its own.
//!
//! Each message has the figures of its moment, and counters count from their beginning. So a message that was not taken is not
//! kept: the next one says more.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use base::sync::lock;
use tokio::runtime::{Builder, Runtime};

use super::client::{Refused, post};
use super::receiver::Receiver;
use super::request::request;
use crate::say::say;
use crate::serve::node::{Node, now_ns};

/// The longest pause after failures, if `every` is not longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Sends the metrics of the node from now on. A failure ends nothing.
pub fn start(node: Arc<Mutex<Node>>, receiver: Receiver, every: Duration) {
    let tell = |error: io::Error| say!("the metrics are not pushed: {error}");
    let run = move || match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => push(&node, &receiver, every, &runtime),
        Err(error) => tell(error),
    };
    if let Err(error) = thread::Builder::new().name("push".to_owned()).spawn(run) {
        tell(error);
    }
}

fn push(node: &Mutex<Node>, receiver: &Receiver, every: Duration, runtime: &Runtime) {
    let mut state = State::default();
    loop {
        let begin = Instant::now();
        let message = {
            let mut node = lock(node);
            node.collect();
            request(&node, &receiver.attributes)
        };
        let outcome = runtime.block_on(post(receiver, &message));
        drop(message);
        if let Some(news) = state.note(&outcome) {
            say!("push to {receiver}: {news}");
        }
        let asked = outcome.err().and_then(|refused| refused.wait);
        let pause = state.pause(every, asked, now_ns());
        thread::sleep(pause.saturating_sub(begin.elapsed()));
    }
}

/// What became of the last messages.
#[derive(Default)]
struct State {
    /// Messages since the last one that was taken.
    failures: u32,
    /// What was told last.
    told: Option<String>,
}

impl State {
    /// Takes the outcome of a message. Returns what is to be told: what was told before is not told again.
    fn note(&mut self, outcome: &Result<Option<String>, Refused>) -> Option<String> {
        self.failures = match outcome {
            Ok(_) => 0,
            Err(_) => self.failures.saturating_add(1),
        };
        let news = match outcome {
            Ok(said) => said.as_ref().map(|said| format!("the metrics are taken, but {said}")),
            Err(refused) => Some(format!(
                "the metrics are not taken, serve goes on and tries again: {}",
                refused.why
            )),
        };
        if news == self.told {
            return None;
        }
        self.told = news.clone();
        news.or_else(|| Some("the metrics are taken again".to_owned()))
    }

    /// How long after the last message the next one is sent: twice as long after each failure, and at least as long as the
    /// receiver asks. A part that `chance` chooses keeps the nodes of a cluster from coming back all at once.
    fn pause(&self, every: Duration, asked: Option<Duration>, chance: u64) -> Duration {
        if self.failures == 0 {
            return every;
        }
        let longest = LONGEST_PAUSE.max(every);
        let doubled = every.saturating_mul(1 << self.failures.min(16)).min(longest);
        let pause = doubled.max(asked.unwrap_or_default().min(longest));
        pause + pause / 4 * (chance % 1000) as u32 / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(why: &str) -> Result<Option<String>, Refused> {
        Err(why.to_owned().into())
    }

    #[test]
    fn a_failure_is_told_once_and_so_is_its_end() {
        let mut state = State::default();
        assert_eq!(state.note(&Ok(None)), None);
        let told = state.note(&refused("one")).unwrap();
        assert!(told.ends_with("tries again: one"), "{told}");
        assert_eq!(state.note(&refused("one")), None);
        assert!(state.note(&refused("other")).is_some());
        assert_eq!(state.note(&Ok(None)), Some("the metrics are taken again".to_owned()));
        assert_eq!(state.note(&Ok(None)), None);
        let partly = Ok(Some("it says: x".to_owned()));
        assert_eq!(
            state.note(&partly),
            Some("the metrics are taken, but it says: x".to_owned())
        );
        assert_eq!(state.note(&partly), None);
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_one_success_ends_that() {
        let seconds = Duration::from_secs;
        let every = seconds(15);
        let mut state = State::default();
        assert_eq!(state.pause(every, None, 999), every);
        for expected in [30, 60, 120, 240, 300, 300] {
            let _ = state.note(&refused("no"));
            assert_eq!(state.pause(every, None, 0), seconds(expected));
            let longest = state.pause(every, None, 999);
            assert!(
                longest > seconds(expected) && longest < seconds(expected) * 5 / 4,
                "{longest:?}"
            );
        }
        assert_eq!(state.pause(seconds(3600), None, 0), seconds(3600));
        let _ = state.note(&Ok(None));
        assert_eq!(state.pause(every, None, 0), every);
        let _ = state.note(&refused("no"));
        assert_eq!(state.pause(every, Some(seconds(100)), 0), seconds(100));
        assert_eq!(state.pause(every, Some(seconds(86400)), 0), seconds(300));
    }
}
