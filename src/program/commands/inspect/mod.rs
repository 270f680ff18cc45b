//! `vramshim inspect`: reads journals and shows what the jobs did with GPU memory, as text or as JSON.

mod job_json;
mod overview;
mod views;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use base::text::shown;
use clap::Args;
use journal::reader::TensorFile;

use crate::analysis::frameless::Frameless;
use crate::analysis::job::{Job, LoadError, Observer};
use crate::analysis::labels::Labels;
use crate::analysis::live_set::{Catcher, Key};
use crate::analysis::stack_uses::Uses;
use crate::analysis::tensors::{self, Tensors};
use crate::failure::Failure;
use crate::inputs::MaxMemory;
use crate::journals::{collect, load, load_all, load_with, named};
use crate::render::job_page::JobPage;
use crate::render::stacks_section;
use crate::render::tensors_section;
use crate::render::{format, host_memory};
use views::Views;

const EXAMPLES: &str = "\
Examples:
  vramshim inspect --top stack                     # what held the most
  vramshim inspect before --diff after --fail-above 5%         # for CI

Terms, in bytes:
  requested      what the job asked for and still holds
  allocated      the same after the policy's rounding
  reserved       obtained from the driver to serve it
  utilisation    peak allocated / peak reserved
  fragmentation  share of the free bytes that lies outside the largest block

auto_growth can serve a request from several free blocks by mapping their memory side by side.

Sizes are shown with binary units (1 KiB = 1024 bytes); --json gives bytes. Works on a running job, too.

Exit codes: 0 done, 1 if a journal cannot be read (the others are shown), 2 wrong usage, 3 if --fail-above was exceeded.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Inspect {
    /// Journals (.vraj) or folders of them, or `newest` [default: newest]
    #[arg(value_name = "FOLDER|FILE")]
    paths: Vec<PathBuf>,

    /// Print JSON with every figure, sizes in bytes
    #[arg(long)]
    json: bool,

    /// Show every process in full; by default several are a table
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    memory: MaxMemory,

    #[command(flatten)]
    views: Views,
}

impl Inspect {
    pub fn show(self) -> Result<(), Failure> {
        self.memory.set();
        let paths = named(&self.paths, false)?;
        if self.views.any() {
            return self.views.show(&paths, self.json);
        }
        let mut problems = Vec::new();
        let paths = collect(&paths, &mut problems);
        // The overview needs sums alone, and there may be hundreds of processes.
        let is_overview = paths.len() > 1 && !self.all && !self.json;
        let mut jobs = load_all(&paths, &mut problems, |path| {
            if !is_overview {
                return Read::of(path);
            }
            let mut job = load(path)?;
            drop(job.ledger.take_live());
            Ok(Read::from(job))
        });
        jobs.sort_by_key(|read| (read.job.header.wall_start_ns, read.job.header.pid));
        if self.json || !jobs.is_empty() {
            self.print(&jobs).map_err(Failure::unwritten)?;
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Failure::failed(problems.join("\n")))
        }
    }

    fn print(&self, jobs: &[Read]) -> io::Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        if self.json {
            job_json::write(&mut out, jobs)?;
        } else {
            let page = JobPage {
                top: self.views.entries(),
                bold: format::styled(),
            };
            match jobs {
                [read] => self.page(&mut out, &page, read)?,
                _ => {
                    overview::overview(&mut out, jobs, page.bold)?;
                    for read in jobs.iter().filter(|_| self.all) {
                        writeln!(out)?;
                        self.page(&mut out, &page, read)?;
                    }
                }
            }
        }
        out.flush()
    }

    /// A job in full, with PyTorch's tensors if they were recorded.
    fn page(&self, out: &mut impl Write, page: &JobPage, Read { job, stacks, tensors }: &Read) -> io::Result<()> {
        page.job(out, job)?;
        if job.ledger.surges.count > 0 {
            let labels = Labels::load(&job.path);
            let lines = host_memory::surge_lines(&job.ledger.surges, &labels, &shown(&job.path));
            for (line, number) in lines.iter().zip(0..) {
                match number {
                    0 => writeln!(out, "\n{}", format::strong(line, page.bold))?,
                    _ => writeln!(out, "  {line}")?,
                }
            }
        }
        if let Some(stacks) = stacks {
            let failure = job.ledger.scenes.last_out_of_memory();
            stacks_section::page(out, stacks, failure, self.views.entries(), page.bold)?;
            let (uses, labels) = stacks;
            let is_lost = |number| labels.frames(number).err() == Some(Frameless::NotInFile);
            let mut holders = uses.holders.iter();
            if holders.any(|holder| matches!(holder.key, Key::Stack(number) if is_lost(number)))
                && let Some(remedy) = Frameless::NotInFile.remedy(&job.path, &job.header, true)
            {
                writeln!(out, "  {remedy}")?;
            }
        }
        match tensors {
            Some(tensors) => tensors_section::page(out, tensors, self.views.entries(), page.bold),
            None if asked_for_tensors(job) => tensors_section::none(out),
            None => Ok(()),
        }
    }
}

/// A job, and what lies beside its ledger, of one pass over the journal.
struct Read {
    job: Job,
    /// What the records say of stacks, and their names; `None` if stacks were not recorded.
    stacks: Option<(Uses, Labels)>,
    tensors: Option<Tensors>,
}

impl From<Job> for Read {
    fn from(job: Job) -> Read {
        let (stacks, tensors) = (None, None);
        Read { job, stacks, tensors }
    }
}

impl Read {
    /// A file beside the journal that cannot be read is named on stderr.
    fn of(path: &Path) -> Result<Read, LoadError> {
        let (mut uses, mut catcher) = (Uses::default(), Catcher::new(&tensors::MOMENTS));
        let mut observers: Vec<&mut dyn Observer> = vec![&mut uses];
        if TensorFile::beside(path).exists() {
            observers.push(&mut catcher);
        }
        let mut read = Read::from(load_with(path, &mut observers)?);
        let job = &read.job;
        let kinds = job.setting(config::table::STACKS.name).map(str::trim);
        let has_stacks = kinds
            .and_then(config::Stacks::parse)
            .is_some_and(|kinds| kinds != config::Stacks::Off);
        if has_stacks || job.tensors.is_some() {
            let labels = Labels::load(path);
            read.tensors = Tensors::of(job, catcher, &labels);
            read.stacks = has_stacks.then(|| {
                uses.finish(&job.ledger);
                (uses, labels)
            });
        }
        Ok(read)
    }
}

/// Whether the job was started with `--torch record`. With stacks of Python that is so in case the job has tensors.
fn asked_for_tensors(job: &Job) -> bool {
    let value = |variable: &config::Variable| job.setting(variable.name).map(str::trim);
    let stacks = value(&config::table::STACKS).and_then(config::Stacks::parse);
    let in_case = stacks.is_some_and(config::Stacks::python) && !job.header.uses("PyTorch");
    value(&config::table::TORCH) == Some("record") && !in_case
}
