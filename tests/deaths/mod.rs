//! Ways in which a job dies: each gets the right verdict, and each line of the ledger is what the simulated GPU says.

mod caches;
pub mod evidence;
mod layers;
mod leaks;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::member::Host;
use support::{
    AUTO_GROWTH, Fields, Finished, Job, MIB, NAIVE_BEST_FIT_OF_ALL, PASSTHROUGH, Strategy, assert_fields, assert_says,
    client, run_to_shortage, vramshim,
};

use crate::views::agree::{Held, assert_failure, assert_moments};

const GIB: u64 = 1 << 30;
const CONTEXT: u64 = 300 << 20;

fn deaths() -> PathBuf {
    client("deaths/deaths.c", "deaths", &["-DDLOPEN"])
}

pub fn job(scene: &str) -> Job {
    Job::new(deaths()).sim("24GiB", 1).args([scene]).on_one_host()
}

pub struct Told {
    pub code: Option<i32>,
    pub text: String,
    said: String,
    pub page: Value,
}

fn why_of(path: &Path) -> Told {
    let path = path.to_str().unwrap();
    let (text, json) = (vramshim(&["why", path]), vramshim(&["why", path, "--json"]));
    assert_eq!(text.code, json.code, "{}", text.said);
    Told {
        code: text.code,
        text: text.text,
        said: text.said,
        page: serde_json::from_str(&json.text).unwrap_or_default(),
    }
}

pub fn why(finished: &Finished) -> Told {
    why_of(&finished.folder.path().join("journals"))
}

/// Compares the verdict in JSON, and the exit code that tells it.
#[track_caller]
fn assert_verdict(told: &Told, verdict: &str, code: i32) {
    let answer = (&told.page["why"]["verdict"], told.code);
    assert_eq!(answer, (&verdict.into(), Some(code)), "{}", told.text);
}

#[track_caller]
fn explained(job: Job, verdict: &str, code: i32) -> (Finished, Told) {
    let finished = job.run();
    let told = why(&finished);
    assert_verdict(&told, verdict, code);
    (finished, told)
}

/// Compares each line of the ledger with what the simulated GPU said right after the failure.
fn assert_true(finished: &Finished, told: &Told, live: u64) {
    let truth = &finished.json().pop().expect("a checkpoint")["truth"]["devices"][0];
    let ledger = &told.page["why"]["ledger"];
    let (total, own) = (truth["total"].number(), truth["used_by_process"].number());
    let used = total - truth["free"].number();
    let part = |name: &str| ledger[name].number();
    assert_eq!(part("total"), total, "{ledger}");
    assert_eq!(part("free"), part("total") - used, "{ledger}");
    assert_eq!((part("live"), part("context")), (live, CONTEXT), "{ledger}");
    assert_eq!(part("cached"), own - live - CONTEXT, "{ledger}");
    assert_eq!(part("others"), used - own, "{ledger}");
    assert_eq!(ledger["unknown"], 0, "{ledger}");
    let sum: u64 = ["live", "cached", "context", "others", "free"].map(part).iter().sum();
    assert_eq!(sum, part("total"), "{ledger}");
    let path = Path::new(told.page["process"]["path"].text());
    let (allocated, reserved) = (live, own - CONTEXT);
    assert_failure(path, Held { allocated, reserved });
    assert_moments(path, &[("oom", Held { allocated, reserved })]).check();
}

