//! The stacks of a job's requests as text and as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};

use journal::format::{Frame, NoStack};
use serde_json::{Value, json};

use super::format::{count, duration, printable, size, strong};
use super::table::table;
use crate::analysis::labels::Labels;
use crate::analysis::origins;
use crate::analysis::stacks::{Failure, Holder, Origin, Uses};

/// The place behind an origin, or why it is not known.
fn place_of(labels: &Labels, origin: Origin) -> String {
    let name = |number: u32| printable(&labels.stack(number), 200);
    match origin {
        Origin::Torch(number) => format!("{} (PyTorch's record)", name(origins::of_torch(number))),
        Origin::Journal(number) => name(number),
    }
}

/// Which share of the requested bytes has a stack, and why the others have none.
pub fn share(uses: &Uses) -> String {
    let without: u64 = uses.without.values().fold(0, |sum, &bytes| sum.saturating_add(bytes));
    let total = uses.with.saturating_add(uses.of_torch).saturating_add(without);
    let percent = |bytes: u64| 100.0 * bytes as f64 / total.max(1) as f64;
    let mut text = format!(
        "{:.1} % of the {} requested have a stack in the journal",
        percent(uses.with),
        size(total)
    );
    if uses.of_torch > 0 {
        text += &format!("; {:.1} % have one in PyTorch's own record", percent(uses.of_torch));
    }
    for (reason, &bytes) in &uses.without {
        text += &format!("; {:.1} % do not: {}", percent(bytes), reason.words());
    }
    text
}

/// Writes which code holds the memory that is live at the end, `top` places of it.
pub fn page(out: &mut impl Write, uses: &Uses, labels: &Labels, top: usize, bold: bool) -> io::Result<()> {
    writeln!(out, "\n{}", strong("Stacks", bold))?;
    writeln!(out, "  {}", share(uses))?;
    if let Some(failure) = &uses.failure {
        let no_stack = match failure.origin {
            Origin::Journal(number) => NoStack::stack(number).err(),
            Origin::Torch(_) => None,
        };
        let from = match no_stack {
            Some(reason) => format!("; the code that asked is not known: {}", reason.words()),
            None => format!(", asked for at {}", place_of(labels, failure.origin)),
        };
        writeln!(
            out,
            "  No memory for {} of device {} at {}{from}",
            size(failure.requested),
            failure.device,
            duration(failure.time_ns),
        )?;
    }
    let mut places: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for holder in &uses.holders {
        let sum = places.entry(place_of(labels, holder.origin)).or_default();
        *sum = (sum.0.saturating_add(holder.bytes), sum.1 + holder.allocations);
    }
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_by_key(|(_, (bytes, _))| std::cmp::Reverse(*bytes));
    let more = places.len().saturating_sub(top);
    let row = |(place, (bytes, allocations)): (String, (u64, u64))| vec![size(bytes), count(allocations), place];
    table(
        out,
        &["live bytes", "allocations", "allocated at"],
        &[0, 1],
        places.into_iter().take(top).map(row).collect(),
    )?;
    if more > 0 {
        writeln!(out, "  {} more places", count(more as u64))?;
    }
    Ok(())
}

/// The frames of an origin, and where they come from or why there are none.
fn origin_as_json(uses: &Uses, labels: &Labels, origin: Origin) -> Value {
    let frame = |frame: &Frame| json!({ "file": frame.file, "line": frame.line, "function": frame.function });
    let frames: Value = uses.frames(labels.stacks(), origin).iter().map(frame).collect();
    let (from, reason) = match origin {
        Origin::Torch(_) => ("PyTorch", None),
        Origin::Journal(number) => ("journal", NoStack::stack(number).err().map(NoStack::name)),
    };
    json!({ "from": from, "no_stack": reason, "frames": frames })
}

pub fn as_json(uses: &Uses, labels: &Labels) -> Value {
    let without: serde_json::Map<_, _> = uses
        .without
        .iter()
        .map(|(reason, &bytes)| (reason.name().to_owned(), bytes.into()))
        .collect();
    let holder = |holder: &Holder| {
        json!({
            "bytes": holder.bytes,
            "allocations": holder.allocations,
            "stack": origin_as_json(uses, labels, holder.origin),
        })
    };
    let failure = |failure: &Failure| {
        json!({
            "time_ns": failure.time_ns,
            "device": failure.device,
            "requested": failure.requested,
            "stack": origin_as_json(uses, labels, failure.origin),
        })
    };
    json!({
        "requested_with_stack": uses.with,
        "requested_with_stack_of_pytorch": uses.of_torch,
        "requested_without_stack": without,
        "live": uses.holders.iter().map(holder).collect::<Vec<_>>(),
        "last_out_of_memory": uses.failure.as_ref().map(failure),
    })
}
