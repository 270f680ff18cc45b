//! What an export reads: the records of one journal in the order of time, the stacks beside it, and PyTorch's tensors.
//!
//! If PyTorch's tensors were recorded (`analysis::tensor_records`), they are allocations, and the memory that PyTorch obtained for them
//! is segments. So every format shows the tensors with their stacks, and their bytes count once.

use std::cell::Cell;
use std::io;
use std::path::Path;

use base::text::{events_were, many, shown};
use journal::format::{Frame, NoStack, Record};
use journal::reader::{Journal, OpenError, Stacks, TensorFile};
use policy::Strategy;

use crate::analysis::frameless::Frameless;
use crate::analysis::job::IMPORTED;
use crate::analysis::origins::Origins;
use crate::analysis::symbols::named_stacks as load_stacks;
use crate::analysis::tensor_records::{self, Merged, Tensors};

/// One process, as its journal and the files beside it tell.
pub struct Process {
    pub journal: Journal,
    origins: Origins,
    tensors: Option<Tensors>,
    /// Records that are damaged, as of the last pass over them.
    damaged: Cell<u64>,
    pub notes: Vec<String>,
}

/// Says that a file beside a journal is missing in the export.
fn unread(path: &Path, problem: io::Error) -> String {
    format!("{}: cannot be read: {problem}; the export does without", shown(path))
}

impl Process {
    /// Opens a journal, with PyTorch's tensors beside it, if there are any. A file beside the journal that cannot be read is
    /// a note.
    pub fn open(path: &Path) -> Result<Process, OpenError> {
        let journal = Journal::open(path)?;
        let mut notes = Vec::new();
        let stacks = load_stacks(path).unwrap_or_else(|problem| {
            notes.push(unread(&Stacks::path(path), problem));
            None
        });
        // Without PyTorch's tensors the journal still has what PyTorch obtained for them.
        let tensors = Tensors::beside(&journal).unwrap_or_else(|problem| {
            notes.push(unread(&TensorFile::beside(path), problem));
            None
        });
        let mut of_torch = Vec::new();
        if let Some(tensors) = &tensors {
            of_torch = tensor_records::stacks(path).unwrap_or_else(|problem| {
                notes.push(unread(&TensorFile::beside(path), problem));
                Vec::new()
            });
            notes.extend(tensors.note());
        }
        if journal.lost() > 0 {
            notes.push(format!(
                "{}: {} lost; what they were is not in the export",
                shown(path),
                events_were(journal.lost())
            ));
        }
        Ok(Process {
            journal,
            origins: Origins::new(stacks, of_torch),
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
            || header.host == IMPORTED
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
        self.known_frames(stack).unwrap_or_default()
    }

    /// The same; `None` if the stack is not known.
    fn known_frames(&self, stack: u32) -> Option<&[Frame]> {
        self.origins.frames(NoStack::stack(stack).ok()?)
    }

    /// Why a record's stack has no frames; `None` if it has some.
    pub fn frameless(&self, stack: u32) -> Option<Frameless> {
        Frameless::of(stack, self.known_frames(stack))
    }

    /// What bytes without frames lack, and what can be done.
    pub fn frameless_in_words(&self, why: Frameless) -> String {
        let (path, header) = (self.journal.path(), self.journal.header());
        let has_stacks = self.origins.stacks().is_some_and(|stacks| !stacks.is_empty());
        match (why, why.remedy(path, header, has_stacks)) {
            (Frameless::NoStack(NoStack::Off), Some(_)) => {
                let or_torch = if self.tensors.is_some() {
                    ""
                } else {
                    " or --torch record"
                };
                format!("have no stack: run the job with --stacks{or_torch}")
            }
            (Frameless::NotInFile, Some(remedy)) => format!("have a stack that is not in the file: {remedy}"),
            (why, Some(remedy)) => format!("have no stack: {}; {remedy}", why.words()),
            (why, None) => format!("have no stack: {}", why.words()),
        }
    }

    pub fn text(&self, number: u64) -> &str {
        let text = self.origins.stacks().and_then(|stacks| stacks.text(number));
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
        self.damaged.set(entries.damaged());
        Ok(count)
    }
}
