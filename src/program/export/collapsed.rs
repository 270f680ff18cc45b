//! Collapsed stacks, as flamegraph.pl and inferno read them: frames from the outermost to the innermost between
//! semicolons, a space, and the live bytes at the moment.

use std::collections::BTreeMap;
use std::io::{self, Write};

use base::text::printable;
use journal::format::Frame;

use super::holders::{Key, Sums, memory_name, shown_frames};
use super::source::Process;

/// A text without the characters that separate frames and lines, and without control characters: such files are read at
/// terminals.
fn part(text: &str) -> String {
    printable(&text.replace([';', '\n', '\r'], ":"), usize::MAX)
}

/// A frame as a part of a line.
fn text(frame: &Frame) -> String {
    let whole = match (&*frame.file, frame.line) {
        ("", _) => frame.function.to_string(),
        (file, 0) => format!("{} ({file})", frame.function),
        (file, line) => format!("{} ({file}:{line})", frame.function),
    };
    part(&whole)
}

/// Adds the sums of a process to `lines`, by stack.
pub fn add(lines: &mut BTreeMap<String, u64>, process: &Process, sums: &BTreeMap<Key, Sums>, several: bool) {
    for (key, sum) in sums.iter().filter(|(_, sum)| sum.held_bytes > 0) {
        let mut parts = vec![memory_name(key.device)];
        if several {
            parts.insert(0, part(&process.title()));
        }
        parts.extend(shown_frames(process, key).iter().rev().map(text));
        let bytes = lines.entry(parts.join(";")).or_default();
        *bytes = bytes.saturating_add(sum.held_bytes);
    }
}

pub fn write(out: &mut dyn Write, lines: &BTreeMap<String, u64>) -> io::Result<()> {
    for (stack, bytes) in lines {
        writeln!(out, "{stack} {bytes}")?;
    }
    Ok(())
}
