//! The stacks of all processes of a report, each frame and each text once.

use std::sync::Arc;

use journal::format::Frame;
use serde::Serialize;

use crate::analysis::each_once::EachOnce;
use crate::analysis::places::{lines_apart, named_frames};

/// No one reads further out.
const DEEPEST: usize = 160;

/// A frame: the place of its file's name, the line, and the place of its function's name.
pub type Place = (usize, u64, usize);

#[derive(Debug, Serialize)]
pub struct StackLists {
    /// Texts that frames consist of.
    pub texts: Vec<String>,
    pub frames: Vec<Place>,
    /// The frames of each stack, innermost first.
    pub stacks: Vec<Vec<usize>>,
    /// For each stack the places in it of the frames that name it: the job's own line, and callers that tell it from
    /// other stacks.
    pub names: Vec<Vec<usize>>,
}

#[derive(Default)]
pub struct Interned {
    texts: EachOnce<String>,
    frames: EachOnce<Place>,
    stacks: EachOnce<Vec<usize>>,
}

impl Interned {
    /// The place of a stack in the report's list.
    pub fn stack(&mut self, frames: &[Frame]) -> usize {
        let frames = frames.iter().take(DEEPEST).map(|frame| {
            let (file, function) = (
                self.texts.place(frame.file.to_string()),
                self.texts.place(frame.function.to_string()),
            );
            self.frames.place((file, frame.line, function))
        });
        let frames = frames.collect();
        self.stacks.place(frames)
    }

    pub fn lists(self) -> StackLists {
        let texts: Vec<Arc<str>> = self.texts.list.iter().map(|text| text.as_str().into()).collect();
        let frames: Vec<Frame> = (self.frames.list.iter())
            .map(|&(file, line, function)| Frame::new(texts[file].clone(), line, texts[function].clone()))
            .collect();
        let stacks: Vec<Vec<Frame>> = (self.stacks.list.iter())
            .map(|stack| stack.iter().map(|&place| frames[place].clone()).collect())
            .collect();
        let lines = lines_apart(stacks.iter().map(Vec::as_slice));
        let named = stacks
            .iter()
            .zip(lines)
            .map(|(stack, lines)| named_frames(stack, lines));
        StackLists {
            names: named.collect(),
            texts: self.texts.list,
            frames: self.frames.list,
            stacks: self.stacks.list,
        }
    }
}