/// Runs a scene that runs out of memory with `live` bytes allocated, and checks what is said of it.
fn dies(scene: &str, strategy: Strategy, live: u64, verdict: &str, code: i32) -> (Finished, Told) {
    let finished = run_to_shortage(|| job(scene).strategy(strategy).run());
    assert_eq!(finished.status.code(), Some(1), "{scene}: {}", finished.stderr);
    let told = why(&finished);
    assert_verdict(&told, verdict, code);
    assert!(told.text.starts_with("Verdict: "), "{}", told.text);
    assert_true(&finished, &told, live);
    // On stderr the same is said at the failure.
    let sentence = told.text.lines().next().unwrap().split(". They came").next().unwrap();
    let sentence = sentence.split(". A live block lies").next().unwrap();
    // The library does not know how the live memory came, so it leaves that verdict to `why`.
    if verdict == "live_set" {
        assert_no_verdict_on_live_memory(&finished);
    } else {
        assert_says(&finished.stderr, sentence);
    }
    assert_says(&finished.stderr, "see: vramshim why ");
    (finished, told)
}

/// Live memory fills the device: on stderr it says that, and not whether it is a leak, which `why` decides.
fn assert_no_verdict_on_live_memory(finished: &Finished) {
    let stderr = &finished.stderr;
    let verdict = stderr.lines().find(|line| line.contains("Verdict: ")).expect(stderr);
    // On a busy machine NVML may answer too late. What the context holds is then not known, and may be all that is missing.
    if !verdict.contains("Verdict: not enough evidence") {
        assert!(verdict.contains("Verdict: this process holds "), "{stderr}");
        assert_says(stderr, "`vramshim why` says whether it grew steadily (a leak)");
    }
    for word in ["too much", "grew all the time"] {
        assert!(!stderr.contains(word), "{stderr}");
    }
}

/// What a job printed behind this word.
fn printed<'a>(finished: &'a Finished, word: &str) -> &'a str {
    let mut lines = finished.stdout.lines();
    lines.find_map(|line| line.strip_prefix(word)).expect(word)
}

#[test]
fn the_jobs_own_memory_fills_the_device() {
    let (finished, told) = dies("full", PASSTHROUGH, 22 * GIB, "live_set", 12);
    let equation =
        "Device 24.00 = this process 22.29 (live 22.00 + cached 0.00 + context 0.29) + others 0.00 + free 1.71";
    assert_says(&finished.stderr, equation);
    assert_eq!(told.page["holders"][0]["bytes"], 22 * GIB, "{}", told.text);
    assert_eq!(told.page["replay"]["fits"], false);
}

#[test]
fn free_memory_in_pieces_cannot_be_used() {
    let (_, told) = dies("fragmented", PASSTHROUGH, 11 * GIB, "cached_but_unusable", 14);
    assert_eq!(told.page["replay"]["fits"], true, "{}", told.text);
    assert_says(&told.text, "under auto_growth this request fits");
    let (_, told) = dies("cached", NAIVE_BEST_FIT_OF_ALL, 11 * GIB, "cached_but_unusable", 14);
    assert_eq!(told.page["why"]["failure"]["largest_cached_block"], GIB);
    // The strategy that the replay names serves the request.
    job("cached").strategy(AUTO_GROWTH).run().ok();
}

#[test]
fn another_process_is_named() {
    let (finished, told) = dies("other", PASSTHROUGH, 2 * GIB, "other_processes", 15);
    let pid: u64 = printed(&finished, "other ").parse().expect("the other process");
    let mut processes = told.page["why"]["processes"].list().iter();
    let other = processes.find(|process| process["pid"] == pid).expect("the other");
    assert_fields(other, json!({"bytes": 20 * GIB + CONTEXT, "name": "deaths"}), "");
    assert_says(&finished.stderr, &format!("20.3 GiB by pid {pid} (deaths)"));
}

/// Two ranks of one job share a device by mistake. To end the other rank would end the job.
#[test]
fn another_rank_of_the_same_job_is_named_as_such() {
    let finished = job("rank").run();
    let Told { code, text, page, .. } = why(&finished);
    assert_eq!(code, Some(15), "{text}");
    let next = page["next"][0].text();
    assert_says(next, "deaths is rank 1 of this job and holds 20.3 GiB of this device.");
}

