//! Many processes of one job: their holders together, and the one whose peak differs from the others.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::holders_at::{named, title};
use super::study::{MomentError, Study};
use super::when::When;
use crate::analysis::live_set::{By, DeviceSet, LiveSet, Named};
use crate::analysis::odd_one::odd_one;
use crate::analysis::runs::runs;
use crate::render::format::{self, count, size};
use crate::render::odd_process::odd_one as words;
use crate::render::text_or_json::Page;

/// The holders of one name in all processes.
#[derive(Default)]
struct Merged {
    count: u64,
    /// The bytes of each process that has some.
    bytes: BTreeMap<usize, u64>,
    devices: BTreeSet<i16>,
}

impl Merged {
    fn sum(&self) -> u64 {
        self.bytes.values().copied().fold(0, u64::saturating_add)
    }

    fn least(&self) -> u64 {
        self.bytes.values().copied().min().unwrap_or(0)
    }

    fn most(&self) -> u64 {
        self.bytes.values().copied().max().unwrap_or(0)
    }
}

/// The most processes or devices that are named in one line.
const MOST_NAMED: usize = 8;

/// Numbers of processes or devices.
fn list<T: ToString>(numbers: impl Iterator<Item = T>) -> String {
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    match numbers.len() {
        0..=MOST_NAMED => numbers.join(", "),
        more => format!("{}, {} more", numbers[..MOST_NAMED].join(", "), more - MOST_NAMED),
    }
}

/// Writes what held the most at a moment of each process, all processes of a run together, the newest run first. It is an
/// error if no process has the moment.
pub fn merged(page: &mut Page, studies: &[Study], when: &When, by: Option<By>, top: usize) -> Result<(), MomentError> {
    let runs = runs(studies.iter().collect(), |study: &&Study| study.job.span());
    let several = runs.len() > 1;
    let (mut told, mut missing) = (Vec::new(), None);
    for mut run in runs {
        run.sort_by_key(|study| (study.job.header.wall_start_ns, study.job.header.pid));
        let mut sets = Vec::new();
        for study in &run {
            match study.set_at(when) {
                Ok(set) => sets.push((*study, set)),
                Err(MomentError::Missing(why)) => missing = Some(why),
                Err(error) => return Err(error),
            }
        }
        if sets.is_empty() {
            continue;
        }
        let began_ns = run.iter().map(|study| study.job.span().0).min();
        let run_of = match (several, began_ns) {
            (true, Some(began_ns)) => format!("Run of {}: ", format::time(began_ns)),
            _ => String::new(),
        };
        told.push(one_run(page, &run_of, several, &sets, when, by, top));
    }
    if let Some(missing) = missing.filter(|_| told.is_empty()) {
        return Err(missing.into());
    }
    // The newest run.
    let mut newest = told.remove(0);
    newest["older_runs"] = Value::Array(told);
    page.json("merged", newest);
    Ok(())
}

fn one_run(
    page: &mut Page,
    run_of: &str,
    names_processes: bool,
    sets: &[(&Study, LiveSet)],
    when: &When,
    by: Option<By>,
    top: usize,
) -> Value {
    let devices = |set: &LiveSet| -> Vec<DeviceSet> {
        let devices = set.devices.iter().filter(|set| set.device >= 0);
        devices.cloned().collect()
    };
    let all: Vec<_> = sets
        .iter()
        .flat_map(|(_, set)| devices(set))
        .flat_map(|set| set.live)
        .collect();
    let (by, why) = match sets.first() {
        Some((first, _)) => first.grouping(by, &all),
        None => (by.unwrap_or(By::Size), None),
    };
    let mut names: BTreeMap<String, Merged> = BTreeMap::new();
    for (process, (study, set)) in sets.iter().enumerate() {
        for set in devices(set) {
            for Named { name, sum, .. } in named(study, &set, by) {
                let merged = names.entry(name).or_default();
                let bytes = merged.bytes.entry(process).or_default();
                *bytes = bytes.saturating_add(sum.bytes);
                merged.count += sum.count;
                merged.devices.insert(set.device);
            }
        }
    }
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_by_key(|(_, merged)| std::cmp::Reverse(merged.sum()));
    let moment = match when {
        When::Peak => "its peak".to_owned(),
        when => when.words(),
    };
    let pids = || sets.iter().map(|(study, _)| study.job.header.pid);
    let processes = match sets {
        [(study, _)] => format!("process {}, at", study.job.header.pid),
        several => format!("{} processes, each at", count(several.len() as u64)),
    };
    page.heading(format!("{run_of}{processes} {moment}: what held the most"));
    if names_processes && sets.len() > 1 {
        page.line(format!("Processes {}", list(pids())));
    }
    if let Some(why) = why {
        page.line(why);
    }
    let all_devices: BTreeSet<i16> = names.iter().flat_map(|(_, merged)| &merged.devices).copied().collect();
    let row = |(name, merged): &(String, Merged)| {
        let mut row = vec![
            size(merged.sum()),
            count(merged.count),
            count(merged.bytes.len() as u64),
            size(merged.least()),
            size(merged.most()),
        ];
        if all_devices.len() > 1 {
            row.push(list(merged.devices.iter()));
        }
        row.push(name.clone());
        row
    };
    let mut titles = vec!["bytes", "count", "processes", "least of one", "most of one"];
    if all_devices.len() > 1 {
        titles.push("devices");
    }
    titles.push(title(by));
    page.table(&titles, &[0, 1, 2, 3, 4], names.iter().take(top).map(row).collect());
    let odd = odd_one(sets.iter().map(|(study, _)| (study.title(), peak(study))).collect());
    if let Some(odd) = &odd {
        page.line(words(odd, &odd.who));
    }
    let told = names.iter().map(|(name, merged)| {
        json!({
            "name": name,
            "bytes": merged.sum(),
            "count": merged.count,
            "processes": merged.bytes.len(),
            "least_of_one": merged.least(),
            "most_of_one": merged.most(),
            "devices": merged.devices,
        })
    });
    json!({
        "processes": sets.len(),
        "pids": pids().collect::<Vec<_>>(),
        "by": title(by),
        "holders": told.collect::<Value>(),
        "odd_one_out": odd.map(|odd| json!({ "process": odd.who, "peak": odd.peak, "median": odd.median })),
    })
}

/// The allocated bytes of a process at the peak of each device.
pub fn peak(study: &Study) -> u64 {
    let devices = study.peak.devices.iter().filter(|set| set.device >= 0);
    devices.map(|set| set.allocated).fold(0, u64::saturating_add)
}
