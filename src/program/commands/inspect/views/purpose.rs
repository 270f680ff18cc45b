//! `--purpose`: what the memory at the peak is for, and what a smaller batch would save: an estimate.

use serde_json::{Value, json};

use super::holders::named;
use super::study::Study;
use crate::analysis::device_ledger::Live;
use crate::analysis::job::LoadError;
use crate::analysis::live_set::{By, DeviceSet};
use crate::analysis::purpose::{Purpose, Step};
use crate::render::format::{count, duration, percent, size};
use crate::render::page::Page;

pub fn show(page: &mut Page, study: &Study, by: Option<By>, top: usize) -> Result<(), LoadError> {
    let mut devices = Vec::new();
    for peak in study
        .peak
        .devices
        .iter()
        .filter(|set| set.device >= 0 && !set.live.is_empty())
    {
        let Some(step) = Step::around_peak(&study.landmarks, peak.device) else {
            page.heading(format!("Device {}: not known", peak.device));
            page.line(
                "The peak does not lie between two marks or two low moments, so what lasts cannot be told from what comes \
                 and goes.",
            );
            devices.push(json!({ "device": peak.device, "step": null }));
            continue;
        };
        let bounds = study.at(&step.moments())?;
        let bound = |place: usize| bounds[place].as_ref().and_then(|set| set.device(peak.device));
        let purpose = Purpose::of(bound(0), peak, bound(1));
        devices.push(one_device(page, study, peak, &step, &purpose, by, top));
    }
    if devices.is_empty() {
        page.line("The job allocated nothing on a device.");
    }
    page.json("purpose", json!({ "devices": devices }));
    Ok(())
}

fn bytes(live: &[Live]) -> u64 {
    live.iter().map(|live| live.allocated).fold(0, u64::saturating_add)
}

fn one_device(
    page: &mut Page,
    study: &Study,
    peak: &DeviceSet,
    step: &Step,
    purpose: &Purpose,
    by: Option<By>,
    top: usize,
) -> Value {
    let bounded = match step.is_marked {
        true => "the marks before and after it",
        false => "the lowest moments before and after it, because no marks bound it",
    };
    page.heading(format!(
        "Device {} at its peak of {}, at {}",
        peak.device,
        size(peak.allocated),
        duration(peak.time_ns)
    ));
    page.line(format!(
        "  Step: {} to {} ({bounded})",
        duration(step.begin.time_ns),
        duration(step.end.time_ns)
    ));
    let kinds = [
        ("lasts", "parameters, optimiser's state, caches", &purpose.lasts),
        (
            "comes and goes",
            "activations, gradients, temporary memory",
            &purpose.comes_and_goes,
        ),
        ("comes and stays", "growth, or state that the step made", &purpose.stays),
        ("ends", "what the step before left over", &purpose.ends),
    ];
    let row = |(kind, examples, live): &(&str, &str, &Vec<Live>)| {
        vec![
            (*kind).to_owned(),
            size(bytes(live)),
            percent(Some(bytes(live) as f64 / peak.allocated.max(1) as f64)),
            count(live.len() as u64),
            (*examples).to_owned(),
        ]
    };
    let titles = ["kind", "bytes", "share", "count", "mostly"];
    page.table(&titles, &[1, 2, 3], kinds.iter().map(row).collect());
    let passing = bytes(&purpose.comes_and_goes);
    page.line(match (passing, study.job.caches()) {
        (_, Some(framework)) => format!(
            "  No estimate of what a smaller batch saves: what comes and goes inside {framework}'s segments is not seen \
             here."
        ),
        (0, None) => "  Nothing at the peak comes and goes within the step: a smaller batch would save nothing.".to_owned(),
        _ => format!(
            "  Estimate: half the batch would save up to {} at the peak, which would be {};\n  recomputation saves less than \
             {}. This takes all that comes and goes within the step to be\n  in proportion to the batch, and what lasts not.",
            size(passing / 2),
            size(peak.allocated.saturating_sub(passing / 2)),
            size(passing),
        ),
    });
    let is_known = study.job.caches().is_none();
    let set = |live: &[Live]| DeviceSet {
        live: live.to_vec(),
        graphs: 0,
        ..peak.clone()
    };
    let mut holders = Vec::new();
    for (kind, _, live) in kinds.iter().take(3).filter(|(_, _, live)| !live.is_empty()) {
        let (by, _) = study.grouping(by, live);
        let names = named(study, &set(live), by);
        page.heading(format!("What {kind}"));
        let row =
            |(name, named): &(String, super::holders::Named)| vec![size(named.bytes), count(named.count), name.clone()];
        page.table(
            &["bytes", "count", super::holders::title(by)],
            &[0, 1],
            names.iter().take(top).map(row).collect(),
        );
        for (name, named) in names.iter().take(top.max(100)) {
            holders.push(json!({ "kind": kind, "name": name, "bytes": named.bytes, "count": named.count }));
        }
    }
    json!({
        "device": peak.device,
        "peak": peak.allocated,
        "peak_ns": peak.time_ns,
        "step": { "begin_ns": step.begin.time_ns, "end_ns": step.end.time_ns, "marked": step.is_marked },
        "lasts": bytes(&purpose.lasts),
        "comes_and_goes": passing,
        "stays": bytes(&purpose.stays),
        "ends": bytes(&purpose.ends),
        "estimate": is_known.then(|| json!({
            "half_batch_saves": passing / 2,
            "recomputation_saves_less_than": passing,
            "how": "all that comes and goes within the step is in proportion to the batch",
        })),
        "holders": holders,
    })
}
