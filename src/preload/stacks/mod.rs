//! The stacks of calls that allocate, and the texts of marks: what the file of stacks beside the journal has.
//!
//! `python` and `native` (with `unwind`) read the frames of the calling thread, `intern` gives numbers to frames, stacks and texts, and
//! `table` finds the numbers again. `recorder` starts what writes the stacks of PyTorch's tensors. Nothing here fails a call:
//! if there is no stack, its number is a reason (`NoStack`).

mod intern;
mod native;
mod python;
mod recorder;
mod table;
mod unwind;

use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

use config::DEEPEST_STACK;
use journal::format::{NoStack, StackKind};
use journal::writer::StackFile;

use intern::Interned;
pub use recorder::record_tensors;

/// What is recorded, and what was recorded so far.
pub struct Stacks {
    /// An index in `config::Stacks::ALL`; 0 stands for `Off`.
    kinds: AtomicU8,
    depth: AtomicUsize,
    interned: Interned,
}

impl Stacks {
    /// Stacks of the journal at `journal`.
    pub fn new(kinds: config::Stacks, depth: usize, journal: &Path) -> Stacks {
        let stacks = Stacks {
            kinds: AtomicU8::new(0),
            depth: AtomicUsize::new(0),
            interned: Interned::new(StackFile::beside(journal)),
        };
        stacks.record(kinds);
        stacks.record_to_depth(depth);
        stacks
    }

    #[inline]
    pub fn are_recorded(&self) -> bool {
        self.kinds.load(Relaxed) != 0
    }

    /// From now on these kinds of stacks are recorded.
    pub fn record(&self, kinds: config::Stacks) {
        let index = config::Stacks::ALL.iter().position(|&one| one == kinds);
        self.kinds.store(index.unwrap_or(0) as u8, Relaxed);
    }

    /// From now on so many frames of a stack are kept at most.
    pub fn record_to_depth(&self, depth: usize) {
        self.depth.store(depth.min(DEEPEST_STACK), Relaxed);
    }

    /// The number of the calling thread's stack, or why there is none, as a record has it.
    pub fn here(&self) -> u32 {
        self.walk().unwrap_or_else(|reason| reason as u32)
    }

    #[inline(never)]
    fn walk(&self) -> Result<u32, NoStack> {
        let (interned, mut frames) = (&self.interned, [0; 2 * DEEPEST_STACK]);
        let (kinds, depth) = (
            config::Stacks::ALL[usize::from(self.kinds.load(Relaxed))],
            self.depth.load(Relaxed),
        );
        let (first, second) = frames.split_at_mut(depth);
        let python = if kinds.python() {
            python::frames(interned, &mut second[..depth])
        } else {
            Err(NoStack::Off)
        };
        let native = match (kinds.native(), python) {
            (false, _) => Err(NoStack::Off),
            // The frames of C code that Python called. The other native frames are the interpreter's.
            (true, Ok(_)) => native::frames(interned, first, python::has),
            (true, Err(_)) => native::frames(interned, first, |_| false),
        };
        match (native, python) {
            (Ok(inner), Ok(outer)) => {
                frames.copy_within(depth..depth + outer, inner);
                interned.stack(StackKind::Both, &frames[..inner + outer])
            }
            (Err(_), Ok(count)) => interned.stack(StackKind::Python, &second[..count]),
            (Ok(count), Err(_)) => interned.stack(StackKind::Native, &first[..count]),
            // Python's reason says more.
            (Err(reason), Err(NoStack::Off)) | (Err(_), Err(reason)) => Err(reason),
        }
    }

    /// The number of a mark's text; 0 if it is not kept.
    pub fn text(&self, text: &[u8]) -> u64 {
        self.interned.text(text)
    }
}
