//! What else a job holds, or does, at the failure that ends it.

use support::{AUTO_GROWTH, PASSTHROUGH};

use super::{assert_verdict, job, why};

/// Strategies serve linear memory. What the job holds besides is taken from the room that they would have.
#[test]
fn memory_that_no_strategy_serves_is_no_room_for_one() {
    let finished = job("beside").strategy(PASSTHROUGH).run();
    let told = why(&finished);
    assert_verdict(&told, "live_set", 12);
    assert_eq!(told.page["replay"]["fits"], false, "{}", told.text);
    assert!(!told.text.contains("this request fits"), "{}", told.text);
    let tried = job("beside").strategy(AUTO_GROWTH).run();
    assert_eq!(tried.status.code(), Some(1), "{}", tried.stderr);

    let finished = job("pooled").strategy(PASSTHROUGH).run();
    let told = why(&finished);
    assert_verdict(&told, "live_set", 12);
    assert!(told.page["replay"].is_null(), "{}", told.text);
}

/// A process that aborts is killed by a signal, as far as its journal knows, and its other threads go on until then.
#[test]
fn another_thread_that_allocates_before_the_process_aborts_does_not_hide_the_failure() {
    let finished = job("meanwhile").strategy(PASSTHROUGH).run();
    assert_eq!(finished.status.code(), None, "{}", finished.stderr);
    let told = why(&finished);
    assert_verdict(&told, "live_set", 12);
    assert!(told.text.starts_with("Verdict: "), "{}", told.text);
}
