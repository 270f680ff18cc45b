//! What holders are called: the line of code of a stack, the name of a function, a size.

use base::units::size;
use journal::format::{Frame, NoStack, Stack};
use journal::reader::Stacks;

use super::holdings::{Group, Size};
use super::live_set::Key;
use super::names::api_name;
use super::stacks::line_of;

/// The names for one journal.
#[derive(Default)]
pub struct Labels {
    pub stacks: Option<Stacks>,
}

impl Labels {
    /// The frames of a stack, innermost first. `Err` says why there are none.
    pub fn frames(&self, number: u32) -> Result<&[Frame], &'static str> {
        self.known(number).map(|stack| &stack.frames[..])
    }

    fn known(&self, number: u32) -> Result<&Stack, &'static str> {
        let number = NoStack::stack(number).map_err(NoStack::words)?;
        match self.stacks.as_ref().and_then(|stacks| stacks.get(number)) {
            Some(stack) if !stack.frames.is_empty() => Ok(stack),
            _ => Err("it is not in the file of stacks"),
        }
    }

    /// The line of the job's own code that a stack comes from.
    pub fn stack(&self, number: u32) -> String {
        match self.known(number) {
            Ok(stack) => line_of(stack).map_or_else(|| "(empty stack)".to_owned(), place),
            Err(why) if NoStack::stack(number).is_err() => format!("(no stack: {why})"),
            Err(why) => format!("(stack {number}: {why})"),
        }
    }

    pub fn key(&self, key: Key) -> String {
        match key {
            Key::Stack(number) => self.stack(number),
            Key::Size(bytes) => format!("requests of {}", size(bytes)),
            Key::Api(api) => api_name(api),
            Key::Thread(tid) => format!("thread {tid}"),
            Key::Stream(stream) => stream_name(stream),
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
        let text = self.stacks.as_ref().and_then(|stacks| stacks.text(text));
        text.unwrap_or("(mark without text)").to_owned()
    }
}

pub fn stream_name(stream: u8) -> String {
    match stream {
        0 => "no stream".into(),
        1 => "default stream".into(),
        255 => "stream 255 or later".into(),
        number => format!("stream {number}"),
    }
}

fn place(frame: &Frame) -> String {
    match (frame.line, &*frame.file) {
        (0, _) => frame.function.to_string(),
        (line, file) => format!("{file}:{line} {}", frame.function),
    }
}
