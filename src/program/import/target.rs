//! The journal that an import writes, with the file of stacks beside it.

use std::io;
use std::path::{Path, PathBuf};

use base::text::shown;
use journal::format::RawRecord;
use journal::reader::Stacks as StackFile;
use journal::writer::{About, PastJournal};

use super::plain_file::Wrong;
use super::snapshot;
use super::stack_file::{self, Texts};
use crate::output::{self, Output};

/// A journal under another name until it is complete.
pub struct Target {
    journal: PastJournal,
    part: tempfile::TempPath,
    path: PathBuf,
    force: bool,
}

fn cannot(path: &Path, problem: io::Error) -> Wrong {
    format!("{}: cannot be written: {problem}", shown(path))
}

impl Target {
    pub fn create(path: &Path, force: bool, about: &About) -> Result<Target, Wrong> {
        // Only the name is used: `PastJournal` makes the file itself.
        let part = output::part(path)
            .map_err(|problem| problem.to_string())?
            .into_temp_path();
        std::fs::remove_file(&part).map_err(|problem| cannot(path, problem))?;
        Ok(Target {
            journal: PastJournal::create(&part, about, &[]).map_err(|problem| cannot(path, problem))?,
            part,
            path: path.to_owned(),
            force,
        })
    }

    pub fn push(&mut self, time_ns: u64, tid: u32, record: RawRecord) -> Result<(), Wrong> {
        let pushed = self.journal.push(time_ns, tid, record);
        pushed.map_err(|problem| cannot(&self.path, problem))
    }

    pub fn finish(self, end_ns: u64, stacks: Option<(&snapshot::Stacks, &Texts)>) -> Result<u64, Wrong> {
        let events = self.journal.len();
        let fail = |problem: io::Error| cannot(&self.path, problem);
        self.journal.finish(Some((0, end_ns))).map_err(fail)?;
        let beside = StackFile::path(&self.path);
        if let Some((known, texts)) = stacks {
            let mut out = Output::create(&beside, self.force).map_err(fail)?;
            stack_file::write(&mut out, known, texts).map_err(fail)?;
            out.finish().map_err(fail)?;
        }
        let kept = if self.force {
            self.part.persist(&self.path)
        } else {
            self.part.persist_noclobber(&self.path)
        };
        kept.map_err(|error| fail(error.error))?;
        Ok(events)
    }
}
