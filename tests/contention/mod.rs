//! Many threads that allocate in one context at the same time. Some of the threads get subpools, and every byte is
//! still counted.

use std::time::{Duration, Instant};

use journal::format::Event;
use journal::reader::Journal;
use serde_json::json;
use support::{
    AUTO_GROWTH, Finished, Job, MIB, NAIVE_BEST_FIT, PASSTHROUGH, STRATEGIES, Strategy, assert_agree, assert_all_agree,
    assert_fields, assert_journal_agrees, client, left_out,
};

fn scene(name: &str) -> Job {
    let path = client("contention/threads.c", "contention", &["libcuda.so.1"]);
    Job::new(path).args([name])
}

fn crowd(strategy: Strategy, threads: u32, memory: &str, large: u32) -> Finished {
    let path = client("support/clients/contend.c", "contend", &["libcuda.so.1"]);
    let arguments = [threads, 4000, 7, large].map(|number| number.to_string());
    let job = Job::new(path).strategy(strategy).sim(memory, 1);
    let finished = job.env("VRAMSHIM_LOG", "debug").args(arguments).run().ok();
    let checkpoints = finished.json();
    assert_eq!(checkpoints.len(), 3);
    assert_all_agree(&checkpoints, strategy, "");
    let job = finished.inspect();
    assert_fields(&job, json!({"anomalies": 0, "events_lost": 0}), "");
    finished
}

fn subpools(finished: &Finished) -> usize {
    let mut said = finished.said();
    said.retain(|(_, words)| words.contains("is served by subpool"));
    said.len()
}

/// Nothing is slow while a policy is locked, so it is a matter of chance whether threads contend. Of this many runs one
/// does, and on a busy machine one of those in this time.
const TRIES: u32 = 30;
const TIME: Duration = Duration::from_secs(60);

/// A run in which four threads contended. `None` on one processor, where threads hardly ever meet.
fn contended(strategy: Strategy, memory: &str, large: u32) -> Option<Finished> {
    if std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1) {
        left_out("threads that contend: there is one processor");
        return None;
    }
    let end = Instant::now() + TIME;
    let tries = (0..).take_while(|&tried| tried < TRIES || Instant::now() < end);
    let mut runs = tries.map(|_| crowd(strategy, 4, memory, large));
    let found = runs.find(|finished| subpools(finished) > 0);
    Some(found.unwrap_or_else(|| panic!("{strategy:?}: no thread got a subpool")))
}

fn tells(finished: &Finished, words: &str) -> bool {
    finished.stdout.lines().any(|line| line == words)
}

#[test]
fn threads_that_contend_get_subpools_and_every_byte_is_counted() {
    for strategy in STRATEGIES {
        let finished = match strategy.name {
            "passthrough" => Some(crowd(strategy, 4, "8GiB", 1)),
            _ => contended(strategy, "8GiB", 1),
        };
        let Some(finished) = finished else { continue };
        let none_refused = tells(&finished, "refused 0") && tells(&finished, "large 0");
        assert!(none_refused, "{}", finished.stdout);
        assert!(strategy.name != "passthrough" || subpools(&finished) == 0);
    }
}

#[test]
fn a_lone_thread_gets_no_subpool() {
    assert_eq!(subpools(&crowd(AUTO_GROWTH, 1, "8GiB", 1)), 0);
}

#[test]
fn free_memory_of_subpools_serves_a_large_request() {
    // Eight small blocks stay live. If the device was full before, each may lie in a handle of 32 MiB, and keeps all of it.
    let Some(finished) = contended(AUTO_GROWTH, "1GiB", 1024 - 8 * 32 - 64) else {
        return;
    };
    assert!(tells(&finished, "large 0"), "{}", finished.stdout);
}

/// The chunks are small, so that chunks of several contexts lie in the same page of 2 MiB of the table of owners.
#[test]
fn contexts_that_share_pages_do_not_stop_each_other() {
    let job = scene("crossing").sim("4GiB", 4).strategy(NAIVE_BEST_FIT);
    let job = job.env("FLAGS_initial_gpu_memory_in_mb", "1");
    job.env("FLAGS_reallocate_gpu_memory_in_mb", "1").run().ok();
}

#[test]
fn of_threads_that_free_the_same_block_one_succeeds() {
    for strategy in STRATEGIES {
        let finished = scene("rivals").strategy(strategy).sim("8GiB", 1).run().ok();
        assert!(tells(&finished, "freed 20000"), "{strategy:?}: {}", finished.stdout);
        let checkpoint = &finished.json()[0];
        assert_agree(checkpoint, strategy, &format!("{strategy:?}"));
        assert_eq!(finished.inspect()["anomalies"], 0, "{strategy:?}");
    }
}

/// A record tells what all pools of a device hold. If threads write their records in another order than they changed the
/// sum, an old sum follows a newer one. Each change here is one pool's step, so each record differs by one step from the
/// record before it.
#[test]
fn pools_of_the_driver_that_change_together_are_recorded_in_order() {
    const STEP: u64 = 32 * MIB;
    let finished = scene("pools").strategy(PASSTHROUGH).sim("8GiB", 1).run().ok();
    let last = finished.json().pop().expect("a checkpoint");
    assert_agree(&last, PASSTHROUGH, "pools");
    assert_journal_agrees(&finished.inspect(), &last, "pools");

    let journal = Journal::open(&finished.journals()[0]).expect("the journal");
    let mut sums = Vec::new();
    for record in journal.records() {
        if let Event::PoolReserved { reserved, .. } = record.expect("a record").event {
            sums.push(reserved);
        }
    }
    assert!(sums.len() > 3000, "{} records", sums.len());
    for pair in sums.windows(2) {
        assert_eq!(pair[0].abs_diff(pair[1]), STEP, "{pair:?}");
    }
}
