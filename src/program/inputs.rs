//! The files that a command reads. A command that writes a file does not write onto one of them, also not through a link
//! or by another name.

use std::path::{Path, PathBuf};

use base::text::shown;
use clap::Args;
use journal::reader::{Stacks, TensorFile};

use crate::analysis::budget;
use crate::analysis::running::{FileId, file_id};
use crate::failure::Failure;
use crate::number::size;

/// The option that bounds what a command keeps of journals.
#[derive(Args)]
pub struct MaxMemory {
    /// Memory for a journal's live allocations; one that needs more is left out
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    max_memory: u64,
}

impl MaxMemory {
    pub fn set(&self) {
        budget::set(self.max_memory);
    }
}

/// Files that must stay, by device and inode.
pub struct Inputs(Vec<(FileId, PathBuf)>);

impl Inputs {
    pub fn of<'a>(files: impl IntoIterator<Item = &'a Path>) -> Inputs {
        let known = files
            .into_iter()
            .filter_map(|path| Some((file_id(path)?, path.to_owned())));
        Inputs(known.collect())
    }

    /// Journals, and the files beside each.
    pub fn of_journals<'a>(journals: impl IntoIterator<Item = &'a Path>) -> Inputs {
        let beside = |path: &Path| [path.to_owned(), Stacks::path(path), TensorFile::beside(path)];
        let files: Vec<PathBuf> = journals.into_iter().flat_map(beside).collect();
        Inputs::of(files.iter().map(PathBuf::as_path))
    }

    /// Refuses an output that is one of the files.
    pub fn keep(&self, output: &Path) -> Result<(), Failure> {
        let Some(id) = file_id(output) else {
            return Ok(());
        };
        match self.0.iter().find(|(known, _)| *known == id) {
            None => Ok(()),
            Some((_, input)) if input == output => Err(Failure::refused(format!(
                "{}: this command reads the file, so it does not write there: give another name with -o",
                shown(output)
            ))),
            Some((_, input)) => Err(Failure::refused(format!(
                "{}: is the same file as {}, which this command reads: give another name with -o",
                shown(output),
                shown(input)
            ))),
        }
    }
}
