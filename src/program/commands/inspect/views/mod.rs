//! The views of `inspect` in depth. Each view has an option, and shows text or JSON.

mod diff;
mod growers;
pub mod holders_at;
mod leaks;
pub mod study;
pub mod when;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::analysis::labels::Labels;
use crate::analysis::live_set::By;
use crate::analysis::names::mark_name;
use crate::analysis::rank::rank;
use crate::escaped;
use crate::failure::Failure;
use crate::journals::collect;
use crate::render::format::{many, percent};
use crate::render::text_or_json::Page;
use study::{MomentError, Study};
use when::{Share, Top, When};

/// The exit code if a peak rose more than `--fail-above` allows.
const ROSE: u8 = 3;
const DEFAULT_TOP: usize = 5;

#[derive(Args)]
pub struct Views {
    /// Entries of each list (5 if not given); or what held the most, by one of these
    #[arg(long, value_name = "N|stack|size|api|thread|stream")]
    top: Vec<Top>,

    /// What held the most at a moment: a time such as 90s, peak, oom (the last failure for lack of memory), end, or
    /// mark:NAME
    #[arg(long, value_name = "MOMENT", help_heading = "Views")]
    at: Option<When>,

    /// What lives at the end, and what of it came again and again
    #[arg(long, help_heading = "Views")]
    leaks: bool,

    /// Whose live bytes rise from mark to mark, and when the device will be full
    #[arg(long, help_heading = "Views")]
    growth: bool,

    /// Compare with the peak of another journal or folder: what it has more or less
    #[arg(long, value_name = "OTHER", help_heading = "Views")]
    diff: Option<PathBuf>,

    /// With --diff: exit with 3 if the other's peak is higher by more than this
    #[arg(long, value_name = "PERCENT%", requires = "diff", help_heading = "Views")]
    fail_above: Option<Share>,
}

impl Views {
    pub fn entries(&self) -> usize {
        let entries = |top: &Top| match top {
            Top::Entries(number) => Some(*number),
            Top::By(_) => None,
        };
        self.top.iter().rev().find_map(entries).unwrap_or(DEFAULT_TOP)
    }

    fn by(&self) -> Option<By> {
        let by = |top: &Top| match top {
            Top::Entries(_) => None,
            Top::By(by) => Some(*by),
        };
        self.top.iter().rev().find_map(by)
    }

    /// Whether a view is asked for, and not the page of a job.
    pub fn any(&self) -> bool {
        self.wants_holders() || self.leaks || self.growth || self.diff.is_some()
    }

    /// Whether what held the most is asked for, and not only a grouping for another view.
    fn wants_holders(&self) -> bool {
        let groups = self.leaks || self.diff.is_some();
        self.at.is_some() || self.by().is_some() && !groups
    }

    fn moment(&self) -> When {
        self.at.clone().unwrap_or(When::Peak)
    }

    pub fn show(&self, paths: &[PathBuf], json: bool) -> Result<(), Failure> {
        let (by, top) = (self.by(), self.entries());
        let mut problems = Vec::new();
        let journals = collect(paths, &mut problems);
        let to_compare = match &self.diff {
            Some(other) => collect(std::slice::from_ref(other), &mut problems),
            None => BTreeSet::new(),
        };
        let mut read = |paths: BTreeSet<PathBuf>| -> Vec<Study> {
            let studies = paths.iter().map(|path| Study::read(path));
            let read = studies.filter_map(|study| study.map_err(|error| problems.push(error.to_string())).ok());
            let mut read: Vec<Study> = read.collect();
            read.sort_by_key(|study| (study.job.header.wall_start_ns, study.job.header.pid));
            read
        };
        let (mut studies, mut others) = (read(journals), read(to_compare));
        let both = studies.iter_mut().chain(&mut others);
        let mut labels: Vec<&mut Labels> = both.map(|study| &mut study.labels).collect();
        if labels.len() > 1 {
            Labels::tell_apart(&mut labels);
        }
        let mut together = Page::default();
        let is_compared = self.diff.is_some();
        let rise = is_compared
            .then(|| diff::show(&mut together, &studies, &others, by, top))
            .flatten();
        // Why a process does not have the moment that was asked for, and whether another one has it.
        let (mut missing, mut found) = (None, false);
        let mut note = |result| match result {
            Err(MomentError::Missing(why)) => missing = Some(why),
            Err(MomentError::Load(error)) => problems.push(error.to_string()),
            Ok(()) => found = true,
        };
        let mut pages = Vec::new();
        for study in &studies {
            let mut page = Page::default();
            if self.wants_holders() {
                note(holders_at::show(&mut page, study, &self.moment(), by, top));
            }
            let leaks = self.leaks.then(|| leaks::show(&mut page, study, by, top));
            let growth = self.growth.then(|| growers::show(&mut page, study, top));
            let failed = [leaks, growth].into_iter().flatten().filter_map(Result::err);
            failed.for_each(|error| note(Err(error.into())));
            pages.push(page);
        }
        print(&studies, pages, together, json).map_err(Failure::unwritten)?;
        problems.extend(
            missing
                .filter(|_| !found)
                .map(|why| format!("there is no such moment: {why}")),
        );
        Failure::unless_none(&problems)?;
        match (self.fail_above, rise) {
            (Some(Share(most)), Some(rise)) if rise > most => Err(Failure::new(
                ROSE,
                format!(
                    "the peak is {} higher, more than the {} that --fail-above allows",
                    percent(Some(rise)),
                    percent(Some(most))
                ),
            )),
            _ => Ok(()),
        }
    }
}

fn marks(study: &Study) -> Value {
    let marks = study.landmarks.marks.iter().map(|mark| {
        json!({ "time_ns": mark.at.time_ns, "kind": mark_name(mark.kind), "text": study.labels.mark(mark.text) })
    });
    marks.collect()
}

fn print(studies: &[Study], pages: Vec<Page>, together: Page, json: bool) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    if json {
        let mut whole = together.into_json();
        let jobs = studies.iter().zip(pages).map(|(study, page)| {
            let mut job = page.into_json();
            job["pid"] = json!(study.job.header.pid);
            job["rank"] = json!(rank(&study.job.header));
            job["job"] = json!(study.job.header.job);
            job["path"] = json!(study.job.path.to_string_lossy());
            job["events"] = json!(study.job.ledger.events);
            job["events_lost"] = json!(study.job.lost);
            job["damaged"] = json!(study.job.damaged);
            job["note"] = json!(study.note());
            job["marks"] = marks(study);
            job
        });
        whole["jobs"] = jobs.collect::<Value>();
        escaped::line(&mut out, &whole)?;
        return out.flush();
    }
    let mut whole = together;
    for (study, page) in studies.iter().zip(pages).filter(|(_, page)| !page.text.is_empty()) {
        whole.heading(study.title());
        if study.job.lost > 0 || study.job.damaged > 0 {
            let (lost, damaged) = (many(study.job.lost, "event"), many(study.job.damaged, "record"));
            whole.line(format!("Figures are incomplete: {lost} lost, {damaged} damaged."));
        }
        study.note().iter().for_each(|note| whole.line(note));
        whole.text += &page.text;
    }
    out.write_all(whole.text.as_bytes())?;
    out.flush()
}