#[test]
fn a_request_larger_than_the_device_is_no_question_of_what_is_live() {
    dies("larger", PASSTHROUGH, GIB, "larger_than_device", 11);
    // Under a strategy the guard refuses it, and asks nobody what the device holds.
    let finished = job("larger").strategy(AUTO_GROWTH).run();
    let told = why(&finished);
    let codes = (told.code, finished.status.code());
    assert_eq!(codes, (Some(11), Some(1)), "{}", told.text);
    assert_eq!(told.page["why"]["failure"]["guard"]["bytes"], 24 * GIB, "{}", told.text);
    assert_says(&finished.stderr, "Refused by: the guard.");
}

/// A device that is a part of a card has the memory of the part.
#[test]
fn a_mig_instance_is_no_whole_card() {
    let finished = job("larger").env("SIMGPU_MIG", "1").run();
    let told = why(&finished);
    assert_eq!(told.page["why"]["verdict"], "larger_than_device", "{}", told.text);
    assert_true(&finished, &told, GIB);
    let instance = &told.page["why"]["mig_instance"];
    let wanted = json!({"total": 24 * GIB, "name": "Simulated GPU MIG 1g.24gb"});
    assert_fields(instance, wanted, "");
    let whole = why(&job("larger").run());
    assert_eq!(whole.page["why"]["mig_instance"], Value::Null);
}

/// PyTorch asks again after it gave its cache back. That is one failure, explained by what is held at its end.
#[test]
fn a_request_that_is_made_again_is_explained_once() {
    let explained = |finished: &Finished| finished.stderr.matches("Verdict: ").count();
    let source = "support/clients/count_sync.c";
    let torch = client(source, "libtorch_cuda.so", &["-shared", "-fPIC"]);
    let finished = job("again").env("LOADS", &torch).run();
    let stderr = &finished.stderr;
    assert_eq!((explained(&finished), finished.status.code()), (1, Some(1)), "{stderr}");
    assert_eq!(stderr.matches("asks again.").count(), 1, "{stderr}");
    assert_says(stderr, "(held 21.00 +");
    assert_says(stderr, "(asked twice)");
    assert_says(stderr, "says how much of it tensors used inside PyTorch's cache");
    let tells = stderr.contains("live");
    assert!(!tells, "nobody knows what is live inside the cache: {stderr}");
    // Nobody knows whether another program asks again, so the first failure is explained, and the second one counted.
    let finished = job("again").run();
    let stderr = &finished.stderr;
    assert_eq!(explained(&finished), 1, "{stderr}");
    assert_says(stderr, "(live 22.00 +");
    let told_again = stderr.matches("asked again and failed again (asked twice)").count();
    assert_eq!(told_again, 1, "{stderr}");
    let told = why(&finished);
    assert_eq!(told.page["why"]["failure"]["tries"], 2, "one failure");
}

#[test]
fn the_stream_of_a_request_is_named() {
    for (scene, api) in [("async", "cuMemAllocAsync"), ("tensor", "vramshim_torch_alloc")] {
        let finished = job(scene).strategy(AUTO_GROWTH).run();
        let stream = printed(&finished, "stream ");
        let words = format!("({api}, GPU 0, stream {stream}).");
        assert!(finished.stderr.contains(&words), "{words}\n{}", finished.stderr);
    }
}

