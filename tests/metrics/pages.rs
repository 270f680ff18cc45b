//! docs/metrics.md, the alert rules and the dashboard name the metrics that are served.

use std::collections::BTreeSet;

use serde_json::Value;
use support::{Fields, made::Made, root};

/// The metrics that are served, as the text names them.
fn served() -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    for pid in 1..=2 {
        let mut made = Made::new(folder.path(), pid, 1).unwrap();
        made.alloc(0, 1 << 20, 0).unwrap();
        made.fail(1 << 20).unwrap();
        made.end(Some(0)).unwrap();
    }
    let (text, _) = super::once(folder.path(), &[]);
    let names = text.0.into_iter().map(|(name, _, _)| name);
    // These journals have no limit and no device, there are no accounts, and NVML may be missing.
    let others = "limit account_used account_limit used_in_cache context device_total device_used";
    let others = others.split(' ').map(|name| format!("vramshim_{name}_bytes"));
    names.chain(others).collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The words of a text that look like names of metrics.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_name = |word: &&str| word.starts_with("vramshim_") || word.starts_with("paddle_gpu_");
    words.filter(is_name).map(str::to_owned).collect()
}

#[test]
fn the_page_describes_each_metric_and_no_other() {
    let page = read("docs/metrics.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let described: BTreeSet<String> = rows.filter(|name| !named(name).is_empty()).map(str::to_owned).collect();
    assert_eq!(described, served());
}

#[test]
fn rules_and_dashboard_use_metrics_that_exist() {
    let served = served();
    let rules = read("scripts/prometheus/vramshim.rules.yml");
    let expressions: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "))
        .collect();
    assert!(expressions.len() >= 5, "{expressions:?}");
    let dashboard: Value = serde_json::from_str(&read("scripts/prometheus/dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].list();
    let mut ids = BTreeSet::new();
    let mut texts: Vec<String> = expressions.into_iter().map(str::to_owned).collect();
    for panel in panels {
        let title = panel["title"].text();
        assert!(ids.insert(panel["id"].number()), "{title}: its id is there twice");
        let targets = panel["targets"].list();
        assert!(!targets.is_empty(), "{title}");
        texts.extend(targets.iter().map(|target| target["expr"].text().to_owned()));
    }
    for text in texts {
        let names = named(&text);
        assert!(!names.is_empty() && names.is_subset(&served), "{text}: {names:?}");
    }
}
