//! A job that repeats itself: after three repetitions `auto_growth` leaves its memory as it is. The client
//! `support/clients/play.c` plays the requests of jobs through the allocator for PyTorch. The simulated GPU counts the
//! calls that reach it.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;

use flate2::read::GzDecoder;
use serde_json::Value;
use support::traces::{self, Event};
use support::{
    AUTO_GROWTH, AUTO_GROWTH_WITHOUT_VMM as CHUNKS, Job, NAIVE_BEST_FIT_OF_ALL, Strategy, client, root, tests,
};

const REPETITIONS: u64 = 6;
/// The repetition from which on nothing may change.
const SETTLED: u64 = 4;

struct Played {
    name: String,
    /// One repetition.
    trace: String,
    arguments: Vec<String>,
}

fn csv(events: &[Event]) -> String {
    let mut bytes = Vec::new();
    traces::write_events(&mut bytes, events).expect("memory");
    String::from_utf8(bytes).expect("ASCII")
}

fn arguments(more: &[&str]) -> Vec<String> {
    let repeat = ["--repeat".to_owned(), REPETITIONS.to_string()];
    repeat
        .into_iter()
        .chain(more.iter().map(|&text| text.to_owned()))
        .collect()
}

/// A generated sequence, whose sizes change by so many percent with every repetition.
fn generated(name: &str, events: &[Event], noise: u64) -> Played {
    Played {
        name: name.to_owned(),
        trace: csv(events),
        arguments: arguments(&["--noise", &noise.to_string()]),
    }
}

/// A recorded PyTorch job. It frees its last blocks when the repetition ends.
fn recorded(name: &str) -> Played {
    let path = root()
        .join("tests/repeated_jobs/recorded")
        .join(format!("{name}.csv.gz"));
    let file = std::fs::File::open(path).expect("a recorded trace");
    let mut trace = String::new();
    GzDecoder::new(file).read_to_string(&mut trace).expect("text");
    Played {
        name: name.to_owned(),
        trace,
        arguments: arguments(&[]),
    }
}

/// `counting` is the variable that makes the simulated GPU count calls.
fn play(strategy: Strategy, counting: &str, played: &Played) -> Vec<Value> {
    let path = client("support/clients/play.c", "play", &["libcuda.so.1"]);
    // The longest trace takes a minute of the processor.
    let job = Job::new(path).sim("80GiB", 1).env(counting, "1");
    let job = job.limit(Duration::from_secs(600));
    let finished = job
        .strategy(strategy)
        .input(&played.trace)
        .args(&played.arguments)
        .run();
    finished.ok().json()
}

fn number(page: &Value, path: &str) -> u64 {
    let found = page.pointer(path).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no {path} in {page}"))
}

fn faults(strategy: Strategy, played: &Played) -> Vec<String> {
    let repetitions = play(strategy, "SIMGPU_COUNTS", played);
    assert_eq!(repetitions.len() as u64, REPETITIONS, "{}", played.name);
    let mut faults = Vec::new();
    for page in &repetitions {
        let (repetition, requests) = (number(page, "/repetition"), number(page, "/requests"));
        let (changes, waits) = (number(page, "/changes"), number(page, "/allocations/waits"));
        if repetition >= SETTLED && changes * 1000 > requests {
            let calls = &page["calls"];
            faults.push(format!(
                "repetition {repetition}: {changes} calls for {requests} requests: {calls}"
            ));
        }
        if repetition >= SETTLED && waits > 0 {
            faults.push(format!("repetition {repetition}: {waits} waits inside allocations"));
        }
        assert_eq!(number(page, "/hazards"), 0, "{}: {page}", played.name);
    }
    faults
}

/// All traces are played before the test fails.
fn settle(strategy: Strategy, traces: impl IntoIterator<Item = Played>) {
    let told: BTreeMap<String, Vec<String>> = traces
        .into_iter()
        .map(|played| (played.name.clone(), faults(strategy, &played)))
        .filter(|(_, faults)| !faults.is_empty())
        .collect();
    assert!(told.is_empty(), "{told:#?}");
}

tests! {
    repeated_requests_of_pytorch_jobs_change_no_memory =>
        settle(AUTO_GROWTH, ["adapters", "convolutions", "llama_variable", "sharded", "prefetching"].map(recorded));
    repeated_generated_requests_change_no_memory => settle(AUTO_GROWTH, [
        generated("variable_lengths", &traces::variable_lengths(1), 0),
        generated("inference_bursts", &traces::inference_bursts(1), 0),
        generated("model_switching", &traces::model_switching(1), 0),
        generated("pipeline", &traces::pipeline(1), 0),
        generated("growing", &traces::growing(1), 0),
    ]);
    requests_whose_sizes_are_never_the_same_change_no_memory => settle(AUTO_GROWTH, [
        generated("variable_lengths", &traces::variable_lengths(2), 5),
        generated("inference_bursts", &traces::inference_bursts(2), 5),
    ]);
    requests_of_two_jobs_at_once_change_no_memory => settle(AUTO_GROWTH, [
        generated("both", &traces::interleaved(1, &traces::inference_bursts(3), &traces::pipeline(3)), 0),
    ]);
}

/// Each request has another size in each repetition, but their order is the same. So the job is not taken for a random one,
/// for which every byte is worth a call. Memory still grows a little, because the sum of random sizes does.
#[test]
fn jobs_whose_sizes_differ_change_little_memory() {
    let mut told = BTreeMap::new();
    for name in ["adapters", "llama_variable", "prefetching"] {
        let mut played = recorded(name);
        played.arguments = arguments(&["--noise", "5"]);
        let repetitions = play(AUTO_GROWTH, "SIMGPU_COUNTS", &played);
        let requests = number(&repetitions[0], "/requests");
        let changes: Vec<u64> = repetitions.iter().map(|page| number(page, "/changes")).collect();
        let many_later = changes[1..].iter().any(|changes| changes * 100 > requests);
        if many_later || changes.iter().sum::<u64>() > requests {
            told.insert(name, (changes, requests));
        }
    }
    assert!(told.is_empty(), "calls of each repetition, and its requests: {told:#?}");
}

/// The host is 700 requests ahead of the device, so most freed memory is still in use for a while.
#[test]
fn memory_that_late_work_uses_is_neither_handed_out_nor_unmapped() {
    for name in ["prefetching", "sharded"] {
        let mut played = recorded(name);
        played.arguments = ["--repeat", "2", "--lag", "700"].map(str::to_owned).to_vec();
        for strategy in [AUTO_GROWTH, CHUNKS, NAIVE_BEST_FIT_OF_ALL] {
            for page in play(strategy, "SIMGPU_DELAYED", &played) {
                let faults = ["/early", "/hazards", "/allocations/waits"].map(|path| number(&page, path));
                assert_eq!(faults, [0; 3], "{name} {strategy:?}: {page}");
            }
        }
    }
}
