//! Every view of a job has the same figures, to the byte, at the peak, at the failure and at the end. Random PyTorch jobs have
//! segments of PyTorch's cache, tensors in them, and what other code has beside them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use base::locks::{Owner, WHOLE};
use base::units::size;
use journal::writer::About;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use support::made;
use support::{GIB, vramshim_with};

use super::running::{now_us, seen};
use super::*;
use crate::formats::check_all;
use crate::report::{browser, vramshim};

const SEGMENT: u64 = 32 * MIB;
const PLACES: u64 = 4;
/// A job began so many seconds ago, and takes less.
const AGO_S: u64 = 3600;

/// What a process holds of device 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub allocated: u64,
    pub reserved: u64,
}

impl Held {
    fn cached(self) -> u64 {
        self.reserved - self.allocated
    }
}

struct Play {
    job: Made,
    began_us: u64,
    tensors: String,
    /// The tensors of each segment: places and bytes.
    segments: BTreeMap<u64, BTreeMap<u64, u64>>,
    others: BTreeMap<u64, u64>,
    now: Held,
    /// When most was allocated, for the first time.
    peak: Held,
    peak_reserved: u64,
    failure: Option<Held>,
    /// The tensor that failed last.
    failed: u64,
    /// A time between two steps, and what is allocated then.
    at: (u64, u64),
}

impl Play {
    fn line(&mut self, kind: char, rest: &str) {
        let now_us = self.began_us + self.job.now_ns() / 1000 + 100;
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
                let bytes = [900, 700][number as usize % 2] * MIB;
                self.job.fail(bytes).unwrap();
                self.line('O', &format!("{bytes}\t0"));
                (self.failure, self.failed) = (Some(self.now), bytes);
                // The next failure may be near.
                self.job.wait(20_000_000 * (1 + number % 100));
            }
            _ => {}
        }
        self.peak_reserved = self.peak_reserved.max(self.now.reserved);
        if number.is_multiple_of(5) {
            self.at = (self.job.now_ns() + 500_000, self.now.allocated);
        }
        if self.now.allocated > self.peak.allocated {
            self.peak = self.now;
        }
    }

    /// Ends the job. PyTorch told its tensors, and just now the sums of its cache.
    fn end(&mut self) -> PathBuf {
        let job = std::mem::replace(
            &mut self.job,
            Made::new(tempfile::tempdir().unwrap().path(), 1, 0).unwrap(),
        );
        let path = job.end(Some(0)).unwrap();
        let used: u64 = self.segments.values().flat_map(BTreeMap::values).sum();
        let (now, reserved) = (now_us(), self.segments.len() as u64 * SEGMENT);
        let sums = format!("B\t{now}\t0\t{used}\t{used}\t{used}\t{reserved}\nD\t{now}\t1\t0\n");
        std::fs::write(path.with_extension("tensors"), format!("{}{sums}", self.tensors)).unwrap();
        path
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
    let began_us = now_us() - AGO_S * 1_000_000;
    let about = About {
        wall_start_ns: began_us * 1000,
        software: b"framework=PyTorch 2.12.0".to_vec(),
        ..made::about(70, 0)
    };
    let mut play = Play {
        job: Made::about(folder, &about, &[made::device(0), made::device(1)]).unwrap(),
        began_us,
        tensors: "vramshim-pytorch\t1\t70\t2.12.0\nT\t0\t/x/a.py\t1\tf\nT\t1\t/x/a.py\t2\tg\n".to_owned(),
        segments: BTreeMap::new(),
        others: BTreeMap::new(),
        now: Held::default(),
        peak: Held::default(),
        peak_reserved: 0,
        failure: None,
        failed: 0,
        at: (0, 0),
    };
    // PyTorch's part of the file must tell of a segment.
    for &(what, number) in [(0, 0), (3, 0)].iter().chain(steps) {
        play.step(what, number);
    }
    play
}

