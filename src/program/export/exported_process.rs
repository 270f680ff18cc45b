//! What an export reads: the records of one journal in the order of time, the stacks beside it, and PyTorch's tensors.
//!
//! If PyTorch's tensors were recorded (`analysis::tensor_records`), they are allocations, and the memory that PyTorch obtained for them
//! is segments. So every format shows the tensors with their stacks, and their bytes count once.

use std::cell::Cell;
use std::io;
use std::path::Path;

use base::text::{events_were, many, shown};
use journal::format::{Frame, Record};
use journal::reader::{Journal, OpenError, TensorFile};
use policy::Strategy;

use crate::analysis::frameless::Frameless;
use crate::analysis::job::is_imported;
use crate::analysis::labels::Labels;
use crate::analysis::tensor_records::{Merged, Tensors};

/// One process, as its journal and the files beside it tell.
pub struct Process {
    pub journal: Journal,
    labels: Labels,
    tensors: Option<Tensors>,
    /// Records that are damaged, as of the last pass over them.
    damaged: Cell<u64>,
    pub notes: Vec<String>,
}

impl Process {
    /// Opens a journal, with PyTorch's tensors beside it, if there are any. A file beside the journal that cannot be read is
    /// a note.
    pub fn open(path: &Path) -> Result<Process, OpenError> {
        let journal = Journal::open(path)?;
        let (labels, mut notes) = Labels::read(path);
        // Without PyTorch's tensors the journal still has what PyTorch obtained for them.
        let tensors = Tensors::beside(&journal).unwrap_or_else(|problem| {
            let told = format!("{}: cannot be read: {problem}", shown(&TensorFile::beside(path)));
            // The labels are of the same file.
            if !notes.contains(&told) {
                notes.push(told);
            }
            None
        });
        notes
            .iter_mut()
            .for_each(|problem| *problem += "; the export does without");
        notes.extend(tensors.as_ref().and_then(Tensors::note));
        if journal.lost() > 0 {
            notes.push(format!(
                "{}: {} lost; what they were is not in the export",
                shown(path),
                events_were(journal.lost())
            ));
        }
        Ok(Process {
            journal,
            labels,
            tensors,
            damaged: Cell::new(0),
            notes,
        })
    }

    /// Whether segments may be given back in parts, and blocks may cross their ends: those of `auto_growth`, and
    /// PyTorch's expandable ones. An imported journal does not say which it has.
    pub fn has_expandable_segments(&self) -> bool {
        let header = self.journal.header();
        header.strategy == Strategy::AutoGrowth.name()
            || is_imported(header)
            || self.tensors.as_ref().is_some_and(Tensors::are_expandable)
    }

    /// A name for the process that a person recognises.
    pub fn title(&self) -> String {
        let header = self.journal.header();
        let command = match header.job.as_str() {
            "" => header.command_line.join(" "),
            job => job.to_owned(),
        };
        format!("{command} ({})", header.pid)
    }

    /// Nanoseconds since 1970 of a time of a record.
    pub fn unix_ns(&self, time_ns: u64) -> u64 {
        self.journal.header().wall_start_ns.saturating_add(time_ns)
    }

    /// The frames of a record's stack, innermost first; empty if there are none.
    pub fn frames(&self, stack: u32) -> &[Frame] {
        self.labels.frames(stack).unwrap_or_default()
    }

    /// Why a record's stack has no frames; `None` if it has some.
    pub fn frameless(&self, stack: u32) -> Option<Frameless> {
        self.labels.frames(stack).err()
    }

    /// What bytes without frames lack, and what can be done.
    pub fn frameless_in_words(&self, why: Frameless) -> String {
        let (path, header) = (self.journal.path(), self.journal.header());
        let has_stacks = self.labels.stacks().is_some_and(|stacks| !stacks.is_empty());
        let words = why.in_words(path, header, has_stacks);
        match why {
            Frameless::NotInFile => format!("have a stack that is not in the file: {words}"),
            _ => format!("have no stack: {words}"),
        }
    }

    pub fn text(&self, number: u64) -> &str {
        let text = self.labels.stacks().and_then(|stacks| stacks.text(number));
        text.unwrap_or("(name not kept)")
    }

    /// What the reader of the export should know of the records, once they were read.
    pub fn damage(&self) -> Option<String> {
        let (path, damaged) = (shown(self.journal.path()), self.damaged.get());
        (damaged > 0).then(|| format!("{path}: left out {}", many(damaged, "damaged record")))
    }

    /// The records in the order of their times. Those of tensors come in the order of PyTorch's record.
    pub fn entries(&self) -> io::Result<Merged<'_>> {
        Merged::of(&self.journal, self.tensors.as_ref())
    }

    pub fn each(&self, mut each: impl FnMut(u64, &Record) -> io::Result<()>) -> io::Result<u64> {
        let mut entries = self.entries()?;
        let mut count = 0;
        for entry in entries.by_ref() {
            each(count, &entry?)?;
            count += 1;
        }
        self.damaged.set(entries.records.damaged());
        Ok(count)
    }
}
