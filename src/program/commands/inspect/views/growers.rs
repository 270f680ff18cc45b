//! `--growth`: whose live bytes rise from mark to mark, how fast, and when the device is full.

use journal::reader::State;
use serde_json::{Value, json};

use super::study::Study;
use crate::analysis::growth::{FEWEST_MOMENTS, Grower, growers, thinned};
use crate::analysis::holdings::{At, Holdings};
use crate::analysis::job::LoadError;
use crate::analysis::tensor_records::Tensors;
use crate::render::format::{count, difference, duration, many, printable, size};
use crate::render::text_or_json::Page;

pub fn show(page: &mut Page, study: &Study, top: usize) -> Result<(), LoadError> {
    let steps = study.landmarks.steps(study.mark("optimizer.step").ok());
    let devices_of_peak = || study.peak.devices.iter().filter(|set| set.device >= 0);
    let Some(peak) = devices_of_peak().max_by_key(|set| set.allocated) else {
        page.line("The job allocated nothing on a device.");
        page.json("growth", Value::Null);
        return Ok(());
    };
    let ledger = study.job.ledger.devices.get(&peak.device);
    let valleys = ledger.into_iter().flat_map(|ledger| ledger.floors.valleys());
    let at_marks = steps.len() >= FEWEST_MOMENTS;
    let (all, what): (Vec<At>, String) = if at_marks {
        let is_one = steps.iter().all(|step| step.text == steps[0].text);
        let name = printable(&study.labels.mark(steps[0].text), 40);
        let what = if is_one {
            format!("the marks {name}")
        } else {
            "its marks".to_owned()
        };
        (steps.iter().map(|step| step.at).collect(), what)
    } else {
        let at = |time_ns| At {
            time_ns,
            event: u64::MAX,
        };
        (
            valleys.map(at).collect(),
            "its lowest moments, because it has too few marks".to_owned(),
        )
    };
    // What the job frees on its way out, as an interpreter does, says nothing of its growth.
    let ended = study.job.state != State::Running;
    let cleared_ns = study.landmarks.cleared_ns.filter(|_| ended).unwrap_or(u64::MAX);
    let looked_at = thinned(all.into_iter().filter(|at| at.time_ns < cleared_ns).collect());
    let moments: Vec<At> = looked_at.iter().map(|step| step.at).collect();
    let mut holdings = Holdings::new(moments.clone());
    let job = study.again(&mut [&mut holdings])?;
    let found = growers(&holdings.finish(&job.ledger), &looked_at, peak.device);
    let (sum, mut growers) = (found.sum, found.holders);
    // Marks say that the job repeats itself.
    let repeats = at_marks || found.repeats;
    growers.retain(|_| repeats);
    let a_second = sum.as_ref().filter(|_| repeats).map_or(0.0, |sum| sum.a_second);
    let room = room(study, peak.device, peak.allocated);
    let full_in_s = room.filter(|_| a_second > 0.0).map(|room| room as f64 / a_second);
    page.heading(format!(
        "Growth on device {}, at {} of {what}",
        peak.device,
        count(moments.len() as u64)
    ));
    let taken = job.tensors.as_ref().and_then(Tensors::snapshots_taken);
    let shown = taken.map_or("", |_| ", as far as snapshots show");
    let known = taken.unwrap_or(usize::MAX).min(moments.len());
    let of = if known < moments.len() { "snapshot" } else { "moment" };
    let few = known < FEWEST_MOMENTS;
    page.line(match &sum {
        _ if few => format!("Whether anything grew is not known from {}.", many(known as u64, of)),
        None => format!("The sum of all live bytes did not rise at each of these moments{shown}: no steady growth."),
        Some(sum) => {
            let (from, to, rate) = (size(sum.from), size(sum.to), size(a_second as u64));
            let left = size(room.unwrap_or(0));
            // A job that died has no future.
            let pace = full_in_s.filter(|_| !study.job.finding().fatal);
            match pace.map(|seconds| duration((seconds * 1e9) as u64)) {
                _ if !repeats => format!(
                    "Live bytes rose from {from} to {to}, and next to nothing was freed{shown}: growth or data, which is not \
                     known without marks."
                ),
                None => format!("Live bytes rose from {from} to {to}, by {rate} a second"),
                Some(pace) => format!(
                    "Live bytes rose from {from} to {to}, by {rate} a second: at most {left} were left above the peak, which \
                     was {pace} at this pace, or less if others hold memory"
                ),
            }
        }
    });
    if growers.is_empty() && !few && repeats {
        page.line(match study.without_stacks(&peak.live) {
            Some(why) => format!("No holder that can be told apart rises from moment to moment. {why}"),
            None => "No holder has live bytes that rise from moment to moment.".to_owned(),
        });
    }
    let devices_of_job = devices_of_peak().map(|set| set.device);
    let others: Vec<i16> = devices_of_job.filter(|&other| other != peak.device).collect();
    if !others.is_empty() {
        let numbers = others.iter().map(i16::to_string).collect::<Vec<_>>().join(", ");
        page.line(format!(
            "This is the device with the highest peak; the job has memory on others too: {numbers}"
        ));
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
        let each = if at_marks { "a step" } else { "a moment" };
        let titles = format!(">from|>to|>count|>{each}|>a second|holder");
        page.table(&titles, growers.iter().take(top).map(row).collect());
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
            "other_devices": others,
            "moments_ns": moments.iter().map(|moment| moment.time_ns).collect::<Vec<_>>(),
            "at_marks": at_marks,
            "repeats_itself": repeats,
            "bytes_a_second": a_second,
            "from": sum.as_ref().map(|sum| sum.from),
            "to": sum.as_ref().map(|sum| sum.to),
            "room_above_peak": room,
            "seconds_to_limit": full_in_s,
            "holders": told.collect::<Value>(),
        }),
    );
    Ok(())
}

/// The bytes between the peak and the device's limit or size.
fn room(study: &Study, device: i16, peak: u64) -> Option<u64> {
    let entry = study.job.header.device(device)?;
    let most = entry.limit.unwrap_or(u64::MAX).min(entry.total_memory);
    Some(most.saturating_sub(peak))
}
