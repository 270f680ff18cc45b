//! The assumptions about the CUDA driver, put to the simulated GPU: it satisfies all but a list that is kept here, and
//! the library in passthrough changes no answer.

mod fall_back;
mod simulator;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use policy::needs::NEEDS;
use serde_json::Value;
use support::{AUTO_GROWTH, Job, NAIVE_BEST_FIT_OF_ALL, PASSTHROUGH, root, scratch};

/// What the simulated GPU answers otherwise than the driver is assumed to, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[("alias_between_kernels", "not asked", "kernels compute nothing")];

fn executable() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let folder = scratch("assumptions");
        let status = Command::new(root().join("tests/assumptions/build"))
            .arg(&folder)
            .status();
        assert!(status.expect("a shell").success(), "the probes do not build");
        folder.join("vramshim-assumptions")
    });
    built.clone()
}

const LIMIT: Duration = Duration::from_secs(600);
/// How often a probe is asked whose answer is not as expected: a process that does not run for some 100 ms takes a call
/// that returns at once for one that waits, or the other way round.
const TRIES: u32 = 3;

pub fn probes() -> Job {
    let job = Job::new(executable()).sim("8GiB", 2).limit(LIMIT);
    job.env("SIMGPU_DELAYED", "1")
}

/// By name: the outcome, and the figures.
type Outcomes = BTreeMap<String, (String, String)>;

fn outcomes(job: Job, names: &[String]) -> Outcomes {
    let lines = job.args(["--json"]).args(names).run().json();
    let text = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let probes = lines.iter().filter(|line| line["name"].is_string());
    probes
        .map(|line| (text(line, "name"), (text(line, "outcome"), text(line, "figures"))))
        .collect()
}

/// Asks all probes, and those again that do not answer as expected.
fn outcomes_as(job: &dyn Fn() -> Job, expected: &dyn Fn(&str) -> &'static str) -> Outcomes {
    let mut answers = outcomes(job(), &[]);
    for _ in 1..TRIES {
        let others = answers.iter().filter(|(name, (outcome, _))| outcome != expected(name));
        let names: Vec<String> = others.map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            break;
        }
        println!("asked again: {names:?}");
        answers.extend(outcomes(job(), &names));
    }
    answers
}

/// Without the library; asked once.
fn alone() -> &'static Outcomes {
    static ANSWERS: OnceLock<Outcomes> = OnceLock::new();
    let exception = |name: &str| EXCEPTIONS.iter().find(|one| one.0 == name);
    let expected = |name: &str| exception(name).map_or("holds", |one| one.1);
    ANSWERS.get_or_init(|| outcomes_as(&|| probes().alone(), &expected))
}

fn differences(before: &Outcomes, after: &Outcomes) -> Vec<String> {
    let changed = before.iter().filter(|(name, (outcome, _))| after[*name].0 != *outcome);
    changed
        .map(|(name, (outcome, _))| format!("{name}: {outcome} -> {}: {}", after[name].0, after[name].1))
        .collect()
}

#[test]
fn the_simulated_gpu_satisfies_all_but_the_listed_assumptions() {
    let mut exceptions: BTreeMap<_, _> = EXCEPTIONS.iter().map(|&(name, outcome, _)| (name, outcome)).collect();
    for (name, (outcome, figures)) in alone() {
        let expected = exceptions.remove(name.as_str()).unwrap_or("holds");
        assert_eq!(outcome.as_str(), expected, "{name}: {figures}");
    }
    assert!(exceptions.is_empty(), "no such probes: {exceptions:?}");
}

#[test]
fn passthrough_changes_no_answer() {
    let before = |name: &str| alone().get(name).map_or("", |(outcome, _)| outcome.as_str());
    let under = outcomes_as(&|| probes().strategy(PASSTHROUGH), &before);
    assert_eq!(differences(alone(), &under), Vec::<String>::new());
}

/// Printed alone: what a policy changes is described in docs/strategies.md.
#[test]
fn what_the_policies_change_is_told() {
    let strategies = [NAIVE_BEST_FIT_OF_ALL, AUTO_GROWTH];
    // The probes wait most of the time.
    let asked = strategies.map(|strategy| thread::spawn(move || outcomes(probes().strategy(strategy), &[])));
    for (strategy, under) in strategies.into_iter().zip(asked) {
        let under = under.join().expect("the outcomes");
        assert_eq!(alone().len(), under.len(), "{}: every probe answers", strategy.name);
        for difference in differences(alone(), &under) {
            println!("{}: {difference}", strategy.name);
        }
    }
}

#[test]
fn a_probe_that_hangs_stops_no_other() {
    let job = probes()
        .alone()
        .env("SIMGPU_LATENCY", "cuMemGetAllocationGranularity=60000ms");
    let finished = job
        .args(["--json", "--limit", "10", "granularity", "double_free"])
        .run();
    let lines = finished.json();
    assert_eq!(lines[1]["outcome"], "hangs");
    assert_eq!(lines[2]["outcome"], "holds");
    assert_eq!(finished.status.code(), Some(1), "a strategy needs the first one");
}

#[test]
fn what_a_device_lacks_is_not_asked() {
    let names = ["granularity", "copy_of_alloc_between_devices"];
    let lines = probes()
        .alone()
        .sim("8GiB", 1)
        .env("SIMGPU_VMM", "0")
        .args(["--json"].iter().chain(&names))
        .run()
        .ok()
        .json();
    assert_eq!(lines[1]["figures"], "no virtual memory management");
    assert_eq!(lines[2]["figures"], "needs two devices");
    assert!(lines[1..].iter().all(|line| line["outcome"] == "not asked"));
}

/// The probes, the table of what the strategies need, and the README name the same assumptions as needed.
#[test]
fn probes_table_and_readme_agree_on_what_is_needed() {
    let readme = std::fs::read_to_string(root().join("tests/assumptions/README.md")).expect("the README");
    let list = probes().alone().args(["list"]).run().ok().stdout;
    let mut needs: BTreeSet<&str> = NEEDS.iter().map(|need| need.assumption).collect();
    for line in list.lines() {
        let name = line.split([' ', ':']).next().expect("a name");
        let needed = line[name.len()..].starts_with(" (needed)");
        assert_eq!(needs.remove(name), needed, "{name}");
        let mark = if needed { "*" } else { "" };
        let row = format!("| `{name}`{mark} ");
        assert!(readme.contains(&row), "{row} is not in the README");
    }
    assert!(needs.is_empty(), "no such probes: {needs:?}");
}
