//! The file of stacks, which lies beside a journal and has its name with another ending.
//!
//! The library writes the file, `reader/stacks.rs` reads it. It is text in the style of the file of tensors: one line
//! for each entry, with fields between tabs, and each line is appended by one system call. Python files and functions,
//! modules, frames, stacks and texts are *interned*: each has a line when it is first seen, and a number from then on.
//! docs/journal-format.md describes the fields.

use base::named;

use super::Frame;

/// The ending of the file's name.
pub const STACKS_EXTENSION: &str = "stacks";
/// The first field of the first line.
pub const STACKS_MAGIC: &str = "vramshim-stacks";
pub const STACKS_VERSION: u64 = 1;

/// Stack numbers of a record from this one on are reasons why there is no stack.
const FIRST_REASON: u32 = 0xffff_ff00;

named! {
    /// Why a record has no stack. The number stands at the place of the stack's number. The name is for JSON, the words
    /// follow "no stack: ".
    #[repr(u32)]
    pub enum NoStack {
        Off = 0 => "off", "not recorded";
        NoLock = FIRST_REASON => "no_lock", "the thread did not hold Python's lock";
        /// The thread runs no Python code, or its native stack could not be walked.
        NoFrame = FIRST_REASON + 1 => "no_frame", "the thread ran no code whose frames can be read";
        NoPython = FIRST_REASON + 2 => "no_python", "the process has no Python interpreter";
        /// The interpreter is of a version or a build whose frames the library does not read, or not the main one.
        Unsupported = FIRST_REASON + 3 => "unsupported", "the library does not read the frames of this interpreter";
        Full = FIRST_REASON + 4 => "full", "the table of stacks was full";
        Failed = FIRST_REASON + 5 => "failed", "the stack could not be recorded";
    }
}

impl NoStack {
    /// What a record with the stack number `number` says. A reason that this version does not know is `Failed`.
    pub fn stack(number: u32) -> Result<u32, NoStack> {
        match NoStack::ALL.iter().find(|&&reason| reason as u32 == number) {
            Some(&reason) => Err(reason),
            None if number >= FIRST_REASON => Err(NoStack::Failed),
            None => Ok(number),
        }
    }

    /// How the job can be run to have stacks; `None` if nothing helps.
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            NoStack::Off => Some("run the job with --stacks both"),
            // A foreign function of ctypes and an operator of PyTorch release the lock before they run.
            NoStack::NoLock => Some("run the job with --stacks native or both, which need no lock"),
            _ => None,
        }
    }
}

named! {
    /// What the frames of a stack are, as the file names it.
    pub enum StackKind {
        Python => "python",
        Native => "native",
        /// Native frames down to the interpreter, then Python frames.
        Both => "both",
    }
}

/// The frames that led to a call, innermost first. The file of a native frame is the path of its module, and its
/// function is the symbol or `module+0xoffset`, with line 0, unless its symbol was found in the module's debug
/// information.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    pub kind: StackKind,
    pub frames: Vec<Frame>,
    /// How many of the frames, from the innermost on, are native.
    pub native: usize,
}
