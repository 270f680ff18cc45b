//! `vramshim inspect`: reads journals and shows what they mean, to people (`text`) or programs (`json`).

mod json;
pub mod text;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use journal::format::EXTENSION;

use super::Failure;
use crate::analysis::job::Job;
use crate::render::format;

/// Files smaller than this are read before a progress bar would be seen.
const WORTH_A_BAR: u64 = 32 << 20;

const EXAMPLES: &str = "\
Examples:
  vramshim inspect vramshim-myjob                  # every process of a job
  vramshim inspect vramshim-myjob --all            # each of them in full
  vramshim inspect run/node1-4711-98765.vraj --top 20
  vramshim inspect vramshim-myjob --json | jq '.jobs[].devices[].utilisation'

Terms, in bytes:
  requested     what the job asked for and still holds
  allocated     the same after rounding
  reserved      obtained from the driver to serve it
  utilisation   peak allocated / peak reserved
  fragmentation share of what is free inside segments that lies outside the largest
                free block; auto_growth can serve a request from several of
                them, by mapping their granules side by side

Sizes are shown with binary units (1 KiB = 1024 bytes); --json gives bytes. Works on a running job, too.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Inspect {
    /// Journals (.vraj), or folders of them
    #[arg(required = true, value_name = "FOLDER|FILE")]
    paths: Vec<PathBuf>,

    /// Print JSON: everything, sizes in bytes
    #[arg(long)]
    json: bool,

    /// How many entries of a list to show
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,

    /// Show every job in full, even if there are several
    #[arg(long)]
    all: bool,
}

impl Inspect {
    pub fn show(self) -> Result<(), Failure> {
        let mut problems = Vec::new();
        let mut early = Vec::new();
        let mut jobs = Vec::new();
        for path in collect(&self.paths, &mut problems) {
            match load(&path) {
                Ok(job) => jobs.push(job),
                Err(error) if error.is_too_early() => early.push(error.to_string()),
                Err(error) => problems.push(error.to_string()),
            }
        }
        // A journal that is just being begun is worth a word, and a failure only if there is nothing else.
        if jobs.is_empty() {
            problems.append(&mut early);
        }
        for note in early {
            eprintln!("vramshim: {note}");
        }
        jobs.sort_by_key(|job| (job.header.wall_start_ns, job.header.pid));
        if self.json || !jobs.is_empty() {
            self.print(&jobs).map_err(Failure::unwritten)?;
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Failure::failed(problems.join("\n")))
        }
    }

    fn print(&self, jobs: &[Job]) -> io::Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        if self.json {
            json::write(&mut out, jobs)?;
        } else {
            let page = text::Page {
                top: self.top,
                bold: format::bold(),
            };
            match jobs {
                [job] => page.job(&mut out, job)?,
                _ => {
                    page.overview(&mut out, jobs)?;
                    for job in jobs.iter().filter(|_| self.all) {
                        writeln!(out)?;
                        page.job(&mut out, job)?;
                    }
                }
            }
        }
        out.flush()
    }
}

/// The journals that were named, each once; what cannot be looked into is told in `problems`.
pub(super) fn collect(paths: &[PathBuf], problems: &mut Vec<String>) -> BTreeSet<PathBuf> {
    let mut journals = BTreeSet::new();
    for path in paths {
        if !path.is_dir() {
            journals.insert(path.clone());
            continue;
        }
        match in_folder(path) {
            Ok(found) if found.is_empty() => problems.push(format!(
                "{}: no journals (.{EXTENSION} files) in this folder; a process writes one once it uses CUDA",
                path.display()
            )),
            Ok(found) => journals.extend(found),
            Err(error) => problems.push(format!("{}: cannot be read: {error}", path.display())),
        }
    }
    journals
}

/// The journals in a folder.
pub fn in_folder(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            found.push(path);
        }
    }
    Ok(found)
}

pub(super) fn load(path: &Path) -> Result<Job, crate::analysis::job::LoadError> {
    let size = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    if size < WORTH_A_BAR {
        return Job::load(path, |_, _| {});
    }
    // Hidden unless standard error is a terminal.
    let bar = ProgressBar::with_draw_target(Some(size), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("reading {msg} {wide_bar} {binary_bytes}/{binary_total_bytes}") {
        bar.set_style(style);
    }
    bar.set_message(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
    let job = Job::load(path, |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    job
}
