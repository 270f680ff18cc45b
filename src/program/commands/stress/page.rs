//! The outcome of a run for people.

use base::text::many;

use crate::render::format::{count, printable, size};
use crate::render::text_or_json::Page;
use crate::stress::baseline::{Baseline, Comparison, Device, Difference};

const MOST_CHARACTERS: usize = 2000;

pub fn show(page: &mut Page, run: &Baseline) {
    let driver = run.driver.as_deref().unwrap_or("not known");
    let (major, minor) = (run.cuda_version / 1000, run.cuda_version % 1000 / 10);
    // A driver or a file may have written parts of a line.
    let mut tell = |line: String| page.line(printable(&line, MOST_CHARACTERS));
    tell(format!("Driver {driver}, CUDA {major}.{minor}; seed {}", run.seed));
    for device in &run.devices {
        tell_device(&mut tell, device);
    }
    if let Some(Comparison { differences }) = &run.against {
        tell(String::new());
        tell(format!(
            "Against the baseline: {}",
            many(differences.len() as u64, "difference")
        ));
        for Difference { what, before, now } in differences {
            tell(format!("  {}: {now}, was {before}", what.replace('_', " ")));
        }
    }
    page.line(format!("\n{}", verdict(run)));
}

fn verdict(run: &Baseline) -> String {
    let turns = || run.devices.iter().flat_map(|device| &device.turns);
    let broke = turns().filter(|turn| turn.fault.is_some()).count();
    let never_compared = turns().all(|turn| turn.compared == 0) && turns().any(|turn| turn.not_compared > 0);
    match broke {
        1.. => format!("Broke: {broke} of {} turns.", turns().count()),
        0 if !run.passed => "Interrupted. Nothing broke until then.".to_owned(),
        0 if never_compared => "Passed, but the device's figures were never compared: see above.".to_owned(),
        0 => "Passed: nothing broke.".to_owned(),
    }
}

fn tell_device(tell: &mut impl FnMut(String), device: &Device) {
    let [total, most] = [device.total_bytes, device.memory_bytes].map(size);
    let (ordinal, name, uuid) = (device.ordinal, &device.name, &device.uuid);
    tell(String::new());
    tell(format!(
        "device {ordinal}: {name}, {total} [{uuid}]; a worker held at most {most}"
    ));
    for turn in &device.turns {
        let mut add = |what: String| tell(format!("  {}: {what}", turn.strategy));
        let [rounds, calls, blocks, refused] = [turn.rounds, turn.calls, turn.blocks, turn.refused].map(count);
        let [compared, rests] = [turn.compared, turn.compared + turn.not_compared].map(count);
        let read_back = size(turn.bytes_checked);
        add(format!(
            "{rounds} rounds, {calls} calls, {blocks} blocks ({refused} refused), {read_back} read back, compared at \
             {compared} of {rests} rest points"
        ));
        turn.left_out.iter().for_each(|call| add(format!("not there: {call}")));
        let whys = turn.why_not_compared.iter();
        whys.for_each(|why| add(format!("not compared with the device: {why}")));
        if let Some(fault) = &turn.fault {
            add(format!("broke in round {}: {}", turn.rounds, fault.words));
            add(format!("again: {}", fault.again));
            add(format!("journal: {}", fault.folder));
        }
    }
}