fn steps(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0u64..9, 0u64..600), count)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// Absence is said of exact figures alone.
    #[test]
    fn no_view_denies_what_it_does_not_know(
        steps in steps(5..60),
        unknown in prop::sample::select(vec![Unknown::Tensors, Unknown::SomeTensors, Unknown::Events]),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let Play { job, tensors, began_us, .. } = random_job(folder.path(), &steps);
        let end_us = began_us + job.now_ns() / 1000 + 100;
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
            // The sum of both is exact.
            let is_unknown = figures.iter().any(|figure| line.replace("live or cached", "").contains(figure));
            // The request that failed would have fit without others; what a policy holds free is exact.
            prop_assert!(!is_unknown || !denies(line), "{unknown:?}: {line}\n{}", pages.join("\n----\n"));
        }
    }
}

/// What the views of a process that has ended show of device 0 at a moment.
fn show(of_view: Option<&Value>, moment: &str, held: Held) {
    let none = json!({"allocated": 0, "reserved": 0});
    let [allocated, reserved] = ["allocated", "reserved"].map(|level| of_view.unwrap_or(&none)[level].number());
    assert_eq!(Held { allocated, reserved }, held, "{moment}");
}

/// PyTorch's snapshots, and what each must show of device 0. One reader checks all, because its start takes longer.
#[derive(Default)]
pub struct Snapshots(Vec<(TempDir, Held)>);

impl Snapshots {
    const NAME: &str = "snapshot.pickle";

    pub fn check(self) {
        let paths = self.0.iter().map(|(folder, _)| folder.path().join(Self::NAME));
        for ((folder, held), snapshot) in self.0.iter().zip(check_all(paths)) {
            show(snapshot["sums"].get("0"), &folder.path().display().to_string(), *held);
        }
    }
}

/// Checks what each view of a process that has ended says of device 0 at moments: `peak`, `oom` or `end`. Returns the snapshots.
#[track_caller]
pub fn assert_moments(path: &Path, moments: &[(&str, Held)]) -> Snapshots {
    let exported = |format: &str, name: &str, moment: &str| {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join(name);
        vramshim_with(&["export", "--to", format, "--at", moment, "-o"], [&out, path]).ok();
        (folder, out)
    };
    let of_moment = |&(moment, held): &(&str, Held)| {
        let page = json(path, &["--at", moment, "--top", "stack"]);
        let inspected = page["jobs"][0]["at"]["devices"]
            .list()
            .iter()
            .find(|device| device["device"] == 0);
        let holders = inspected.map_or(0, |device| sum(&device["holders"], "bytes"));
        let (_folder, collapsed) = exported("collapsed", "stacks", moment);
        let lines = std::fs::read_to_string(collapsed).unwrap();
        let stacks = lines
            .lines()
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
        assert_eq!([holders, stacks.sum()], [held.allocated; 2], "holders, {moment}");
        show(inspected, moment, held);
        (exported("torch-snapshot", Snapshots::NAME, moment).0, held)
    };
    Snapshots(moments.iter().map(of_moment).collect())
}

/// Checks what `why`, `reconcile` and the report say of the failure.
#[track_caller]
pub fn assert_failure(path: &Path, held: Held) {
    let wanted = [held.allocated, held.cached()];
    let why = told("why", path, &["--json", "--top", "1000"]);
    assert_eq!(
        ["live", "cached"].map(|part| why["why"]["ledger"][part].number()),
        wanted,
        "why: {why:#}"
    );
    assert_eq!(sum(&why["holders"], "bytes"), held.allocated, "holders of why: {why:#}");
    let report = told("report", path, &["--json"]);
    let parts = report["processes"][0]["verdict"]["parts"].list();
    let part = |name: &str| parts.iter().find(|part| part["name"] == name).unwrap()["bytes"].number();
    assert_eq!(["live", "cached"].map(part), wanted, "report: {parts:#?}");
    assert_reconciled(path, held);
}

/// Checks what `reconcile` says of a process that has ended: of its last measurement, or else of its end.
#[track_caller]
fn assert_reconciled(path: &Path, held: Held) {
    let page = told("reconcile", path, &["--json"]);
    let of = &page["devices"][0]["processes"][0]["held"];
    let told = ["live", "cached", "reserved"].map(|part| of[part].as_u64());
    assert_eq!(
        told,
        [held.allocated, held.cached(), held.reserved].map(Some),
        "reconcile: {of:#}"
    );
}

