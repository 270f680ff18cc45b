//! The views of `inspect` in depth. Each view has an option, and shows text or JSON.

mod diff;
mod fragmentation;
mod growth;
mod holders;
mod lifetimes;
mod purpose;
mod ranks;
mod study;
mod summary;
mod timeline;
mod when;
mod window;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use journal::reader::{Journal, TensorFile};
use serde_json::{Value, json};

use crate::analysis::fragmentation::Fragmentation;
use crate::analysis::job::{LoadError, Observer};
use crate::analysis::labels::Labels;
use crate::analysis::lifetimes::Lifetimes;
use crate::analysis::live_set::By;
use crate::analysis::rank::rank;
use crate::analysis::summary::Summary;
use crate::escaped;
use crate::failure::Failure;
use crate::journals::collect;
use crate::render::format;
use crate::render::page::Page;
use study::{Study, time_taken_ns};
use when::{Share, Top, When, Window};

/// The exit code if a peak rose more than `--fail-above` allows.
const ROSE: u8 = 3;
const DEFAULT_TOP: usize = 5;

#[derive(Args)]
pub struct Views {
    /// Number of entries to show of each list (5 if not given); or what held the most, by stack, size, api, thread or
    /// stream. May be given twice: --top stack --top 20
    #[arg(long, value_name = "N|stack|size|api|thread|stream")]
    top: Vec<Top>,

    /// What held the most at a moment: a time such as 90s, start, peak, oom (the last failure for lack of memory), end, or
    /// mark:NAME
    #[arg(long, value_name = "MOMENT", help_heading = "Views")]
    at: Option<When>,

    /// What was allocated between two moments and still lives, and what came and went
    #[arg(long, value_name = "MOMENT..MOMENT", help_heading = "Views")]
    between: Option<Window>,

    /// Draw live and reserved bytes over time
    #[arg(long, help_heading = "Views")]
    timeline: bool,

    /// What lives at the end, and what of it came again and again
    #[arg(long, help_heading = "Views")]
    leaks: bool,

    /// Whose live bytes rise from mark to mark, and when the device will be full
    #[arg(long, help_heading = "Views")]
    growth: bool,

    /// The free memory inside segments, by size and over time
    #[arg(long, help_heading = "Views")]
    fragmentation: bool,

    /// How long allocations live, which are temporary, and how often addresses are used again
    #[arg(long, help_heading = "Views")]
    temporary: bool,

    /// What lasts and what comes and goes at the peak, and what a smaller batch would save
    #[arg(long, help_heading = "Views")]
    purpose: bool,

    /// The rows of torch.cuda.memory_summary(), for any job
    #[arg(long, help_heading = "Views")]
    summary: bool,

    /// Compare with the peak of another journal or folder: what it has more or less
    #[arg(long, value_name = "OTHER", help_heading = "Views")]
    diff: Option<PathBuf>,

    /// With --diff: exit with 3 if the other's peak is higher by more than this
    #[arg(long, value_name = "PERCENT%", requires = "diff", help_heading = "Views")]
    fail_above: Option<Share>,
}

