//! `--growth`: whose live bytes rise from mark to mark, how fast, and when the device is full.

use serde_json::{Value, json};

use super::study::Study;
use crate::analysis::growth::{FEWEST_MOMENTS, Grower, growers, thinned};
use crate::analysis::holdings::{At, Holdings};
use crate::analysis::job::{LoadError, Observer};
use crate::analysis::ledger::Ledger;
use crate::render::format::{count, difference, duration, printable, size};
use crate::render::page::Page;
use journal::format::Record;

/// Holdings that look at the records of a pass.
struct Watched(Holdings);

impl Observer for Watched {
    fn after(&mut self, _ledger: &Ledger, record: &Record) {
        self.0.apply(record);
    }
}

/// Reads the journal again for the groups at these moments.
pub fn series(study: &Study, moments: Vec<At>) -> Result<Vec<crate::analysis::holdings::Series>, LoadError> {
    let mut watched = Watched(Holdings::new(moments));
    study.again(&mut [&mut watched])?;
    Ok(watched.0.finish())
}

pub fn show(page: &mut Page, study: &Study, top: usize) -> Result<(), LoadError> {
    let steps = study.landmarks.steps();
    let peak = study.landmarks.peak(None);
    let Some(peak) = peak else {
        page.line("The job allocated nothing on a device.");
        page.json("growth", Value::Null);
        return Ok(());
    };
    let (all, what) = match steps.first() {
        Some(first) if steps.len() >= FEWEST_MOMENTS => {
            let text = printable(&study.labels.mark(first.text), 40);
            let is_one = steps.iter().all(|step| step.text == first.text);
            let what = if is_one {
                format!("the marks {text}")
            } else {
                "its marks".to_owned()
            };
            (steps.iter().map(|step| step.at).collect(), what)
        }
        _ => (
            study.landmarks.valleys(peak.device),
            "its lowest moments, because it has too few marks".to_owned(),
        ),
    };
    let looked_at = thinned(all);
    let moments: Vec<At> = looked_at.iter().map(|step| step.at).collect();
    let series = series(study, moments.clone())?;
    let mut growers = growers(&series, &looked_at);
    growers.retain(|grower| grower.group.device == peak.device);
    let a_second: f64 = growers.iter().map(|grower| grower.a_second).sum();
    let room = room(study, peak.device, peak.allocated);
    let full_in_s = room.filter(|_| a_second > 0.0).map(|room| room as f64 / a_second);
    page.heading(format!(
        "Growth on device {}, at {} of {what}",
        peak.device,
        count(moments.len() as u64)
    ));
    match (growers.is_empty(), full_in_s) {
        (true, _) => page.line("No holder has live bytes that rise from moment to moment."),
        (false, Some(seconds)) => page.line(format!(
            "{} grows by {} a second: {} are left above the peak, which is {} at this pace",
            count(growers.len() as u64) + if growers.len() == 1 { " holder" } else { " holders" },
            size(a_second as u64),
            size(room.unwrap_or(0)),
            duration((seconds * 1e9) as u64),
        )),
        (false, None) => page.line(format!("The live bytes grow by {} a second", size(a_second as u64))),
    }
    let row = |grower: &Grower| {
        vec![
            size(grower.from),
            size(grower.to),
            count(grower.count),
            difference(grower.a_step as i64),
            difference(grower.a_second as i64),
            printable(&study.labels.group(&grower.group), 160),
        ]
    };
    if !growers.is_empty() {
        let titles = ["from", "to", "count", "a step", "a second", "holder"];
        page.table(&titles, &[0, 1, 2, 3, 4], growers.iter().take(top).map(row).collect());
    }
    let told = growers.iter().map(|grower| {
        json!({
            "name": study.labels.group(&grower.group),
            "from": grower.from,
            "to": grower.to,
            "count": grower.count,
            "bytes_a_step": grower.a_step,
            "bytes_a_second": grower.a_second,
        })
    });
    page.json(
        "growth",
        json!({
            "device": peak.device,
            "moments_ns": moments.iter().map(|moment| moment.time_ns).collect::<Vec<_>>(),
            "at_marks": steps.len() >= FEWEST_MOMENTS,
            "bytes_a_second": a_second,
            "room_above_peak": room,
            "seconds_to_limit": full_in_s,
            "holders": told.collect::<Value>(),
        }),
    );
    Ok(())
}

/// The bytes between the peak and the device's limit or size.
fn room(study: &Study, device: i16, peak: u64) -> Option<u64> {
    let devices = study.job.header.devices.iter();
    let entry = devices.clone().find(|entry| entry.ordinal == i32::from(device))?;
    let most = entry.limit.unwrap_or(u64::MAX).min(entry.total_memory);
    Some(most.saturating_sub(peak))
}
