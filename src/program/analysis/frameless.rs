//! Why an allocation has no frames to show, and what to do about it.

use std::path::Path;

use base::identity;
use base::text::shown;
use journal::format::{Frame, NoStack};
use journal::reader::{Header, Stacks};

use super::job::is_imported;
use super::origins::FIRST_OF_TORCH;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Frameless {
    NoStack(NoStack),
    /// PyTorch's record has the stack, without frames. A tensor that is older than the record has such a stack too.
    NoPython,
    /// The record has a stack that is not in the file beside the journal.
    NotInFile,
}

impl Frameless {
    /// Why the stack with this number has no frames; `None` if it has some. `frames` are those of a stack that is known.
    pub fn of(number: u32, frames: Option<&[Frame]>) -> Option<Frameless> {
        match (NoStack::stack(number), frames) {
            (Err(reason), _) => Some(Frameless::NoStack(reason)),
            (Ok(number), None | Some([])) if number >= FIRST_OF_TORCH => Some(Frameless::NoPython),
            (Ok(_), None) => Some(Frameless::NotInFile),
            (Ok(_), Some([])) => Some(Frameless::NoStack(NoStack::NoFrame)),
            (Ok(_), Some(_)) => None,
        }
    }

    /// What a holder without frames is called.
    pub fn name(self, number: u32) -> String {
        match self {
            Frameless::NotInFile => format!("(stack {number}: it is not in the file of stacks)"),
            _ => format!("(no stack: {})", self.words()),
        }
    }

    /// The reason, after a number of bytes without a stack.
    pub fn words(self) -> &'static str {
        match self {
            Frameless::NoStack(reason) => reason.words(),
            Frameless::NoPython => "no Python code, as in autograd, or older than the record",
            Frameless::NotInFile => "their stacks are not in the file of stacks",
        }
    }

    /// What can be done. `has_stacks`: the file has other stacks, so the job ran with `--stacks`.
    pub fn remedy(self, journal: &Path, header: &Header, has_stacks: bool) -> Option<String> {
        match self {
            Frameless::NoStack(NoStack::Off) if has_stacks => None,
            Frameless::NoStack(reason) => reason.remedy().map(str::to_owned),
            Frameless::NoPython => None,
            Frameless::NotInFile => Some(file_lost(journal, header)),
        }
    }

    /// The reason, and what can be done (`remedy`).
    pub fn in_words(self, journal: &Path, header: &Header, has_stacks: bool) -> String {
        match (self, self.remedy(journal, header, has_stacks)) {
            (Frameless::NotInFile, Some(remedy)) => remedy,
            (why, Some(remedy)) => format!("{}; {remedy}", why.words()),
            (why, None) => why.words().to_owned(),
        }
    }
}

/// Says that the file of stacks is missing or not whole, and where a whole one is.
fn file_lost(journal: &Path, header: &Header) -> String {
    let path = Stacks::path(journal);
    let host = identity::for_file_name(&header.host);
    let original = format!("{host}-{}-{}", header.pid, header.start_ticks);
    let is_original = (path.file_stem()).is_some_and(|stem| stem.to_string_lossy().contains(&original));
    let from = match (is_imported(header), is_original) {
        (true, _) => "import again".to_owned(),
        (false, true) => "copy it from the folder in which the job wrote the journal".to_owned(),
        (false, false) => format!("copy {original}.stacks there from the folder in which the job wrote the journal"),
    };
    if path.exists() {
        format!("{} was cut, or is of another journal: {from}", shown(&path))
    } else {
        format!("{} is missing: {from}", shown(&path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_of_pytorch_without_frames_is_none_of_python() {
        assert_eq!(Frameless::of(FIRST_OF_TORCH + 19, Some(&[])), Some(Frameless::NoPython));
        assert_eq!(Frameless::of(19, None), Some(Frameless::NotInFile));
        assert_eq!(Frameless::of(0, None), Some(Frameless::NoStack(NoStack::Off)));
        let frame = Frame::new("job.py", 1, "work");
        assert_eq!(Frameless::of(19, Some(&[frame])), None);
    }
}
