//! What the strategy will do on each device: as it is, or what it does instead over this driver or layer.
//!
//! The library decides the same when its first pool begins (`preload/engine/pools/abilities.rs` and `growth.rs`).
//! `scripts/layers` compares this forecast with what jobs then do.

use base::kernel::{PEER_MEMORY_WITHOUT_DMA_BUF, needs_memory_of_cu_mem_alloc};
use base::text::shown;
use base::verdict::{Outcome, Subject, Verdict};
use config::table;
use policy::needs::{FallBack, Instead};
use policy::{Settings, Strategy};
use serde::Serialize;

use super::probe::{Device, Driver};
use super::report::Findings;
use super::{Setup, driver, layers};
use crate::render::format::{self, size};

#[derive(Debug, Serialize)]
pub struct Forecast {
    pub device: i32,
    pub strategy: &'static str,
    /// What the strategy does instead, in one word for scripts: `map_once`, `chunks`, `passthrough`; `null` if it works as
    /// it is.
    pub instead: Option<&'static str>,
    pub why: Option<String>,
}

pub fn check(told: &mut Findings, setup: &mut Setup) {
    let strategy = setup.config.strategy;
    if strategy == Strategy::Passthrough {
        return;
    }
    let name = strategy.name();
    let mut forecasts = Vec::new();
    for (place, device) in setup.devices().iter().enumerate() {
        if device.context_error.is_some() {
            continue;
        }
        let lacks = setup.driver.as_ref().and_then(|known| lacking(setup, known, place));
        let about = format!("device {}: {name}", device.ordinal);
        match &lacks {
            None if device.limit_of_layer.is_some() && strategy.reserves_up_front() => told.ok(format!(
                "{about} reserves {} at a time, unless a flag sets more: the layer's limit may be shared",
                size(Settings::default().for_shared_limit().initial_bytes)
            )),
            None => told.ok(format!("{about} works as it is")),
            Some((instead, why)) => told
                .warning(format!("{about} {}: {why}", instead.words()))
                .advise(told_of(*instead).1),
        };
        let (instead, why) = lacks.unzip();
        forecasts.push(Forecast {
            device: device.ordinal,
            strategy: name,
            instead: instead.map(|instead| told_of(instead).0),
            why,
        });
    }
    setup.forecast = forecasts;
}

/// What answers about a device are stored under.
pub fn subject(driver: &Driver, ordinal: usize) -> Option<Subject> {
    let device = driver.devices.get(ordinal)?;
    let allocates = driver.allocates.as_deref()?;
    Some(Subject::new(&device.name, driver.version?, allocates))
}

/// Says what the stored answers of `doctor --assumptions` mean for a job with this config. Says nothing under
/// passthrough, which assumes nothing.
pub fn check_stored(told: &mut Findings, setup: &mut Setup) {
    let strategy = setup.config.strategy;
    let Some(driver) = setup.driver.as_ref().filter(|_| strategy != Strategy::Passthrough) else {
        return;
    };
    if !setup.config.use_verdicts {
        told.note("stored answers about the driver are not read")
            .at(table::ASSUMPTIONS.name);
        return;
    }
    let Some(folder) = &setup.config.verdicts else { return };
    let mut subjects: Vec<Subject> = Vec::new();
    for subject in (0..driver.devices.len()).filter_map(|ordinal| subject(driver, ordinal)) {
        if subjects.contains(&subject) {
            continue;
        }
        let device = &subject.device;
        let verdict = Verdict::read(folder, &subject);
        let found = verdict.as_ref().map(|verdict| {
            let number = |wanted: &[Outcome]| verdict.outcomes.iter().filter(|(_, one)| wanted.contains(one)).count();
            format!(
                "{device}: assumptions that hold: {}, that do not: {}, not asked: {}; the answers are of {}",
                number(&[Outcome::Holds]),
                number(&[Outcome::Differs, Outcome::Hangs]),
                number(&[Outcome::NotAsked]),
                format::time(verdict.asked_s.saturating_mul(1_000_000_000))
            )
        });
        match (found, verdict.and_then(|verdict| FallBack::of(strategy, &verdict))) {
            (Some(found), None) => told.ok(found),
            (Some(found), Some(_)) => told.warning(found).advise(
                "The lines strategy say what follows. vramshim doctor --assumptions asks again, for example after an \
                 update of the driver.",
            ),
            (None, _) => told
                .note(format!(
                    "{device} was not asked yet whether it does what {} assumes",
                    strategy.name()
                ))
                .advise("vramshim doctor --assumptions asks for about a minute, and stores the answers for all jobs."),
        };
        subjects.push(subject);
    }
}

/// A word for scripts, and what follows.
const fn told_of(instead: Instead) -> (&'static str, &'static str) {
    match instead {
        Instead::MapOnce => (
            "map_once",
            "Free memory in several places then serves no large request, so it needs more memory.",
        ),
        Instead::Chunks => (
            "chunks",
            "FLAGS_auto_growth_chunk_size_in_mb sets the size of chunks; naive_best_fit with a size keeps memory in one piece.",
        ),
        Instead::Passthrough => ("passthrough", "The strategy has no effect here."),
    }
}

/// What a device lacks for the strategy; of several reasons the one that changes most.
fn lacking(setup: &Setup, known: &Driver, place: usize) -> Option<(Instead, String)> {
    let (config, device) = (&setup.config, &known.devices[place]);
    let mut reasons: Vec<(Instead, String)> = Vec::new();
    if let Some(front) = layers::in_front(setup.environment) {
        let front = shown(&front);
        let why = format!("{front} stands before the library and takes the job's requests");
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
    let subject = subject(known, place).filter(|_| config.use_verdicts);
    let verdict = subject.and_then(|subject| Verdict::read(config.verdicts.as_deref()?, &subject));
    if let Some(fall_back) = verdict.and_then(|verdict| FallBack::of(config.strategy, &verdict)) {
        reasons.push((fall_back.instead, fall_back.why()));
    }
    // Of equal reasons the first is told.
    reasons.into_iter().rev().max_by_key(|(instead, _)| *instead)
}

/// Why `auto_growth` grows in chunks.
fn why_chunks(known: &Driver, device: &Device) -> Option<String> {
    if let (Some(layer), Some(creates)) = (known.allocates.as_deref(), known.creates.as_deref())
        && !driver::same_file(layer, creates)
    {
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