#[test]
fn a_limit_says_what_limit_would_do() {
    let (finished, told) = explained(job("limit").env("VRAMSHIM_MEMORY_LIMIT", "8GiB"), "limit", 16);
    assert_true(&finished, &told, 7 * GIB);
    assert_eq!(told.page["why"]["limit"]["used"], 7 * GIB + CONTEXT);
    assert_says(&told.text, "With 300.0 MiB more this request fits");
    assert_says(&told.text, "Raise the limit to at least 8492MiB");
    let further = job("limit").env("VRAMSHIM_MEMORY_LIMIT", "8492MiB").run();
    assert_eq!(why(&further).page["why"]["ledger"]["live"], 8 * GIB);
    // The limit of a pod is raised where it is set, and no variable of the container does it.
    let accounts = tempfile::tempdir().unwrap();
    let limits = [("VRAMSHIM_POD_LIMIT", "8Gi"), ("VRAMSHIM_MEMORY_LIMIT", "16GiB")];
    let of_pod = job("limit").env("VRAMSHIM_ACCOUNTS", accounts.path()).envs(&limits);
    let (finished, told) = explained(of_pod, "group_limit", 17);
    assert_says(&finished.stderr, "the limit of this group (VRAMSHIM_POD_LIMIT)");
    let not_read = "VRAMSHIM_MEMORY_LIMIT is not read, because VRAMSHIM_POD_LIMIT is set";
    assert_says(&finished.stderr, not_read);
    let raise = "Raise the limit to at least 8492MiB (the annotation vramshim.io/limit of the pod)";
    assert_says(&told.text, raise);
}

/// Of many refusals only some are measured. The last one is told with its own figures all the same, and the replay
/// keeps the limit.
#[test]
fn the_last_of_many_refusals_has_its_figures() {
    let (_, told) = explained(job("refused").env("VRAMSHIM_MEMORY_LIMIT", "8GiB"), "limit", 16);
    assert_eq!(told.page["why"]["limit"]["used"], GIB + CONTEXT, "{}", told.text);
    assert_says(&told.text, "are left");
    assert!(!told.text.contains("this request fits"), "{}", told.text);
}

#[test]
fn the_other_members_of_a_group_are_named() {
    let host = Host::new("24GiB");
    let mut holder = support::member::Member::start(host.member("16GiB"));
    holder.ask(&format!("a {}", 10 * GIB));
    let pid = holder.child.id();
    let shared = host.runs(job("limit")).env("VRAMSHIM_ACCOUNTS", host.accounts());
    let finished = shared.env("VRAMSHIM_MEMORY_LIMIT", "16GiB").run();
    let told = why(&finished);
    assert_verdict(&told, "group_limit", 17);
    let mut processes = told.page["why"]["processes"].list().iter();
    let member = processes.find(|process| process["known_from"] == "account");
    let member = member.expect("the member");
    assert_fields(member, json!({"pid": pid, "bytes": 10 * GIB}), "");
    assert_eq!(told.page["why"]["ledger"]["unknown"], 0);
}

#[test]
fn a_killed_job_did_not_die_of_device_memory() {
    let (_, told) = explained(job("killed"), "none_failed", 0);
    assert!(told.text.starts_with("Ended without exit"), "{}", told.text);
    assert_eq!(told.page["holders"][0]["bytes"], 4 * GIB, "{}", told.text);
}

#[test]
fn failures_of_driver_and_host_are_no_lack_of_device_memory() {
    for (scene, cause) in [("driver", "a fault of earlier work"), ("host", "the host gave no")] {
        let told = why(&job(scene).run());
        assert_verdict(&told, "driver_failure", 18);
        assert_says(&told.text, cause);
    }
}

#[test]
fn a_job_that_ends_well_has_a_distance_to_its_limit() {
    let finished = job("well").run().ok();
    let told = why(&finished);
    assert_verdict(&told, "none_failed", 0);
    assert_says(&told.text, "23.0 GiB below the device's memory");
}

/// A device whose NVML names no process: what others hold is then part of unknown, and nobody is accused.
#[test]
fn without_figures_of_nvml_nobody_is_accused() {
    let (_, told) = explained(job("other").env("SIMGPU_NVML_BYTES", "0"), "not_enough_evidence", 10);
    assert_eq!(told.page["why"]["ledger"]["others"], Value::Null);
}

