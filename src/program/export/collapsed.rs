//! Collapsed stacks, as flamegraph.pl and inferno read them: frames from the outermost to the innermost between
//! semicolons, a space, and the live bytes at the moment. The memory that this takes grows with the live allocations and
//! the stacks, not with the journal.

use std::collections::BTreeMap;
use std::io::{self, Write};

use base::text::printable;
use journal::format::Frame;

use super::exported_process::Process;
use super::memory_name;
use super::moment::Cut;
use crate::analysis::ledger::Ledger;
use crate::analysis::names::api_name;

/// What allocations of one line have in common. Memory of the host has the device `HOST_DEVICE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub device: i16,
    pub stack: u32,
    api: u16,
}

/// The live bytes of each key at the moment: allocated bytes, as the ledger has them. Also returns how many allocations
/// there were until then.
pub fn held(process: &Process, cut: Cut) -> io::Result<(BTreeMap<Key, u64>, u64)> {
    let mut ledger = Ledger::default();
    process.each(|number, record| {
        if number < cut {
            ledger.apply(record);
        }
        Ok(())
    })?;
    let mut held: BTreeMap<Key, u64> = BTreeMap::new();
    for live in ledger
        .live_unsorted()
        .filter(|live| live.counts() && live.allocated > 0)
    {
        let (device, stack, api) = (live.device, live.stack, live.api);
        let sum = held.entry(Key { device, stack, api }).or_default();
        *sum = sum.saturating_add(live.allocated);
    }
    Ok((held, ledger.devices.values().map(|device| device.all.count).sum()))
}

/// A text without the characters that separate frames and lines, and without control characters: such files are read at
/// terminals.
fn part(text: &str) -> String {
    printable(&text.replace([';', '\n', '\r'], ":"), usize::MAX)
}

/// A frame as a part of a line.
fn text(frame: &Frame) -> String {
    part(&match (&*frame.file, frame.line) {
        ("", _) => frame.function.to_string(),
        (file, 0) => format!("{} ({file})", frame.function),
        (file, line) => format!("{} ({file}:{line})", frame.function),
    })
}

/// Adds the sums of a process to `lines`, by stack. A sum without a stack gets one frame that says so, so that no byte is
/// left out of a picture.
pub fn add(lines: &mut BTreeMap<String, u64>, process: &Process, held: &BTreeMap<Key, u64>, several: bool) {
    for (key, held) in held {
        let mut parts = vec![memory_name(key.device)];
        if several {
            parts.insert(0, part(&process.title()));
        }
        match process.frameless(key.stack) {
            None => parts.extend(process.frames(key.stack).iter().rev().map(text)),
            Some(why) => parts.push(part(&format!("{} {}", api_name(key.api), why.name(key.stack)))),
        }
        let bytes = lines.entry(parts.join(";")).or_default();
        *bytes = bytes.saturating_add(*held);
    }
}

pub fn write(out: &mut dyn Write, lines: &BTreeMap<String, u64>) -> io::Result<()> {
    lines
        .iter()
        .try_for_each(|(stack, bytes)| writeln!(out, "{stack} {bytes}"))
}
