//! `vramshim inspect`: reads journals and shows what the jobs did with GPU memory, as text or as JSON.

mod job_json;
mod overview;
mod views;

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use base::text::shown;
use clap::Args;

use crate::analysis::job::Job;
use crate::commands;
use crate::failure::Failure;
use crate::inputs::MaxMemory;
use crate::journals::{collect, load, load_all, named};
use crate::render::text_or_json::Page;
use crate::render::{host_memory, job_page};
use views::Views;
use views::holders_at;
use views::study::Study;
use views::when::When;

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
    /// Journals (.vraj), folders of them, snapshots (.pickle), RMM's logs (.csv), or `newest` [default: newest]
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
        let mut paths = collect(&paths, &mut problems);
        let order = |job: &Job| (job.header.wall_start_ns, job.header.pid);
        if paths.len() > 1 && !self.all && !self.json {
            // The overview needs sums alone, and there may be hundreds of processes.
            let mut jobs = load_all(&paths, &mut problems, |path| {
                let mut job = load(path)?;
                drop(job.ledger.take_live());
                Ok(job)
            });
            if jobs.len() > 1 {
                jobs.sort_by_key(order);
                let jobs: Vec<&Job> = jobs.iter().collect();
                commands::print(None::<()>, |page| overview::show(page, &jobs))?;
                return Failure::unless_none(&problems);
            }
            paths = jobs.into_iter().map(|job| job.path).collect();
        }
        let mut studies = load_all(&paths, &mut problems, Study::of_code);
        studies.sort_by_key(|study| order(&study.job));
        if self.json {
            let mut out = BufWriter::new(io::stdout().lock());
            let written = job_json::write(&mut out, &studies).and_then(|()| out.flush());
            written.map_err(Failure::unwritten)?;
        } else {
            commands::print(None::<()>, |page| self.pages(page, &studies))?;
        }
        Failure::unless_none(&problems)
    }

    /// Jobs in full, with the code that held memory at the peak if it is known.
    fn pages(&self, page: &mut Page, studies: &[Study]) {
        if studies.len() > 1 {
            let jobs: Vec<&Job> = studies.iter().map(|study| &study.job).collect();
            overview::show(page, &jobs);
        }
        for study in studies {
            if studies.len() > 1 {
                page.line("");
            }
            let (job, top) = (&study.job, self.views.entries());
            job_page::job(page, job, top);
            let surges = host_memory::surge_lines(&job.ledger.surges, &study.labels, &shown(&job.path));
            if let Some((first, others)) = surges.split_first() {
                page.heading(first);
                others.iter().for_each(|line| page.line(format!("  {line}")));
            }
            if asked_for_tensors(job) && job.tensors.is_none() {
                page.line(
                    "\nNo tensor of PyTorch was recorded. The job has not imported PyTorch or made no tensor on a GPU, its \
                     PyTorch is too old, or the job itself took the memory history; its stderr says which. Or it was \
                     killed in its first second.",
                );
            }
            if study.knows_code() {
                // The peak is always there.
                let _ = holders_at::show(page, study, &When::Peak, None, top);
                study.note().iter().for_each(|note| page.line(note));
            }
        }
    }
}

/// Whether the job was started with `--torch record`. With stacks of Python that is so in case the job has tensors.
fn asked_for_tensors(job: &Job) -> bool {
    let value = |variable: &config::Variable| job.setting(variable.name).map(str::trim);
    let stacks = value(&config::table::STACKS).and_then(config::Stacks::parse);
    let in_case = stacks.is_some_and(config::Stacks::python) && !job.header.uses("PyTorch");
    value(&config::table::TORCH) == Some("record") && !in_case
}