#[test]
fn the_lines_of_python_that_hold_the_memory_are_named() {
    let script = support::root().join("tests/deaths/lines.py");
    let job = Job::new("python3").sim("24GiB", 1).args([&script]);
    let finished = job.env("VRAMSHIM_STACKS", "python").run();
    let told = why(&finished);
    assert_eq!(told.page["why"]["verdict"], "live_set", "{}", told.text);
    let holders = told.page["holders"].list();
    for (holder, (bytes, function)) in holders.iter().zip([(18, "load_weights"), (3, "load_cache")]) {
        assert_eq!(holder["bytes"].number(), bytes * GIB, "{}", told.text);
        assert_says(holder["what"].text(), function);
    }
    assert!(holders.len() >= 2, "{}", told.text);
    let place = format!("Failed: 8.00 GiB at {}:", script.display());
    assert!(finished.stderr.contains(&place), "{}", finished.stderr);
}

/// A job that was started again and went well does not hide why it died before.
#[test]
fn the_death_of_an_earlier_run_is_told() {
    let script = format!("{0} full; sleep 1; {0} well", deaths().display());
    let job = Job::new("sh").sim("24GiB", 1).args(["-c", &script]);
    let finished = job.on_one_host().run();
    let Told { code, text, page, .. } = why(&finished);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(page["died_before"]["verdict"], "live_set", "{page:#}");
    let path = page["died_before"]["path"].text();
    let mut lines = text.lines();
    let line = lines.find(|line| line.starts_with("An earlier run died")).expect(&text);
    assert!(line.ends_with(&format!("vramshim why {path}")), "{line}");
    assert_eq!(vramshim(&["why", path]).code, Some(12));
}

/// Strategies serve linear memory. What the job holds besides is taken from the room that they would have.
#[test]
fn memory_that_no_strategy_serves_is_no_room_for_one() {
    let (_, told) = explained(job("beside").strategy(PASSTHROUGH), "live_set", 12);
    assert_eq!(told.page["replay"]["fits"], false, "{}", told.text);
    assert!(!told.text.contains("this request fits"), "{}", told.text);
    let tried = job("beside").strategy(AUTO_GROWTH).run();
    assert_eq!(tried.status.code(), Some(1), "{}", tried.stderr);

    let (_, told) = explained(job("pooled").strategy(PASSTHROUGH), "live_set", 12);
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

#[test]
fn a_folder_s_name_is_shown_so_that_a_shell_takes_it_and_no_terminal_obeys_it() {
    for (name, told) in [("sp ace", "sp ace'"), ("e\x1b[31mred\n", "e\\x1b[31mred\\n'")] {
        let folder = tempfile::tempdir().unwrap();
        let finished = job("larger").env("VRAMSHIM_DIR", folder.path().join(name)).run();
        let stderr = &finished.stderr;
        let line = stderr.lines().find(|line| line.contains("see: vramshim why "));
        let line = line.expect(stderr);
        assert!(line.ends_with(told), "{stderr}");
        assert!(!stderr.contains('\x1b'), "{stderr}");
    }
}

#[test]
fn a_journal_that_was_renamed_is_told_when_memory_runs_out() {
    let finished = job("renamed").run();
    let stderr = &finished.stderr;
    assert_says(stderr, "the journal was renamed or removed while the job ran: /");
    assert!(!stderr.contains("see: vramshim why"), "{stderr}");
}

/// What is set is not advised, and what was not replayed is not promised.
#[test]
fn a_step_that_was_not_tried_says_so() {
    let expandable = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\0";
    for (setting, advised) in [("", true), (expandable, false)] {
        let folder = tempfile::tempdir().unwrap();
        let mut job = evidence::full(folder.path(), setting, evidence::TORCH);
        evidence::fail(&mut job, 300 * MIB, 2, false);
        let told = why_of(&job.end(Some(1)).unwrap());
        let next = told.page["next"].to_string();
        assert_eq!(next.contains("expandable_segments:True"), advised, "{next}");
        let may_help = "tensors have no lines (may help, not tried: gains an unknown amount)";
        assert_says(&next, may_help);
        assert_says(&next, "a larger device: how large is not known");
    }
}