/// Checks all views of a PyTorch job, and those of the same job while it runs. Returns the snapshots.
fn assert_agree(mut play: Play) -> Snapshots {
    // After the last step no time is left.
    let at = Some(play.at).filter(|&(time_ns, _)| time_ns > 0 && time_ns < play.job.now_ns());
    let path = play.end();
    let (now, peak) = (play.now, play.peak);

    let page = told("inspect", &path, &["--json"]);
    let of_device = page["jobs"][0]["devices"]
        .list()
        .iter()
        .find(|device| device["device"] == 0)
        .unwrap();
    assert_eq!(page["jobs"][0]["anomalies"], 0);
    let levels = |level: &str| [&of_device["allocated"][level], &of_device["reserved"][level]].map(Fields::number);
    assert_eq!(levels("current"), [now.allocated, now.reserved]);
    assert_eq!(levels("peak"), [peak.allocated, play.peak_reserved]);
    assert_eq!(of_device["free_inside"].number(), now.cached());

    let report = told("report", &path, &["--json"]);
    let drawn = &report["processes"][0]["devices"][0];
    let figures = ["live_at_end", "peak_bytes", "peak_reserved"].map(|name| drawn[name].number());
    assert_eq!(figures, [now.allocated, peak.allocated, play.peak_reserved]);

    let mut moments = vec![("peak", peak), ("end", now)];
    match play.failure {
        Some(held) => {
            moments.push(("oom", held));
            assert_failure(&path, held);
            let why = told("why", &path, &["--json"]);
            assert_eq!(why["why"]["failure"]["requested"], play.failed, "{why:#}");
        }
        None => assert_reconciled(&path, now),
    }
    let snapshots = assert_moments(&path, &moments);
    if let Some((time_ns, live)) = at {
        let page = json(&path, &["--at", &format!("{time_ns}ns"), "--top", "stack"]);
        let device = device(&page, "at");
        assert_eq!(
            (device["allocated"].number(), sum(&device["holders"], "bytes")),
            (live, live),
            "{time_ns}"
        );
    }

    // With the lock of a process that runs.
    let journal = std::fs::File::options().write(true).open(&path).unwrap();
    assert_eq!(Owner::Process.lock(journal.as_raw_fd(), WHOLE), Ok(true));
    for (view, told) in seen(&path, path.parent().unwrap()) {
        assert_eq!(told, [now.allocated, now.cached(), now.reserved].map(Some), "{view}");
    }
    snapshots
}

#[test]
fn all_views_have_the_same_bytes() {
    let all = RefCell::new(Snapshots::default());
    let cases = ProptestConfig {
        cases: 200,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    };
    let played = TestRunner::new(cases).run(&steps(20..90), |steps| {
        let folder = tempfile::tempdir().unwrap();
        let snapshots = assert_agree(random_job(folder.path(), &steps));
        all.borrow_mut().0.extend(snapshots.0);
        Ok(())
    });
    played.unwrap();
    all.into_inner().check();
}

/// A few such jobs, as a browser shows them.
#[test]
fn the_page_shows_the_same_figures() {
    let Some(mut browser) = browser() else { return };
    let mut runner = TestRunner::deterministic();
    browser.look(1280, 900, "light");
    for _ in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let steps = steps(20..90).new_tree(&mut runner).unwrap().current();
        let mut play = random_job(folder.path(), &steps);
        let (path, page) = (play.end(), folder.path().join("page.html"));
        vramshim(&[path.to_str().unwrap(), "-o", page.to_str().unwrap()], folder.path()).ok();
        browser.open(&page);
        let [live, reserved] = [play.peak.allocated, play.peak_reserved].map(size);
        browser.assert_shows(
            "#verdict",
            &[&format!("live: {live} at"), &format!("reserved: {reserved} at")],
        );
        for (moment, held) in [
            ("failure", play.failure),
            ("peak", Some(play.peak)),
            ("end", Some(play.now)),
        ] {
            let Some(held) = held else { continue };
            browser.click(&format!("#jump-{moment}"));
            let [live, cached] = [held.allocated, held.cached()].map(size);
            let bar = browser.value("document.querySelector('#ledger .bar').ariaLabel");
            let wanted = format!("live {live}, cached {cached}, ");
            assert!(bar.text().starts_with(&wanted), "{moment}: {wanted}: {bar}");
            browser.assert_shows("#holders .asof", &[&format!(": {live} live.")]);
        }
    }
}
