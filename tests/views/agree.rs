//! Every view of a random PyTorch job has the same figures, to the byte: segments of PyTorch's cache, tensors in them, and what
//! other code has beside them, at the peak, at the failure and at the end.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use support::{GIB, vramshim_with};

use super::*;

const BEGAN_US: u64 = 1_790_000_000_000_000;
const SEGMENT: u64 = 32 * MIB;
const PLACES: u64 = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    allocated: u64,
    reserved: u64,
}

struct Play {
    job: Made,
    tensors: String,
    /// The tensors of each segment: places and bytes.
    segments: BTreeMap<u64, BTreeMap<u64, u64>>,
    others: BTreeMap<u64, u64>,
    now: Held,
    peak: Held,
    failure: Option<Held>,
    /// A time between two steps, and what is allocated then.
    at: (u64, u64),
}

impl Play {
    fn line(&mut self, kind: char, rest: &str) {
        let now_us = BEGAN_US + self.job.now_ns() / 1000 + 100;
        self.tensors += &format!("{kind}\t{now_us}\t0\t{rest}\n");
    }

    fn step(&mut self, what: u64, number: u64) {
        let base = |number: u64| 0x7f00_0000_0000 + number * 2 * SEGMENT;
        let segment = base(number % 6);
        match (what, self.segments.contains_key(&segment)) {
            (0..3, false) => {
                self.job.alloc_at(0, segment, SEGMENT, 0).unwrap();
                self.line('S', &format!("{segment}\t{SEGMENT}"));
                self.segments.insert(segment, BTreeMap::new());
                self.now.reserved += SEGMENT;
            }
            (0..6, true) => {
                let place = segment + number / 6 % PLACES * (SEGMENT / PLACES);
                let tensors = self.segments.get_mut(&segment).unwrap();
                // Time passes between two lines of PyTorch's.
                self.job.wait(1_000_000);
                if let Some(bytes) = tensors.remove(&place) {
                    self.now.allocated -= bytes;
                    self.line('F', &format!("{place}"));
                } else {
                    let bytes = (1 + number * 7919 % (SEGMENT / PLACES / 512)) * 512;
                    tensors.insert(place, bytes);
                    self.now.allocated += bytes;
                    self.line('A', &format!("{place}\t{bytes}\t0\t{}\t{bytes}\t0.0", number % 2));
                }
            }
            (6, true) if self.segments[&segment].is_empty() => {
                self.segments.remove(&segment);
                self.job.wait(1_000_000);
                self.job.free(0, segment, SEGMENT).unwrap();
                self.line('U', &format!("{segment}\t{SEGMENT}"));
                self.now.reserved -= SEGMENT;
            }
            (7, _) => {
                let place = base(6 + number % 3);
                if let Some(bytes) = self.others.remove(&place) {
                    self.job.free(0, place, bytes).unwrap();
                    self.now.allocated -= bytes;
                    self.now.reserved -= bytes;
                } else {
                    let bytes = (1 + number % 20) * MIB;
                    self.job.alloc_at(0, place, bytes, 0).unwrap();
                    self.others.insert(place, bytes);
                    self.now.allocated += bytes;
                    self.now.reserved += bytes;
                }
            }
            (8, _) => {
                let free = GIB.saturating_sub(self.now.reserved + 100 * MIB);
                crate::deaths::evidence::measure(&mut self.job, free, self.now.reserved, self.now.reserved + 40 * MIB);
                self.job.fail(900 * MIB).unwrap();
                self.line('O', &format!("{}\t0", 900 * MIB));
                self.failure = Some(self.now);
                self.job.wait(2_000_000_000);
            }
            _ => {}
        }
        self.peak.reserved = self.peak.reserved.max(self.now.reserved);
        if number.is_multiple_of(5) {
            self.at = (self.job.now_ns() + 500_000, self.now.allocated);
        }
        if self.now.allocated > self.peak.allocated {
            self.peak.allocated = self.now.allocated;
        }
    }
}

fn told(program: &str, path: &Path, arguments: &[&str]) -> Value {
    vramshim_with(&[&[program], arguments].concat(), [path]).json()
}

#[derive(Clone, Copy, Debug)]
enum Unknown {
    /// The tensors: what is used of PyTorch's cache.
    Tensors,
    /// Some of the tensors were lost.
    SomeTensors,
    Events,
}

