//! The stacks of all processes of a report, each frame and each text once.

use std::collections::HashMap;
use std::hash::Hash;

use journal::format::Frame;

/// No one reads further out.
const DEEPEST: usize = 64;

/// A frame: the place of its file's name, the line, and the place of its function's name.
pub type Place = (usize, u64, usize);

#[derive(Default)]
pub struct Interned {
    texts: Table<String>,
    frames: Table<Place>,
    stacks: Table<Vec<usize>>,
}

struct Table<T> {
    places: HashMap<T, usize>,
    list: Vec<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table {
            places: HashMap::new(),
            list: Vec::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Table<T> {
    fn place(&mut self, entry: T) -> usize {
        *self.places.entry(entry).or_insert_with_key(|entry| {
            self.list.push(entry.clone());
            self.list.len() - 1
        })
    }
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

    /// Texts, frames and stacks.
    pub fn lists(self) -> (Vec<String>, Vec<Place>, Vec<Vec<usize>>) {
        (self.texts.list, self.frames.list, self.stacks.list)
    }
}
