//! Writes the file of stacks beside a journal (`journal::format::stacks`), for journals that the library did not
//! write.

use std::collections::HashMap;
use std::io::{self, Write};

use journal::format::{STACKS_MAGIC, STACKS_VERSION};

use super::snapshot::Stacks;

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n")
}

/// Texts of marks, numbered from 1.
#[derive(Default)]
pub struct Texts {
    numbers: HashMap<String, u64>,
    all: Vec<String>,
}

impl Texts {
    pub fn number(&mut self, text: &str) -> u64 {
        let next = self.all.len() as u64 + 1;
        let number = *self.numbers.entry(text.to_owned()).or_insert(next);
        if number == next {
            self.all.push(text.to_owned());
        }
        number
    }
}

pub fn write(out: &mut dyn Write, stacks: &Stacks, texts: &Texts) -> io::Result<()> {
    writeln!(out, "{STACKS_MAGIC}\t{STACKS_VERSION}\t0")?;
    for (number, frame) in stacks.all_frames.iter().enumerate() {
        let (file, line, function) = (escaped(&frame.file), frame.line, escaped(&frame.function));
        writeln!(out, "P\t{number}\t{file}\t{line}\t{function}")?;
    }
    for (number, frames) in (1..).zip(&stacks.all_stacks) {
        write!(out, "T\t{number}\tpython")?;
        for frame in frames {
            write!(out, "\t{frame}")?;
        }
        writeln!(out)?;
    }
    for (number, text) in (1..).zip(&texts.all) {
        writeln!(out, "N\t{number}\t{}", escaped(text))?;
    }
    Ok(())
}
