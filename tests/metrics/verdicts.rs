//! Failures are counted by the verdict that `vramshim why` gives.

use std::path::Path;

use support::made::Made;
use support::{AUTO_GROWTH, Fields, Job, PASSTHROUGH, Strategy, run_to_shortage, vramshim_with};

use super::server::Text;
use super::{once, server::Served};

/// Runs a scene of tests/deaths that ends with a failed request.
fn dies(scene: &str, strategy: Strategy, limit: Option<&str>) -> Job {
    let job = crate::deaths::job(scene).strategy(strategy);
    match limit {
        Some(limit) => job.env("VRAMSHIM_MEMORY_LIMIT", limit),
        None => job,
    }
}

fn verdict_of_why(folder: &Path) -> String {
    let page = vramshim_with(&["why", "--json"], [folder]).json();
    page["why"]["verdict"].text().to_owned()
}

/// The verdicts that were given, and how often.
fn verdicts(text: &Text) -> Vec<(String, f64)> {
    let is_given =
        |(name, _, count): &&(String, _, f64)| name == "vramshim_node_failure_verdicts_total" && *count > 0.0;
    let of_metric = text.0.iter().filter(is_given);
    let verdict = |labels: &[(String, String)]| {
        let found = labels.iter().find(|(name, _)| name == "verdict");
        found.expect("the label verdict").1.clone()
    };
    of_metric.map(|(_, labels, count)| (verdict(labels), *count)).collect()
}

#[test]
fn the_verdicts_are_those_of_why() {
    let scenes = [
        ("full", PASSTHROUGH, None, "live_set"),
        ("fragmented", PASSTHROUGH, None, "cached_but_unusable"),
        ("limit", PASSTHROUGH, Some("8GiB"), "limit"),
        ("other", PASSTHROUGH, None, "other_processes"),
        ("leak", AUTO_GROWTH, None, "growth"),
        ("larger", PASSTHROUGH, None, "larger_than_device"),
        ("driver", PASSTHROUGH, None, "driver_failure"),
        ("host", PASSTHROUGH, None, "driver_failure"),
    ];
    for (scene, strategy, limit, verdict) in scenes {
        let finished = run_to_shortage(|| dies(scene, strategy, limit).run());
        let journals = finished.folder.path().join("journals");
        assert_eq!(verdict_of_why(&journals), verdict, "{scene}");
        let (text, _) = once(&journals, &[]);
        let given = verdicts(&text);
        let told = given.iter().map(|(_, count)| count).sum::<f64>();
        for of in ["vramshim", "vramshim_node"] {
            assert_eq!(
                told,
                text.sum(&format!("{of}_allocation_failures_total"), &[]),
                "{scene}"
            );
        }
        let mut names: Vec<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
        if scene == "fragmented" {
            // The job first fills the device, until a request fails.
            names.retain(|name| *name != "live_set");
        }
        assert_eq!(names, [verdict], "{scene}");
    }
}

#[test]
fn each_verdict_of_the_node_is_there_before_the_first_failure() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let text = served.scrape();
    for verdict in ["limit", "growth", "cached_but_unusable", "not_enough_evidence", "other"] {
        let told = text.value("vramshim_node_failure_verdicts_total", &[("verdict", verdict)]);
        assert_eq!(told, Some(0.0), "{verdict}");
    }
    assert!(
        text.value("vramshim_node_failure_verdicts_total", &[("verdict", "none_failed")])
            .is_none()
    );
}

#[test]
fn without_figures_of_the_moment_the_evidence_is_not_enough() {
    let folder = tempfile::tempdir().unwrap();
    let mut made = Made::new(folder.path(), 1, 1).unwrap();
    made.alloc(0, 1 << 20, 0).unwrap();
    made.fail(1 << 20).unwrap();
    made.fail(4 << 30).unwrap();
    made.end(Some(1)).unwrap();
    let (text, _) = once(folder.path(), &[]);
    let mut given = verdicts(&text);
    given.sort_by(|one, other| one.0.cmp(&other.0));
    let expected = [("larger_than_device", 1.0), ("not_enough_evidence", 1.0)];
    assert_eq!(given, expected.map(|(verdict, count)| (verdict.to_owned(), count)));
}
