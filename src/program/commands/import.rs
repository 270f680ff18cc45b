//! `vramshim import`: writes a journal from another program's file, so that every view shows it.

use std::path::{Path, PathBuf};

use base::text::shown;
use clap::Args;
use journal::reader::Stacks;
use serde_json::json;

use crate::failure::Failure;
use crate::import::into_journal::{import_log, import_snapshot};
use crate::import::kind::{Kind, kind_of};
use crate::import::plain_file::Unreadable;
use crate::import::rmm_log::COLUMNS;
use crate::inputs::Inputs;
use crate::render::progress;
use crate::say::say;

const EXAMPLES: &str = "\
Examples:
  vramshim import snapshot.pickle                    # writes snapshot.vraj and snapshot.stacks
  vramshim inspect snapshot.vraj
  vramshim import rmm.csv.gz -o job.vraj

A snapshot is what torch.cuda.memory._dump_snapshot wrote; with its history if the job called
torch.cuda.memory._record_memory_history(). A log is what RMM's logging adaptor wrote
(Thread,Time,Action,Pointer,Size,Stream), plain or gzipped.

Exit codes: 0 done, 1 if the file cannot be read or written, 2 wrong usage, or a file of another kind.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Import {
    /// A memory snapshot of PyTorch (.pickle), or RMM's CSV log (.csv, .csv.gz)
    file: PathBuf,

    /// The journal [default: the file's name with the ending .vraj, in the working folder]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace files that exist
    #[arg(long)]
    force: bool,

    /// Print what was written as JSON
    #[arg(long)]
    json: bool,
}

impl Import {
    pub fn write(self) -> Result<(), Failure> {
        let file = &self.file;
        let name = shown(file);
        let kind = kind_of(file).map_err(|problem| match problem {
            Unreadable::NoPlainFile(_) => Failure::refused(format!("{name}: {problem}")),
            _ => Failure::failed(format!("{name}: {problem}")),
        })?;
        let path = self.output.clone().unwrap_or_else(|| default_name(file));
        if path.as_os_str() == "-" {
            return Err(Failure::refused(
                "-o -: a journal is written in two places at once, so it needs a file",
            ));
        }
        // The file of stacks beside the journal is written, too.
        for path in [path.clone(), Stacks::path(&path)] {
            Inputs::of([file.as_path()]).keep(&path)?;
            if !self.force && path.symlink_metadata().is_ok() {
                let path = shown(&path);
                return Err(Failure::refused(format!(
                    "{path}: exists already: give another name with -o, or --force"
                )));
            }
        }
        let _spinner = progress::reading_files([file], &name);
        let imported = match kind {
            Kind::Snapshot => import_snapshot(file, &path, self.force),
            Kind::Log => import_log(file, &path, self.force),
            Kind::Journal => return Err(Failure::refused(format!("{name}: is a journal already"))),
            Kind::Empty => return Err(Failure::refused(format!("{name}: is empty"))),
            Kind::Other => {
                return Err(Failure::refused(format!(
                    "{name}: is of another kind: give a memory snapshot of PyTorch or RMM's log, whose first line is {COLUMNS}"
                )));
            }
        };
        let imported = imported.map_err(Failure::failed)?;
        for note in &imported.notes {
            say!("{note}");
        }
        let (events, stacks, notes) = (imported.events, imported.stacks, imported.notes);
        let told = || json!({"file": path.to_string_lossy(), "events": events, "stacks": stacks, "notes": notes});
        super::print(self.json.then(told), |_| {
            say!("wrote {} ({events} events, {stacks} stacks)", shown(&path));
        })
    }
}

/// The file's name without its endings.
fn default_name(source: &Path) -> PathBuf {
    let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let endings = [".gz", ".csv", ".pickle", ".pkl"];
    let stem = endings
        .iter()
        .fold(name.as_str(), |name, ending| name.strip_suffix(ending).unwrap_or(name));
    PathBuf::from(format!("{stem}.vraj"))
}
