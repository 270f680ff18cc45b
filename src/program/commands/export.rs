//! `vramshim export`: writes what journals say in the formats of other programs.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use base::text::shown;
use clap::Args;
use serde_json::{Value, json};

use crate::export::{self, At, ExportError, Format, Process, Request};
use crate::failure::Failure;
use crate::inputs::Inputs;
use crate::journals::{collect, named};
use crate::render::progress;
use crate::say::say;

const EXAMPLES: &str = "\
Examples:
  vramshim export --to torch-snapshot             # for pytorch.org/memory_viz
  vramshim export --to collapsed --at oom         # for www.speedscope.app
  vramshim export vramshim-train --to parquet -o train.parquet
  vramshim export /cluster/journals --to parquet --partition -o fleet
  vramshim export --to collapsed -o - | flamegraph.pl > memory.svg
  vramshim export job.vraj --to csv -o job.csv && vramshim replay job.csv

csv has the requests for device memory, as RMM's log has them; parquet and perfetto have all events. torch-snapshot and
collapsed show one moment, which --at chooses: the peak, or for torch-snapshot the end. Their bytes are allocated bytes, as
in inspect. If PyTorch's tensors were recorded (run --torch record), they stand in the place of PyTorch's segments. A
snapshot or a CSV file holds one process, all others hold the processes of a folder together.

Exit codes: 0 done, 1 if a journal cannot be read, or the job has no such moment, 2 wrong usage.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Export {
    /// Journals (.vraj), folders of them, snapshots (.pickle), RMM's logs (.csv), or `newest` [default: newest]
    #[arg(value_name = "FOLDER|FILE")]
    paths: Vec<PathBuf>,

    /// The format
    #[arg(long, value_name = "FORMAT")]
    to: Format,

    /// The file; - is the standard output [default: the journal's or folder's name in the working folder]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// The moment that torch-snapshot and collapsed show [default: peak; torch-snapshot: end]
    #[arg(long, value_name = "MOMENT")]
    at: Option<At>,

    /// Write tables of devices and failures for many jobs into a folder, by job and rank (parquet)
    #[arg(long)]
    partition: bool,

    /// Replace files that exist
    #[arg(long)]
    force: bool,

    /// Print what was written as JSON
    #[arg(long)]
    json: bool,
}

impl Export {
    pub fn write(mut self) -> Result<(), Failure> {
        if self.at.is_some() && !matches!(self.to, Format::TorchSnapshot | Format::Collapsed) {
            return Err(Failure::refused(
                "--at: this format has all events; only torch-snapshot and collapsed show a moment",
            ));
        }
        let to_stdout = self.output.as_ref().is_some_and(|path| path.as_os_str() == "-");
        if self.partition && (self.to != Format::Parquet || to_stdout) {
            return Err(Failure::refused(
                "--partition: writes a folder of Parquet files: use --to parquet -o FOLDER",
            ));
        }
        if to_stdout && !matches!(self.to, Format::Csv | Format::Collapsed) && io::stdout().is_terminal() {
            return Err(Failure::refused(
                "-o -: this format is no text and a terminal cannot show it: send it into a pipe or a file",
            ));
        }
        self.paths = named(&self.paths, !self.to.holds_several())?;
        let mut problems = Vec::new();
        let journals = collect(&self.paths, &mut problems);
        let inputs = Inputs::of_journals(journals.iter().map(PathBuf::as_path));
        if self.partition {
            return self.write_fleet(&journals, &inputs, problems);
        }
        if journals.len() > 1 && !self.to.holds_several() {
            let names: Vec<String> = journals.iter().map(|path| format!("  {}", shown(path))).collect();
            return Err(Failure::refused(format!(
                "this format holds one process; name one of these journals:\n{}",
                names.join("\n")
            )));
        }
        let spinner = progress::reading_files(&journals, "journals");
        let mut processes = Vec::new();
        for path in &journals {
            match Process::open(path) {
                Ok(process) => processes.push(process),
                Err(problem) => problems.push(problem.to_string()),
            }
        }
        // Of several journals, those that can be read are exported.
        if processes.is_empty() {
            return Err(Failure::failed(problems.join("\n")));
        }
        processes.sort_by_key(|process| (process.journal.header().wall_start_ns, process.journal.header().pid));
        let request = Request {
            format: self.to,
            at: self.at,
            out: self.output.clone().unwrap_or_else(|| self.default_name()),
            force: self.force,
        };
        export::files(&request).iter().try_for_each(|path| inputs.keep(path))?;
        let done = export::export(&processes, &request).map_err(|error| match error {
            ExportError::Io(problem) => unwritten(problem),
            error => Failure::failed(error),
        })?;
        drop(spinner);
        let told = json!({"files": done.files, "events": done.events, "notes": done.notes});
        let files: Vec<String> = done.files.iter().map(|path| shown(path)).collect();
        let line = format!("wrote {} ({} events)", files.join(", "), done.events);
        self.tell(&done.notes, (!to_stdout).then_some((told, line)), &problems)
    }

    /// Says what was written, and fails if something was left out.
    fn tell(&self, notes: &[String], told: Option<(Value, String)>, problems: &[String]) -> Result<(), Failure> {
        for note in notes {
            say!("{note}");
        }
        if let Some((told, line)) = told {
            super::print(self.json.then_some(told), |_| say!("{line}"))?;
        }
        Failure::unless_none(problems)
    }

    /// Writes the tables for many jobs. `problems` are paths that cannot be read. If a journal is left out, the tables have
    /// the others, and the exit code tells.
    fn write_fleet(&self, journals: &BTreeSet<PathBuf>, inputs: &Inputs, problems: Vec<String>) -> Result<(), Failure> {
        let may = |path: &Path| {
            let kept = inputs.keep(path);
            kept.map_err(|failure| io::Error::new(io::ErrorKind::AlreadyExists, failure.message()))
        };
        let out = self
            .output
            .clone()
            .unwrap_or_else(|| self.default_name().with_extension("fleet"));
        let spinner = progress::reading_files(journals, "journals");
        let done = export::fleet::write(journals, &out, self.force, &may);
        drop(spinner);
        let mut done = done.map_err(unwritten)?;
        done.left_out.extend(problems);
        let (files, processes, failures) = (done.files, done.processes, done.failures);
        let told = json!({
            "folder": out, "files": files, "processes": processes, "failures": failures,
            "left_out": done.left_out, "notes": done.notes,
        });
        let line = format!(
            "wrote {}: {processes} processes, {failures} failures, {files} files",
            shown(&out)
        );
        self.tell(&done.notes, Some((told, line)), &done.left_out)
    }

    /// The name of the first argument, in the working folder.
    fn default_name(&self) -> PathBuf {
        let whole = self.paths.first().and_then(|path| path.canonicalize().ok());
        let stem = whole.as_deref().and_then(|path| match path.is_dir() {
            true => path.file_name(),
            false => path.file_stem(),
        });
        let stem = stem.map_or_else(|| "journal".into(), |stem| stem.to_string_lossy());
        PathBuf::from(format!("{stem}.{}", self.to.ending()))
    }
}

fn unwritten(problem: io::Error) -> Failure {
    match problem.kind() {
        io::ErrorKind::AlreadyExists => Failure::refused(problem),
        _ => Failure::failed(problem),
    }
}