impl Views {
    /// The number of entries of a list.
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
        let Views {
            at,
            between,
            timeline,
            leaks,
            growth,
            fragmentation,
            temporary,
            purpose,
            summary,
            diff,
            ..
        } = self;
        let flags = [timeline, leaks, growth, fragmentation, temporary, purpose, summary];
        self.by().is_some()
            || at.is_some()
            || between.is_some()
            || diff.is_some()
            || flags.into_iter().any(|flag| *flag)
    }

    /// Whether what held the most is asked for, and not only a grouping for another view.
    fn wants_holders(&self) -> bool {
        let groups = self.leaks || self.purpose || self.diff.is_some();
        self.at.is_some() || self.by().is_some() && !groups
    }

    /// Shows the views of all journals. `all`: several processes one by one, and not together.
    pub fn show(&self, paths: &[PathBuf], json: bool, all: bool) -> Result<(), Failure> {
        let mut problems = Vec::new();
        let journals = collect(paths, &mut problems);
        let to_compare = match &self.diff {
            Some(other) => collect(std::slice::from_ref(other), &mut problems),
            None => BTreeSet::new(),
        };
        // Tensors are compared with tensors alone.
        let has_tensors = |path: &PathBuf| TensorFile::beside(path).exists();
        let wants_tensors = self.diff.is_none() || journals.iter().chain(&to_compare).all(has_tensors);
        let (mut studies, mut pages) = self.studies(&journals, wants_tensors, &mut problems);
        let mut others = Vec::new();
        for path in to_compare {
            // Only its holders are needed.
            match Study::read(&path, wants_tensors, &mut []) {
                Ok(study) => others.push(study),
                Err(error) => problems.push(error.to_string()),
            }
        }
        let mut labels: Vec<&mut Labels> = studies
            .iter_mut()
            .chain(&mut others)
            .map(|study| &mut study.labels)
            .collect();
        if labels.len() > 1 {
            Labels::tell_apart(&mut labels);
        }
        let mut together = Page::default();
        let mut rise = None;
        if self.diff.is_some() {
            rise = diff::show(&mut together, &studies, &others, self.by(), self.entries());
        }
        let is_merged = studies.len() > 1 && !all && self.wants_holders();
        // The failure if no process has a moment that was asked for.
        let (mut found, mut missing) = (studies.is_empty(), None);
        if is_merged {
            match ranks::merged(&mut together, &studies, &self.moment(), self.by(), self.entries()) {
                Ok(Some(why)) => missing = Some(no_such_moment(why)),
                Ok(None) => found = true,
                Err(error) => problems.push(error.to_string()),
            }
        }
        for (study, page) in studies.iter().zip(&mut pages) {
            match self.fill(page, study, is_merged) {
                Ok(Some(failure)) => missing = Some(failure),
                Ok(None) => found |= !is_merged,
                Err(error) => problems.push(error.to_string()),
            }
        }
        print(&studies, pages, together, json).map_err(Failure::unwritten)?;
        match missing.filter(|_| !found) {
            Some(failure) if problems.is_empty() => return Err(failure),
            failure => problems.extend(failure.map(|failure| failure.message().to_owned())),
        }
        if !problems.is_empty() {
            return Err(Failure::failed(problems.join("\n")));
        }
        match (self.fail_above, rise) {
            (Some(Share(most)), Some(rise)) if rise > most => Err(Failure::new(
                ROSE,
                format!(
                    "the peak is {} higher, more than the {} that --fail-above allows",
                    format::percent(Some(rise)),
                    format::percent(Some(most))
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Reads each journal once, and begins its page with the views that this reading filled.
    fn studies(
        &self,
        journals: &BTreeSet<PathBuf>,
        wants_tensors: bool,
        problems: &mut Vec<String>,
    ) -> (Vec<Study>, Vec<Page>) {
        let mut read = Vec::new();
        for path in journals {
            match self.study(path, wants_tensors) {
                Ok(done) => read.push(done),
                Err(error) => problems.push(error.to_string()),
            }
        }
        read.sort_by_key(|(study, _)| (study.job.header.wall_start_ns, study.job.header.pid));
        read.into_iter().unzip()
    }

    fn study(&self, path: &Path, wants_tensors: bool) -> Result<(Study, Page), LoadError> {
        let taken_ns = Journal::open(path).map_or(0, |journal| time_taken_ns(&journal));
        let mut curves = timeline::Curves::default();
        let mut lifetimes = Lifetimes::default();
        let mut fragmentation = Fragmentation::new(taken_ns, fragmentation::SAMPLES);
        let mut summary = Summary::default();
        let mut observers: Vec<&mut dyn Observer> = Vec::new();
        if self.timeline {
            observers.push(&mut curves);
        }
        if self.temporary {
            observers.push(&mut lifetimes);
        }
        if self.fragmentation {
            observers.push(&mut fragmentation);
        }
        if self.summary {
            observers.push(&mut summary);
        }
        let study = Study::read(path, wants_tensors, &mut observers)?;
        let mut page = Page::default();
        if self.timeline {
            timeline::show(&mut page, &study, &curves, terminal());
        }
        if self.summary {
            summary::show(&mut page, &study, &summary);
        }
        if self.temporary {
            lifetimes::show(&mut page, &study, &lifetimes, self.entries());
        }
        if self.fragmentation {
            fragmentation::show(&mut page, &study, &fragmentation);
        }
        Ok((study, page))
    }

    /// The moment of the holders.
    fn moment(&self) -> When {
        self.at.clone().unwrap_or(When::Peak)
    }

    /// Adds the views that ask the journal again. Returns the failure if a moment that the user named does not
    /// exist.
    fn fill(&self, page: &mut Page, study: &Study, is_merged: bool) -> Result<Option<Failure>, LoadError> {
        let (by, top) = (self.by(), self.entries());
        let mut missing = None;
        if self.wants_holders() && !is_merged {
            missing = holders::show(page, study, &self.moment(), by, top)?.map(no_such_moment);
        }
        if self.leaks {
            holders::leaks(page, study, by, top);
        }
        if self.growth {
            growth::show(page, study, top)?;
        }
        if let Some(window) = &self.between {
            missing = window::show(page, study, window, top)?.or(missing);
        }
        if self.purpose {
            purpose::show(page, study, by, top)?;
        }
        Ok(missing)
    }
}

fn no_such_moment(why: String) -> Failure {
    Failure::failed(format!("there is no such moment: {why}"))
}

fn terminal() -> timeline::Terminal {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let width = columns.or_else(|| {
        ratatui::crossterm::terminal::size()
            .ok()
            .map(|(width, _)| usize::from(width))
    });
    timeline::Terminal {
        width: width.unwrap_or(80),
        ascii: format::is_dumb(),
    }
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
            job
        });
        whole["jobs"] = jobs.collect::<Value>();
        escaped::line(&mut out, &whole)?;
        return out.flush();
    }
    let bold = format::styled();
    let mut is_first = together.is_empty();
    together.write(&mut out, bold)?;
    for (study, page) in studies.iter().zip(pages) {
        if page.is_empty() {
            continue;
        }
        if !std::mem::take(&mut is_first) {
            writeln!(out)?;
        }
        writeln!(out, "{}", format::strong(&study.title(), bold))?;
        if study.job.lost > 0 || study.job.damaged > 0 {
            writeln!(
                out,
                "Figures are incomplete: {} lost, {} damaged.",
                format::many(study.job.lost, "event"),
                format::many(study.job.damaged, "record")
            )?;
        }
        if let Some(note) = study.note() {
            writeln!(out, "{note}")?;
        }
        page.write(&mut out, bold)?;
    }
    out.flush()
}
