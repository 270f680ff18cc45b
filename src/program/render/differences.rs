//! The reconciliation of one process in `inspect` and `reconcile`: rows of a table for people, JSON objects for
//! programs.

use serde_json::{Value, json};

use crate::analysis::measurements::{Balance, minus};
use crate::analysis::reconciliation::{Basis, Context, Differences};
use crate::render::format::{difference, size};

/// The titles of the table's columns.
pub const PARTS: [&str; 4] = ["who", "what", "bytes", "known from"];

pub fn others_row(other_processes: Option<u64>) -> Option<Vec<String>> {
    Some(row("others", "other processes", size(other_processes?), "nvml"))
}

/// The rows of one process: the bytes of the ledger, and the parts of the difference to NVML. A row with 0 bytes is
/// left out, unless it is requested or unknown.
pub fn process_rows(
    balance: &Balance,
    differences: &Differences,
    context: Option<Context>,
    nvml_used: Option<u64>,
    who: &str,
) -> Vec<Vec<String>> {
    let rounded = minus(balance.allocated, balance.requested);
    let pools = minus(balance.recorded, balance.allocated).saturating_sub_unsigned(balance.free_inside);
    // The process itself knew of more or less when it was measured.
    let unrecorded = minus(balance.reserved, balance.recorded);
    let basis = match context.map(|context| context.basis) {
        Some(Basis::Nvml) => "nvml, when it was first asked",
        Some(Basis::Device) => "the driver, when no other process was there",
        Some(Basis::Alike) => "another process's context",
        None => "",
    };
    let unknown = match context {
        None if differences.unknown > 0 => "no evidence of how much of it is a context",
        _ => "",
    };
    let parts = [
        ("requested", balance.requested as i64, "ledger"),
        ("rounding of requests", rounded, "ledger"),
        ("free inside segments", balance.free_inside as i64, "ledger"),
        ("driver's pools, padding", pools, "ledger"),
        ("in no record", unrecorded, "the measurement, less the records"),
        ("context", differences.context as i64, basis),
        ("driver's rounding", differences.rounding as i64, "addresses, at most"),
        ("module code", differences.module_code as i64, "mapped files, at most"),
        ("managed, in host memory", differences.managed, "ledger, at most"),
        ("unknown", differences.unknown, unknown),
    ];
    let mut rows = Vec::new();
    for (what, bytes, known) in parts {
        if bytes != 0 || matches!(what, "requested" | "unknown") {
            rows.push(row("", what, difference(bytes), known));
        }
    }
    let all = nvml_used.map_or_else(|| "not reported".into(), size);
    rows.insert(0, row(who, "in all", all, "nvml"));
    rows
}

pub fn row(who: &str, what: &str, bytes: String, known: &str) -> Vec<String> {
    vec![who.into(), what.into(), bytes, known.into()]
}

/// The figures of ledger, NVML and driver for one process.
pub fn process_json(
    balance: &Balance,
    nvml: Option<u64>,
    driver: Option<(u64, u64)>,
    context: Option<Context>,
) -> Value {
    json!({
        "ledger": {
            "requested": balance.requested,
            "allocated": balance.allocated,
            "reserved": balance.reserved,
            "free_inside": balance.free_inside,
            "recorded": balance.recorded,
        },
        "nvml_used": nvml,
        "driver": driver.map(|(total, free)| json!({ "total": total, "free": free })),
        "context_basis": context.map(|context| context.basis.name()),
    })
}

pub fn differences_json(differences: &Differences) -> Value {
    json!({
        "context": differences.context,
        "module_code": differences.module_code,
        "rounding": differences.rounding,
        "managed": differences.managed,
        "unknown": differences.unknown,
    })
}
