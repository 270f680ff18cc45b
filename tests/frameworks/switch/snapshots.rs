//! What is known of tensors without a switch: snapshots of PyTorch's live tensors, under `vramshim run` and where the
//! library is preloaded and nothing else is done.

use super::*;

/// A job that was started without `--torch`.
fn plain(memory: &str, arguments: &[&str]) -> Finished {
    with_options(&[], memory, arguments).run()
}

/// A job that has the library by `LD_PRELOAD` alone.
fn bare(memory: &str, arguments: &[&str]) -> Finished {
    let nothing_else = ["env", "-u", "PYTHONPATH", "-u", "VRAMSHIM_TORCH"];
    behind(&nothing_else, &["--torch", "off"], memory, arguments).run()
}

const WAYS: [fn(&str, &[&str]) -> Finished; 2] = [plain, bare];

#[test]
fn the_first_death_is_judged_by_tensors() {
    for way in WAYS {
        is_judged_by_tensors(way("24GiB", &[&path("fragmented.py")]));
    }
}

fn is_judged_by_tensors(finished: Finished) {
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let (told, own) = (finished.told(&["why", "--json"]), &finished.json()[0]);
    let page = told.json();
    assert_eq!(told.code, Some(14), "{page:#}");
    assert_eq!(page["why"]["failure"]["tries"], 2, "{page:#}");
    let [allocated, reserved] = ["allocated", "reserved"].map(|figure| own[figure].number());
    let ledger = &page["why"]["ledger"];
    let figures = ["live", "cached"].map(|name| ledger[name].number());
    assert_eq!(figures, [allocated, reserved - allocated], "{page:#}");
    let holders = page["holders"].list();
    assert!(holders[0]["what"].text().contains("fragmented.py:7"), "{page:#}");
    let held: u64 = holders.iter().map(|holder| holder["bytes"].number()).sum();
    assert_eq!(held, allocated, "{page:#}");
    let is_replay = page["next"].to_string().contains("Replay");
    assert!(!is_replay, "snapshots are no requests: {page:#}");
    assert_eq!(tensors(&finished)["from"], "state");
    assert_said(&finished, &["of its segments"]);
}

/// At most one a second. A compiled step is as it was.
#[test]
fn steps_of_optimizers_are_marks() {
    const JOB: &str = "
import sys, time, torch
weight = torch.ones(4, device='cuda', requires_grad=True)
weight.grad = torch.zeros_like(weight)
optimizer = torch.optim.SGD([weight], lr=0.5)
for pause in (0, 1.1, 0, 1.1):
    time.sleep(pause), optimizer.step()
if sys.argv[1] == 'compiled':
    torch.compile(lambda: optimizer.step(), backend='eager')()";
    for (way, last) in WAYS.into_iter().zip(["compiled", "none"]) {
        let page = way("1GiB", &["-c", JOB, last]).ok().told(&["report", "--json"]).json();
        let marks = page["processes"][0]["marks"].list();
        let steps = marks.iter().filter(|mark| mark["text"] == "optimizer.step");
        assert_eq!(steps.count(), 3, "{marks:?}");
    }
}

/// A snapshot that comes late shows the failure. Without one, what is used of PyTorch's segments is not known.
#[test]
fn a_late_snapshot_is_of_the_failure_and_without_one_the_cache_is_not_known() {
    const JOB: &str = "
import sys, time, torch
recorder = sys.modules['vramshim.state']
snapshot = recorder._history.snapshot
def late():
    time.sleep(1.5)
    return snapshot()
if sys.argv[1] == 'late':
    recorder._history.snapshot = late
elif sys.argv[1] == 'second':
    tell = recorder.State._out_of_memory
    recorder.State._out_of_memory = lambda self, *told: (self.ask(), tell(self, *told))
else:
    recorder.State._leaves_out = lambda _: True
kept = [torch.empty(3 << 20, dtype=torch.uint8, device='cuda') for _ in range(100)]
torch.empty(700 << 20, dtype=torch.uint8, device='cuda')
";
    // `second`: a snapshot is taken between the failure and its own.
    let all = json!(300 << 20);
    for (snapshot, live) in [("late", &all), ("second", &all), ("none", &json!(null))] {
        let told = plain("1GiB", &["-c", JOB, snapshot]).told(&["why", "--json"]);
        let page = told.json();
        assert_eq!(page["why"]["ledger"]["live"], *live, "{snapshot}: {page:#}");
        assert_eq!(page["why"]["ledger"]["live_or_cached"], json!(340 << 20), "{page:#}");
        let says = page["why"]["text"].text().contains("took no snapshot at this failure");
        assert_eq!(says, live.is_null(), "{page:#}");
    }
}

