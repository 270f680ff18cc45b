//! Writes the file of stacks beside a journal (`journal::format::stacks`), for journals that the library did not
//! write.

use std::io::{self, Write};

use journal::format::{STACKS_MAGIC, STACKS_VERSION};

use super::snapshot::Stacks;
use crate::analysis::each_once::EachOnce;

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n")
}

/// Texts of marks. Their numbers in the file are their places, from 1.
pub type Texts = EachOnce<String>;

pub fn write(out: &mut dyn Write, stacks: &Stacks, texts: &Texts) -> io::Result<()> {
    writeln!(out, "{STACKS_MAGIC}\t{STACKS_VERSION}\t0")?;
    for (number, frame) in stacks.all_frames.iter().enumerate() {
        let (file, line, function) = (escaped(&frame.file), frame.line, escaped(&frame.function));
        writeln!(out, "P\t{number}\t{file}\t{line}\t{function}")?;
    }
    for (number, frames) in (1..).zip(&stacks.stacks.list) {
        write!(out, "T\t{number}\tpython")?;
        for frame in frames {
            write!(out, "\t{frame}")?;
        }
        writeln!(out)?;
    }
    for (number, text) in (1..).zip(&texts.list) {
        writeln!(out, "N\t{number}\t{}", escaped(text))?;
    }
    Ok(())
}
