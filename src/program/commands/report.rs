//! `vramshim report`: writes one HTML file about the processes of a job, or the data that the file is made from.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use base::text::shown;
use clap::Args;

use crate::analysis::job::LoadError;
use crate::escaped;
use crate::failure::Failure;
use crate::inputs::{Inputs, MaxMemory};
use crate::journals::{collect, named, only};
use crate::output::Output;
use crate::render::progress;
use crate::report;

const EXAMPLES: &str = "\
Examples:
  vramshim report                                   # the newest journals here
  vramshim report vramshim-myjob -o myjob.html
  vramshim report vramshim-myjob/node1-4711-98765.vraj
  vramshim report vramshim-new --against vramshim-old/node1-4711-98765.vraj
  vramshim report vramshim-myjob --json | jq '.processes[0].verdict'

The file shows the verdict, the memory over time, who held it, and what changed; a range that is chosen on the timeline \
applies to every panel. The file contains everything it needs, and the page loads nothing from a network. Values of \
variables and options whose names look like those of secrets are left out. Works on a running job, too.

Exit codes: 0 done, 1 if a journal cannot be read (the others are in the report) or the file cannot be written, 2 wrong usage, \
or the output is a file that this command reads or no report.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Report {
    /// Journals (.vraj), folders of them, snapshots (.pickle), RMM's logs (.csv), or `newest` [default: newest]
    #[arg(value_name = "FOLDER|FILE")]
    paths: Vec<PathBuf>,

    /// The file to write, or - for the standard output; a report that exists is replaced, another file only with --force
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,

    /// Replace a file that exists and is no report
    #[arg(long, conflicts_with = "json")]
    force: bool,

    /// A journal of another run, or a folder with one journal: the panel "What changed" compares what is held with the
    /// peak of that run
    #[arg(long, value_name = "FOLDER|FILE")]
    against: Option<PathBuf>,

    /// Print the data of the report as JSON, and write no file
    #[arg(long, conflicts_with = "output")]
    json: bool,

    #[command(flatten)]
    memory: MaxMemory,
}

impl Report {
    pub fn make(self) -> Result<(), Failure> {
        self.memory.set();
        let mut problems = Vec::new();
        let paths = named(&self.paths, false)?;
        let journals: Vec<PathBuf> = collect(&paths, &mut problems).into_iter().collect();
        if journals.is_empty() {
            return Err(Failure::failed(problems.join("\n")));
        }
        let against = self.against.as_deref().map(only).transpose()?;
        if !self.json {
            self.keep_others(journals.iter().chain(&against))?;
        }
        let report = read(&journals, against.as_deref()).map_err(|unread| {
            problems.extend(unread.iter().map(LoadError::to_string));
            Failure::failed(problems.join("\n"))
        })?;
        problems.extend(report.unread.iter().cloned());
        if self.json {
            let mut out = BufWriter::new(io::stdout().lock());
            escaped::line(&mut out, &report)
                .and_then(|()| out.flush())
                .map_err(Failure::unwritten)?;
        } else {
            write_file(&self.output, &report).map_err(|error| Failure::failed(format!("no report: {error}")))?;
            if self.output.as_os_str() != "-" {
                writeln!(io::stdout(), "{}", shown(&self.output)).map_err(Failure::unwritten)?;
            }
        }
        Failure::unless_none(&problems)
    }

    /// Refuses to replace a file that this command reads, and without `--force` one that is no report.
    fn keep_others<'a>(&self, read: impl Iterator<Item = &'a PathBuf>) -> Result<(), Failure> {
        Inputs::of_journals(read.map(PathBuf::as_path)).keep(&self.output)?;
        let is_there = self
            .output
            .metadata()
            .is_ok_and(|found| found.is_file() && found.len() > 0);
        if self.force || !is_there || report::is_report(&self.output).unwrap_or(false) {
            return Ok(());
        }
        Err(Failure::refused(format!(
            "{}: exists already and is no report: give another name with -o, or --force",
            shown(&self.output)
        )))
    }
}

/// Reads the journals, with a progress bar if that takes a while.
fn read(journals: &[PathBuf], against: Option<&Path>) -> Result<report::Report, Vec<LoadError>> {
    let bar = progress::reading(0, "");
    report::gather(journals, against, |path, done, all| {
        bar.set_message(shown(Path::new(path.file_name().unwrap_or_default())));
        bar.set_length(all);
        bar.set_position(done);
    })
}

/// Writes the page beside its place first, so that no half of a page is ever there.
fn write_file(path: &Path, report: &report::Report) -> io::Result<()> {
    let mut out = Output::create(path, true)?;
    report::write(&mut out, report)?;
    out.finish()
}
