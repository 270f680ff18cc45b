//! The stacks of a job's requests as text and as JSON.

use std::io::{self, Write};

use journal::format::NoStack;
use serde_json::{Value, json};

use super::format::{count, duration, printable, size, strong};
use super::table::table;
use crate::analysis::labels::Labels;
use crate::analysis::live_set::{Holder, Key, Named, by_name};
use crate::analysis::names::frame_as_json;
use crate::analysis::origins::FIRST_OF_TORCH;
use crate::analysis::scene::Scene;
use crate::analysis::stack_uses::Uses;

/// The place that a stack names, or why it is not known.
fn place_of(labels: &Labels, stack: u32) -> String {
    let from = if is_of_torch(stack) { " (PyTorch's record)" } else { "" };
    format!("{}{from}", printable(&labels.stack(stack), 200))
}

fn is_of_torch(stack: u32) -> bool {
    NoStack::stack(stack).is_ok_and(|number| number >= FIRST_OF_TORCH)
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
pub fn page(
    out: &mut impl Write,
    (uses, labels): &(Uses, Labels),
    failure: Option<&Scene>,
    top: usize,
    bold: bool,
) -> io::Result<()> {
    writeln!(out, "\n{}", strong("Stacks", bold))?;
    writeln!(out, "  {}", share(uses))?;
    if let Some(failure) = failure {
        let from = match NoStack::stack(failure.stack) {
            Err(reason) => format!("; the code that asked is not known: {}", reason.words()),
            Ok(number) => format!(", asked for at {}", place_of(labels, number)),
        };
        writeln!(
            out,
            "  No memory for {} of device {} at {}{from}",
            size(failure.requested),
            failure.device,
            duration(failure.time_ns),
        )?;
    }
    let stack = |holder: &Holder| match holder.key {
        Key::Stack(number) => place_of(labels, number),
        key => labels.key(key),
    };
    let mut places = by_name(uses.holders.clone(), stack);
    places.sort_by_key(|place| std::cmp::Reverse(place.sum.requested));
    let more = places.len().saturating_sub(top);
    let row = |place: Named| vec![size(place.sum.requested), count(place.sum.count), place.name];
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

/// The frames of a stack, and where they come from or why there are none.
fn stack_as_json(labels: &Labels, stack: u32) -> Value {
    let frames: Value = labels
        .frames(stack)
        .unwrap_or_default()
        .iter()
        .map(frame_as_json)
        .collect();
    let from = if is_of_torch(stack) { "PyTorch" } else { "journal" };
    json!({ "from": from, "no_stack": NoStack::stack(stack).err().map(NoStack::name), "frames": frames })
}

pub fn as_json((uses, labels): &(Uses, Labels), failure: Option<&Scene>) -> Value {
    let without: serde_json::Map<_, _> = uses
        .without
        .iter()
        .map(|(reason, &bytes)| (reason.name().to_owned(), bytes.into()))
        .collect();
    let stack = |key: Key| match key {
        Key::Stack(number) => stack_as_json(labels, number),
        _ => Value::Null,
    };
    let holder = |holder: &Holder| {
        json!({
            "bytes": holder.requested,
            "allocations": holder.count,
            "stack": stack(holder.key),
        })
    };
    let last = failure.map(|failure| {
        json!({
            "time_ns": failure.time_ns,
            "device": failure.device,
            "requested": failure.requested,
            "stack": stack_as_json(labels, failure.stack),
        })
    });
    json!({
        "requested_with_stack": uses.with,
        "requested_with_stack_of_pytorch": uses.of_torch,
        "requested_without_stack": without,
        "live": uses.holders.iter().map(holder).collect::<Vec<_>>(),
        "last_out_of_memory": last,
    })
}
