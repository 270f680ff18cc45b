//! The stacks of a job's requests as text and as JSON.

use std::io::{self, Write};

use journal::format::{Frame, NoStack};
use journal::reader::Stacks;
use serde_json::{Value, json};

use super::format::{count, duration, printable, size, strong};
use super::table::table;
use crate::analysis::stacks::{Failure, Holder, Origin, Uses, line_of};
use crate::analysis::tensors::line_of_the_job;

fn place(line: Option<&Frame>) -> String {
    match line {
        Some(frame) if frame.line > 0 => printable(&format!("{}:{} {}", frame.file, frame.line, frame.function), 200),
        Some(frame) => printable(&format!("{} in {}", frame.function, frame.file), 200),
        None => "no frame".to_owned(),
    }
}

/// The line behind an origin, or why it is not known.
fn place_of(uses: &Uses, stacks: Option<&Stacks>, origin: Origin) -> String {
    let number = match origin {
        Origin::Torch(_) => {
            let line = line_of_the_job(uses.frames(stacks, origin));
            return format!("{} (PyTorch's record)", place(line));
        }
        Origin::Journal(number) => number,
    };
    match NoStack::stack(number) {
        Ok(number) => match stacks.and_then(|stacks| stacks.get(number)) {
            Some(stack) => place(line_of(stack)),
            None => format!("stack {number}, which is not in the file of stacks"),
        },
        Err(reason) => format!("no stack: {}", reason.words()),
    }
}

/// Which share of the requested bytes has a stack, and why the others have none.
pub fn share(uses: &Uses) -> String {
    let without: u64 = uses.without.values().sum();
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

/// Writes which code holds the memory that is live at the end, `top` stacks of it.
pub fn page(out: &mut impl Write, uses: &Uses, stacks: Option<&Stacks>, top: usize, bold: bool) -> io::Result<()> {
    writeln!(out, "\n{}", strong("Stacks", bold))?;
    writeln!(out, "  {}", share(uses))?;
    if let Some(failure) = &uses.failure {
        let line = place_of(uses, stacks, failure.origin);
        writeln!(
            out,
            "  No memory for {} of device {} at {}, asked for at {line}",
            size(failure.requested),
            failure.device,
            duration(failure.time_ns),
        )?;
    }
    let rows = uses.holders.iter().take(top).map(|holder| {
        vec![
            size(holder.bytes),
            count(holder.allocations),
            place_of(uses, stacks, holder.origin),
        ]
    });
    table(
        out,
        &["live bytes", "allocations", "allocated at"],
        &[0, 1],
        rows.collect(),
    )?;
    if uses.holders.len() > top {
        writeln!(out, "  {} more stacks", count((uses.holders.len() - top) as u64))?;
    }
    Ok(())
}

/// The frames of an origin, and where they come from or why there are none.
fn origin_as_json(uses: &Uses, stacks: Option<&Stacks>, origin: Origin) -> Value {
    let frame = |frame: &Frame| json!({ "file": frame.file, "line": frame.line, "function": frame.function });
    let frames: Value = uses.frames(stacks, origin).iter().map(frame).collect();
    let (from, reason) = match origin {
        Origin::Torch(_) => ("PyTorch", None),
        Origin::Journal(number) => ("journal", NoStack::stack(number).err().map(NoStack::name)),
    };
    json!({ "from": from, "no_stack": reason, "frames": frames })
}

pub fn as_json(uses: &Uses, stacks: Option<&Stacks>) -> Value {
    let without: serde_json::Map<_, _> = uses
        .without
        .iter()
        .map(|(reason, &bytes)| (reason.name().to_owned(), bytes.into()))
        .collect();
    let holder = |holder: &Holder| {
        json!({
            "bytes": holder.bytes,
            "allocations": holder.allocations,
            "stack": origin_as_json(uses, stacks, holder.origin),
        })
    };
    let failure = |failure: &Failure| {
        json!({
            "time_ns": failure.time_ns,
            "device": failure.device,
            "requested": failure.requested,
            "stack": origin_as_json(uses, stacks, failure.origin),
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
