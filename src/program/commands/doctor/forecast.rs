//! What the strategy will do on each device: as it is, or what it does instead over this driver or layer.
//!
//! The library decides the same when its first pool begins (`preload/engine/pools/abilities.rs` and `growth.rs`).
//! `scripts/layers` compares this forecast with what jobs then do.

use base::kernel::{PEER_MEMORY_WITHOUT_DMA_BUF, needs_memory_of_cu_mem_alloc};
use base::text::shown;
use base::verdict::Verdict;
use config::Config;
use policy::Strategy;
use policy::needs::{FallBack, Instead};
use serde::Serialize;

use super::probe::{Device, Driver};
use super::report::Findings;
use super::{driver, layers, stored};
use crate::launch::environment::Environment;

const CHECK: &str = "strategy";

#[derive(Debug, Serialize)]
pub struct Forecast {
    pub device: i32,
    pub strategy: &'static str,
    /// What the strategy does instead, in one word for scripts: `map_once`, `chunks`, `passthrough`; `null` if it works as
    /// it is.
    pub instead: Option<&'static str>,
    pub why: Option<String>,
}

/// The forecast for each device that has a context.
pub fn check(
    findings: &mut Findings,
    environment: &Environment,
    config: &Config,
    known: Option<&Driver>,
) -> Vec<Forecast> {
    if config.strategy == Strategy::Passthrough {
        return Vec::new();
    }
    let devices = known.iter().flat_map(|known| known.devices.iter().enumerate());
    let devices = devices.filter(|(_, device)| device.context_error.is_none());
    let name = config.strategy.name();
    let forecast = |(place, device): (usize, &Device)| {
        let lacks = known.and_then(|known| lacking(environment, config, known, place));
        match &lacks {
            None => findings.ok(CHECK, format!("device {}: {name} works as it is", device.ordinal), ""),
            Some((instead, why)) => findings.warning(
                CHECK,
                format!("device {}: {name} {}: {why}", device.ordinal, instead.words()),
                advice(*instead),
                "",
            ),
        };
        let (instead, why) = lacks.unzip();
        Forecast {
            device: device.ordinal,
            strategy: name,
            instead: instead.map(word),
            why,
        }
    };
    devices.map(forecast).collect()
}

const fn advice(instead: Instead) -> &'static str {
    match instead {
        Instead::MapOnce => "Free memory in several places then serves no large request, so it needs more memory.",
        Instead::Chunks => {
            "FLAGS_auto_growth_chunk_size_in_mb sets the size of chunks; naive_best_fit keeps memory in one piece."
        }
        Instead::Passthrough => "The strategy has no effect here.",
    }
}

const fn word(instead: Instead) -> &'static str {
    match instead {
        Instead::MapOnce => "map_once",
        Instead::Chunks => "chunks",
        Instead::Passthrough => "passthrough",
    }
}

/// What a device lacks for the strategy; of several reasons the one that changes most.
fn lacking(environment: &Environment, config: &Config, known: &Driver, place: usize) -> Option<(Instead, String)> {
    let device = &known.devices[place];
    let mut reasons: Vec<(Instead, String)> = Vec::new();
    if let Some(front) = layers::in_front(environment) {
        let why = format!(
            "{} stands before the library and takes the job's requests",
            shown(&front)
        );
        reasons.push((Instead::Passthrough, why));
    }
    let lacks = |function: &String| format!("the next layer has no {function}");
    if let Some(function) = known.missing_for_policies.first() {
        reasons.push((Instead::Passthrough, lacks(function)));
    }
    if config.strategy.maps_granules() {
        let why = known
            .missing_for_mapping
            .first()
            .map(lacks)
            .or_else(|| why_chunks(known, device));
        reasons.extend(why.map(|why| (Instead::Chunks, why)));
        if !device.mapped_twice {
            reasons.push((Instead::MapOnce, "memory can be mapped only once".to_owned()));
        }
    }
    let subject = stored::subject(known, place).filter(|_| config.use_verdicts);
    let verdict = subject.and_then(|subject| Verdict::read(config.verdicts.as_deref()?, &subject));
    if let Some(fall_back) = verdict.and_then(|verdict| FallBack::of(config.strategy, &verdict)) {
        reasons.push((fall_back.instead, fall_back.why()));
    }
    // Of equal reasons the first is told.
    reasons.into_iter().rev().max_by_key(|(instead, _)| *instead)
}

/// Why `auto_growth` grows in chunks.
fn why_chunks(known: &Driver, device: &Device) -> Option<String> {
    let elsewhere = match (known.allocates.as_deref(), known.creates.as_deref()) {
        (Some(allocates), Some(creates)) if !driver::same_file(allocates, creates) => Some(allocates),
        _ => None,
    };
    if let Some(layer) = elsewhere {
        return Some(format!(
            "{layer} hooks cuMemAlloc but not cuMemCreate, so its limit would not hold for mapped memory"
        ));
    }
    if device.vmm && needs_memory_of_cu_mem_alloc(device.dma_buf) {
        return Some(PEER_MEMORY_WITHOUT_DMA_BUF.to_owned());
    }
    match (&device.granule_error, device.granularity) {
        (Some((function, code)), None) => Some(format!("{function} fails with {code}")),
        (None, None) => Some("the next layer has no virtual memory management".to_owned()),
        _ => (!device.granule_counted).then(|| {
            "the next layer does not count memory of cuMemCreate, so its limit would not hold for it".to_owned()
        }),
    }
}