fn random_job(folder: &Path, steps: &[(u64, u64)]) -> Play {
    let mut play = Play {
        job: Made::with(folder, 70, 0, "", "framework=PyTorch 2.12.0").unwrap(),
        tensors: "vramshim-pytorch\t1\t70\t2.12.0\nT\t0\t/x/a.py\t1\tf\nT\t1\t/x/a.py\t2\tg\n".to_owned(),
        segments: BTreeMap::new(),
        others: BTreeMap::new(),
        now: Held::default(),
        peak: Held::default(),
        failure: None,
        at: (0, 0),
    };
    // PyTorch's part of the file must tell of a segment.
    for &(what, number) in [(0, 0), (3, 0)].iter().chain(steps) {
        play.step(what, number);
    }
    play
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// Absence is said of exact figures alone.
    #[test]
    fn no_view_denies_what_it_does_not_know(
        steps in prop::collection::vec((0u64..9, 0u64..600), 5..60),
        unknown in prop::sample::select(vec![Unknown::Tensors, Unknown::SomeTensors, Unknown::Events]),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let Play { job, tensors, .. } = random_job(folder.path(), &steps);
        let end_us = BEGAN_US + job.now_ns() / 1000 + 100;
        let path = job.end(Some(1)).unwrap();
        match unknown {
            Unknown::Tensors => {}
            Unknown::SomeTensors => {
                std::fs::write(path.with_extension("tensors"), format!("{tensors}D\t{end_us}\t9\t3\n")).unwrap();
            }
            Unknown::Events => {
                let file = std::fs::File::options().write(true).open(&path).unwrap();
                let records = (file.metadata().unwrap().len() as usize - journal::format::HEADER_SIZE) / journal::format::SLOT_SIZE;
                file.set_len((journal::format::HEADER_SIZE + records.min(steps.len() / 2) * journal::format::SLOT_SIZE) as u64).unwrap();
            }
        }
        let figures: &[&str] = match unknown {
            Unknown::Tensors => &["cached", "other process", "tensors"],
            Unknown::SomeTensors => &["cached", "other process", "tensors at", "fits"],
            // What was measured at the failure is whole, if the cut comes later.
            Unknown::Events if told("why", &path, &["--json"])["why"]["ledger"].is_object() => &["reserved"],
            Unknown::Events => &[""],
        };
        let mut pages = vec![vramshim_with(&["why"], [&path]).text];
        let report = told("report", &path, &["--json"]);
        let verdict = &report["processes"][0]["verdict"];
        pages.push(format!("{}\n{}\n{}", verdict["sentence"], verdict["explanation"], verdict["next"]));
        pages.extend(verdict["parts"].list().iter().map(|part| format!("{} {} B", part["name"].text(), part["bytes"])));
        let inspect = text(&path, &[]);
        pages.push(match unknown {
            // The tables of the page stand below a line that says that they are not whole.
            Unknown::Events => inspect.lines().take_while(|line| !line.starts_with("Job ")).collect::<Vec<_>>().join("\n"),
            _ => inspect,
        });
        let denies = |line: &str| {
            let words: Vec<&str> = line.split(|one: char| !one.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
            let two = |one, other| words.windows(2).any(|pair| pair == [one, other]);
            words.iter().any(|word| ["none", "fits"].contains(word)) || two("0", "B") || two("no", "other")
        };
        for line in pages.iter().flat_map(|page| page.split(['\n', ';'])) {
            let is_unknown = figures.iter().any(|figure| line.contains(figure));
            // The request that failed would have fit without others; what a policy holds free is exact.
            prop_assert!(!is_unknown || !denies(line), "{unknown:?}: {line}\n{}", pages.join("\n----\n"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn all_views_have_the_same_bytes(steps in prop::collection::vec((0u64..9, 0u64..600), 20..90)) {
        let folder = tempfile::tempdir().unwrap();
        let play = random_job(folder.path(), &steps);
        let Play { job, tensors, now, peak, failure, at, .. } = play;
        // After the last step no time is left.
        let at = Some(at).filter(|&(time_ns, _)| time_ns > 0 && time_ns < job.now_ns());
        let time = at.map_or(String::new(), |(time_ns, _)| format!("{time_ns}ns"));
        let end_us = BEGAN_US + job.now_ns() / 1000 + 100;
        let path = job.end(Some(0)).unwrap();
        std::fs::write(path.with_extension("tensors"), format!("{tensors}D\t{end_us}\t1\t0\n")).unwrap();

        let page = told("inspect", &path, &["--json"]);
        let device = page["jobs"][0]["devices"].list().iter().find(|device| device["device"] == 0).unwrap();
        prop_assert_eq!(&page["jobs"][0]["anomalies"], 0);
        let levels = |level: &str| [&device["allocated"][level], &device["reserved"][level]].map(Fields::number);
        prop_assert_eq!(levels("current"), [now.allocated, now.reserved]);
        prop_assert_eq!(levels("peak"), [peak.allocated, peak.reserved]);
        prop_assert_eq!(device["free_inside"].number(), now.reserved - now.allocated);

        let report = told("report", &path, &["--json"]);
        let drawn = &report["processes"][0]["devices"][0];
        let figures = ["live_at_end", "peak_bytes", "peak_reserved"].map(|name| drawn[name].number());
        prop_assert_eq!(figures, [now.allocated, peak.allocated, peak.reserved]);

        let moments = [
            ("peak", Some(peak.allocated)),
            ("end", Some(now.allocated)),
            ("oom", failure.map(|held| held.allocated)),
            (time.as_str(), at.map(|(_, allocated)| allocated)),
        ];
        for (moment, live) in moments {
            let Some(live) = live else { continue };
            let page = json(&path, &["--at", moment, "--top", "stack"]);
            let found = page["jobs"][0]["at"]["devices"].list().iter().find(|device| device["device"] == 0);
            let holders = found.map_or(0, |device| sum(&device["holders"], "bytes"));
            prop_assert_eq!((found.map_or(0, |device| device["allocated"].number()), holders), (live, live), "{}", moment);
            if moment == time {
                continue;
            }
            let out = folder.path().join(moment);
            let format = ["--to", "collapsed", "--at", moment, "-o", out.to_str().unwrap()];
            vramshim_with(&[&["export"], &format[..]].concat(), [&path]).ok();
            let lines = std::fs::read_to_string(out).unwrap();
            let stacks = lines.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
            prop_assert_eq!(stacks.sum::<u64>(), live, "collapsed, {}", moment);
        }
        if let Some(held) = failure {
            let why = told("why", &path, &["--json", "--top", "1000"]);
            prop_assert_eq!(sum(&why["holders"], "bytes"), held.allocated, "{:#}", why);
        }
    }
}
