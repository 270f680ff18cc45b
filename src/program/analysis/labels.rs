//! What holders are called: the line of code of a stack, the name of a function, a size.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use base::text::shown;
use base::units::size;
use journal::format::{Frame, NoStack};
use journal::reader::{Stacks, TensorFile};

use super::frameless::Frameless;
use super::holdings::{Group, Size};
use super::live_set::Key;
use super::names::api_name;
use super::origins::Origins;
use super::places::{lines_apart, place};
use super::symbols;
use super::tensor_records;
use crate::say::say;

/// The names for one journal. A stack has the same name in every view.
#[derive(Default)]
pub struct Labels {
    pub origins: Origins,
    /// How many lines tell a stack from all others, if more than one.
    lines: HashMap<u32, usize>,
}

impl Labels {
    pub fn new(origins: Origins) -> Labels {
        let mut labels = Labels {
            origins,
            lines: HashMap::new(),
        };
        Labels::tell_apart(&mut [&mut labels]);
        labels
    }

    /// The names for a journal: from the stacks and PyTorch's own record beside it. A file that cannot be read is named on
    /// stderr.
    pub fn load(journal: &Path) -> Labels {
        let (labels, problems) = Labels::read(journal);
        problems.iter().for_each(|problem| say!("{problem}"));
        labels
    }

    /// The same, and what is wrong with a file that cannot be read.
    pub fn read(journal: &Path) -> (Labels, Vec<String>) {
        fn or_none<T: Default>(path: &Path, read: io::Result<T>, problems: &mut Vec<String>) -> T {
            read.unwrap_or_else(|error| {
                problems.push(format!("{}: cannot be read: {error}", shown(path)));
                T::default()
            })
        }
        let mut problems = Vec::new();
        let stacks = or_none(&Stacks::path(journal), symbols::named_stacks(journal), &mut problems);
        let beside = TensorFile::beside(journal);
        let torch = or_none(&beside, tensor_records::stacks(journal), &mut problems);
        (Labels::new(Origins::new(stacks, torch)), problems)
    }

    /// Names stacks of several journals alike, so that they can be compared by name.
    pub fn tell_apart(several: &mut [&mut Labels]) {
        let stacks = several.iter().flat_map(|labels| labels.origins.all());
        let mut lines = lines_apart(stacks.map(|(_, frames)| frames)).into_iter();
        for labels in several {
            let numbers = labels.origins.all().map(|(number, _)| number);
            labels.lines = numbers.zip(&mut lines).filter(|(_, lines)| *lines > 1).collect();
        }
    }

    /// The stacks of the journal, and the texts of its marks.
    pub fn stacks(&self) -> Option<&Stacks> {
        self.origins.stacks()
    }

    /// The frames of a stack, innermost first. `Err` says why the stack has no frames.
    pub fn frames(&self, number: u32) -> Result<&[Frame], Frameless> {
        let frames = NoStack::stack(number)
            .ok()
            .and_then(|number| self.origins.frames(number));
        match Frameless::of(number, frames) {
            None => Ok(frames.unwrap_or_default()),
            Some(why) => Err(why),
        }
    }

    /// The line of the job's own code that a stack comes from, and the callers that tell it from others.
    pub fn stack(&self, number: u32) -> String {
        self.stack_with(number, 1)
    }

    /// The same with `lines` lines, or more if fewer do not tell it from others.
    pub fn stack_with(&self, number: u32, lines: usize) -> String {
        match self.frames(number) {
            Ok(frames) => place(frames, self.lines.get(&number).copied().unwrap_or(1).max(lines)),
            Err(why) => why.name(number),
        }
    }

    pub fn key(&self, key: Key) -> String {
        match key {
            Key::Stack(number) => self.stack(number),
            Key::Size(bytes) => format!("requests of {}", size(bytes)),
            Key::Api(api) => api_name(api),
            Key::Thread(tid) => format!("thread {tid}"),
            Key::Stream(stream) => stream_name(stream),
            Key::Graphs => "memory of launched graphs".to_owned(),
        }
    }

    /// A group by its stack, or by its size if it has none.
    pub fn group(&self, group: &Group) -> String {
        match (NoStack::stack(group.stack), group.size) {
            (Ok(number), _) => self.stack(number),
            (Err(_), Size::Exactly(bytes)) => format!("{} of {}", api_name(group.api), size(bytes)),
            (Err(_), Size::From(bytes)) => format!("{} from {}", api_name(group.api), size(bytes)),
            (Err(_), Size::Any) => "all others".to_owned(),
        }
    }

    pub fn mark(&self, text: u64) -> String {
        let text = self.stacks().and_then(|stacks| stacks.text(text));
        text.unwrap_or("(mark without text)").to_owned()
    }
}

fn stream_name(stream: u8) -> String {
    match stream {
        0 => "no stream".into(),
        1 => "default stream".into(),
        255 => "stream 255 or later".into(),
        number => format!("stream {number}"),
    }
}
