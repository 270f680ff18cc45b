//! What the process held of the host's memory, and what grew too fast, as text and as JSON.

use base::cuda::HOST_DEVICE;
use base::text::printable;
use journal::format::HostMemory;
use serde_json::{Value, json};

use super::format::{duration, size, times};
use crate::analysis::host_levels::{HostAt, HostLevels};
use crate::analysis::labels::Labels;
use crate::analysis::surges::{Surge, Surges};

/// The longest stack in a line, in characters.
const LONGEST_STACK: usize = 200;

/// One line, without the name of the section; none if the journal has no such record.
pub fn lines(levels: &HostLevels) -> Vec<String> {
    let (Some(last), Some(highest)) = (levels.last, levels.highest) else {
        return Vec::new();
    };
    vec![format!(
        "resident {} at {}, at most {} at {}; pinned {}",
        size(last.memory.resident),
        duration(last.time_ns),
        size(highest.memory.resident),
        duration(highest.time_ns),
        size(last.memory.pinned),
    )]
}

/// Bytes; null if the journal has no such record.
pub fn as_json(levels: &HostLevels) -> Value {
    let at = |at: Option<HostAt>| {
        at.map(|HostAt { time_ns, memory }| {
            let HostMemory { resident, pinned } = memory;
            json!({ "time_ns": time_ns, "resident": resident, "pinned": pinned })
        })
    };
    match levels.last {
        None => Value::Null,
        last => json!({ "first": at(levels.first), "last": at(last), "highest": at(levels.highest) }),
    }
}

/// How often memory grew too fast, the largest surge, and who asked for memory meanwhile. `path` is the journal as a shell
/// reads it.
pub fn surge_lines(surges: &Surges, labels: &Labels, path: &str) -> Vec<String> {
    if surges.count == 0 {
        return Vec::new();
    }
    let mut lines = vec![format!(
        "Memory grew faster than VRAMSHIM_SURGE {}",
        times(surges.count)
    )];
    let Some(largest) = surges.largest() else {
        lines.push("vramshim report shows their marks".to_owned());
        return lines;
    };
    let Surge {
        time_ns,
        device,
        grown,
        over_ns,
        ref shares,
    } = *largest;
    lines.push(format!(
        "The largest: {} by {} within {} at {}",
        memory_name(device),
        size(grown),
        duration(over_ns),
        duration(time_ns)
    ));
    let what = if device == HOST_DEVICE {
        "pinned memory"
    } else {
        "memory"
    };
    lines.extend(shares.iter().map(|&(stack, asked)| {
        let stack = printable(&labels.stack(stack), LONGEST_STACK);
        format!("  asked for {} of {what}: {stack}", size(asked))
    }));
    lines.push(format!(
        "vramshim inspect {path} --at {}ms shows who held what then",
        time_ns.div_ceil(1_000_000)
    ));
    lines
}

/// The largest surges. Bytes and nanoseconds.
pub fn surges_as_json(surges: &Surges, labels: &Labels) -> Value {
    let surge = |surge: &Surge| {
        let shares = surge
            .shares
            .iter()
            .map(|&(stack, asked)| json!({ "stack": stack, "place": labels.stack(stack), "asked": asked }));
        json!({
            "time_ns": surge.time_ns,
            "device": surge.device,
            "grown": surge.grown,
            "over_ns": surge.over_ns,
            "responsible": shares.collect::<Vec<Value>>(),
        })
    };
    surges.list.iter().map(surge).collect()
}

fn memory_name(device: i16) -> String {
    match device {
        HOST_DEVICE => "resident memory of the process".to_owned(),
        device => format!("device {device}"),
    }
}