#[test]
fn a_killed_job_has_its_last_snapshot() {
    for way in WAYS {
        let finished = way("8GiB", &[&path("holders.py"), "killed"]);
        assert_eq!(finished.status.code(), None, "{}", finished.stderr);
        let told = tensors(&finished);
        let [end, failure] = ["end", "failure"].map(|moment| &told["devices"][0][moment]);
        assert_fields(end, json!({"bytes": 30 << 20, "tensors": 10, "others": 5 << 20}), "end");
        let line = &failure["holders"][0]["line"]["line"];
        assert_eq!(*line, finished.json()[0]["weights"], "{told:#}");
        assert!(told["until_ns"].number() > 1_000_000_000, "{told:#}");
    }
}

/// A job that records itself keeps its history, and one in which another thread uses CUDA has all its tensors.
#[test]
fn a_recorder_that_comes_late_takes_nothing_away() {
    let own = "
import torch
torch.cuda.memory._record_memory_history()
kept = torch.empty(3 << 20, dtype=torch.uint8, device='cuda')
assert len(torch.cuda.memory._snapshot()['device_traces'][0]) == 2
";
    let finished = bare("8GiB", &["-c", own]).ok();
    assert_said(&finished, &["records PyTorch's memory history itself"]);
    let thread = "
import threading, time, torch
kept = []
def work():
    kept.extend(torch.empty(3 << 20, dtype=torch.uint8, device='cuda') for _ in range(10))
    time.sleep(1)
thread = threading.Thread(target=work)
thread.start()
while thread.is_alive():
    time.sleep(0.01)
";
    let end = &tensors(&bare("8GiB", &["-c", thread]).ok())["devices"][0]["end"];
    assert_fields(end, json!({"bytes": 30 << 20, "tensors": 10}), "end");
}

/// The job's own observer and results stay, and a search for the largest batch writes little.
#[test]
fn failures_that_the_job_survives_cost_a_bound() {
    let code = "
import torch
kept = [torch.empty(1 << 20, device='cuda') for _ in range(300)]
seen = []
torch._C._cuda_attach_out_of_memory_observer(lambda *told: seen.append(told))
for number in range(500):
    try:
        torch.empty((1 << 40) + number, device='cuda')
    except torch.OutOfMemoryError:
        pass
print(len(seen))
";
    let finished = plain("8GiB", &["-c", code]).ok();
    assert_eq!(finished.stdout.trim(), "500");
    assert_fields(&tensors(&finished), json!({"recorded": 300, "damaged": 0}), "");
}

/// Forked and spawned processes, and a process that imports PyTorch but uses no GPU.
#[test]
fn each_process_that_uses_a_gpu_has_its_own_snapshots() {
    let code = "
import os, sys, threading, torch
assert threading.active_count() == 1
if os.fork() == 0:
    kept = torch.empty(3 << 20, dtype=torch.uint8, device='cuda')
    sys.exit(3)
assert os.wait()[1] >> 8 == 3
if os.fork() == 0:
    sys.exit(threading.active_count() - 1)
assert os.wait()[1] == 0
kept = torch.empty(5 << 20, dtype=torch.uint8, device='cuda')
pid = os.fork()
if pid == 0:
    sys.exit(4)
assert os.waitpid(pid, 0)[1] >> 8 == 4
assert threading.active_count() == 2 and 'torch._inductor' not in sys.modules
";
    let finished = bare("8GiB", &["-c", code]).ok();
    let at_end = |job: &Value| job["tensors"]["devices"][0]["end"]["bytes"].number();
    let mut held: Vec<u64> = finished.inspect_all().iter().map(at_end).collect();
    held.sort_unstable();
    assert_eq!(held, [3 << 20, 5 << 20], "{}", finished.stderr);
    assert_said(&finished, &[]);
}

/// Neither a lost stderr nor a deep stack changes the error that the job gets.
#[test]
fn a_job_gets_its_own_error() {
    let code = "
import os, sys, torch
kept = torch.empty(1 << 20, device='cuda')
def fail():
    try:
        torch.empty(1 << 40, device='cuda')
    except BaseException as problem:
        print(type(problem).__name__, flush=True)
def deep(left):
    deep(left - 1) if left else fail()
deep(sys.getrecursionlimit() - 10)
sys.stderr = None
fail()
read, write = os.pipe()
os.close(read)
os.dup2(write, 2)
fail()
";
    let finished = plain("8GiB", &["-c", code]).ok();
    let errors: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(errors, ["OutOfMemoryError"; 3], "{}", finished.stderr);
}

#[test]
fn a_segment_that_is_obtained_again_at_its_address_has_its_tensors() {
    let code = "
import time, torch
other = torch.empty(5 << 20, dtype=torch.uint8, device='cuda')
places = set()
for _ in range(2):
    kept = None
    torch.cuda.empty_cache()
    kept = torch.empty(30 << 20, dtype=torch.uint8, device='cuda')
    places.add(kept.data_ptr())
    time.sleep(1.5)
assert len(places) == 1
";
    let finished = plain("8GiB", &["-c", code]).ok();
    let told = tensors(&finished);
    let wanted = json!({"bytes": 35 << 20, "tensors": 2});
    assert_fields(&told["devices"][0]["end"], wanted, "end");
    assert_eq!(told["recorded"], 2, "{told:#}");
}
