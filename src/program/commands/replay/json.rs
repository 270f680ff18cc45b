//! The JSON of `replay`.

use prices::{Bill, Call};
use serde_json::{Map, Value, json};

use super::{Played, Row};
use crate::replay::Trace;

pub fn json_of(played: &Played) -> Value {
    let (trace, setup) = (played.trace, played.setup);
    let strategies = played.rows.iter().map(|row| strategy(row, trace));
    let not_known = played.not_known.iter();
    let not_known =
        not_known.map(|(name, why)| json!({"name": name, "not_known": why, "smallest_device": null, "fits": null}));
    let strategies: Vec<Value> = strategies.chain(not_known).collect();
    let prices = setup.prices.rows().into_iter();
    let prices: Map<String, Value> = prices.map(|(name, us)| (name.to_owned(), us.into())).collect();
    json!({
        "trace": played.name,
        "peak_live": trace.peak_live,
        "requests": trace.requests.len(),
        "unmatched": trace.unmatched,
        "duration_ns": trace.duration_ns,
        "notes": trace.notes,
        "at_least": trace.is_at_least(),
        "device_memory": setup.device_memory,
        "repetitions": setup.repetitions,
        "lag_ns": setup.lag_ns,
        "prices": prices,
        "price_table": played.price_table,
        "strategies": strategies,
    })
}

fn strategy(row: &Row, trace: &Trace) -> Value {
    let outcome = &row.outcome;
    let mut page = bill(&outcome.bill());
    let repetitions: Vec<Value> = outcome.repetitions.iter().map(bill).collect();
    page["name"] = outcome.name.into();
    page["peak_reserved"] = outcome.peak_reserved.into();
    page["utilisation"] = row.outcome.utilisation(trace).into();
    page["share_of_trace"] = row.outcome.share_of_trace(trace).into();
    page["smallest_device"] = row.smallest.into();
    page["fits"] = (outcome.failed == 0).into();
    page["failed"] = outcome.failed.into();
    page["repetitions"] = repetitions.into();
    page
}

fn bill(bill: &Bill) -> Value {
    let calls: Map<String, Value> = Call::ALL
        .iter()
        .map(|&call| (call.name().to_owned(), bill.count(call).into()))
        .collect();
    json!({
        "driver_calls": bill.driver_calls(),
        "memory_calls": bill.memory_calls(),
        "calls": calls,
        "driver_ns": bill.driver_ns,
        "waits_in_allocations": bill.waits_in_allocations,
        "waits_in_frees": bill.waits_in_frees,
        "waiting_ns": bill.waited_ns,
    })
}
