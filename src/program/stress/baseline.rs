//! The baseline: the outcome of a run as JSON, and what differs from one in a later run (`--against`).

use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::outcome::Outcome;
use super::prices::Price;
use crate::render::format::size;

/// The version of the format. It changes if a field changes its meaning or goes.
pub const VERSION: u64 = 1;
/// A longer file is no baseline.
const LONGEST_BYTES: u64 = 64 << 20;
/// Prices of fewer calls than this are not compared.
const FEWEST_CALLS: u64 = 20;
/// A price that changed by less than this factor is not told.
pub const WORTH_TELLING: f64 = 1.5;
/// Free memory at idle that moved by less is not told.
const IDLE_BYTES: u64 = 64 << 20;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Baseline {
    /// Tells a baseline from other JSON.
    pub vramshim_baseline: u64,
    /// The version of vramshim.
    pub program: String,
    /// When the run ended, in UTC.
    pub made: String,
    pub seed: u64,
    pub for_ms: u64,
    pub passed: bool,
    pub interrupted: bool,
    /// By `cuDriverGetVersion`: 13000 is 13.0.
    pub cuda_version: i32,
    /// The version of the driver, by NVML.
    pub driver: Option<String>,
    pub devices: Vec<Device>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Device {
    pub ordinal: i32,
    pub uuid: String,
    pub name: String,
    pub total_bytes: u64,
    /// The most bytes that a worker was allowed to hold.
    pub memory_bytes: u64,
    pub turns: Vec<Outcome>,
}

#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    #[error("no baseline of vramshim stress: {0}")]
    NoBaseline(#[from] serde_json::Error),
    #[error("a baseline of version {0}; this program reads version {VERSION}, so make it anew")]
    OtherVersion(u64),
}

impl Baseline {
    pub fn read(path: &Path) -> Result<Baseline, Unusable> {
        let mut text = Vec::new();
        std::fs::File::open(path)?.take(LONGEST_BYTES).read_to_end(&mut text)?;
        let run: Baseline = serde_json::from_slice(&text)?;
        match run.vramshim_baseline {
            VERSION => Ok(run),
            other => Err(Unusable::OtherVersion(other)),
        }
    }
}

/// Something that is not as it was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The UUID of the device; `null` for what concerns all.
    pub device: Option<String>,
    /// `driver`, `cuda_version`, `program`, `device`, `name`, `total_memory`, `free_at_idle` or `fault`.
    pub what: &'static str,
    pub before: String,
    pub now: String,
}

/// What a call cost then and now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PriceChange {
    pub device: String,
    pub strategy: String,
    pub call: String,
    pub size: String,
    pub before_p50_ns: u64,
    pub now_p50_ns: u64,
    /// Now over before.
    pub ratio: f64,
}

impl PriceChange {
    pub fn is_worth_telling(&self) -> bool {
        self.ratio >= WORTH_TELLING || self.ratio <= 1.0 / WORTH_TELLING
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// When the baseline was made.
    pub made: String,
    /// Whether the run of the baseline had passed.
    pub baseline_passed: bool,
    pub differences: Vec<Difference>,
    /// The slowest come first.
    pub prices: Vec<PriceChange>,
}

impl Comparison {
    pub fn new(before: &Baseline, now: &Baseline) -> Comparison {
        let (mut differences, mut prices) = (Vec::new(), Vec::new());
        let mut note = |device: Option<&Device>, what, before: &dyn ToString, now: &dyn ToString| {
            let (before, now) = (before.to_string(), now.to_string());
            if before != now {
                let device = device.map(|device| device.uuid.clone());
                differences.push(Difference {
                    device,
                    what,
                    before,
                    now,
                });
            }
        };
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "not known".to_owned());
        note(None, "driver", &or_none(&before.driver), &or_none(&now.driver));
        note(None, "cuda_version", &before.cuda_version, &now.cuda_version);
        note(None, "program", &before.program, &now.program);
        let mut left: Vec<&Device> = before.devices.iter().collect();
        for device in &now.devices {
            // The same device, or else the one at its place, if the machine is another one.
            let at = left.iter().position(|then| then.uuid == device.uuid);
            let at = at.or_else(|| left.iter().position(|then| then.ordinal == device.ordinal));
            let Some(then) = at.map(|at| left.remove(at)) else {
                note(Some(device), "device", &"none", &device.name);
                continue;
            };
            note(Some(device), "name", &then.name, &device.name);
            note(
                Some(device),
                "total_memory",
                &size(then.total_bytes),
                &size(device.total_bytes),
            );
            let idle = |device: &Device| device.turns.iter().find_map(|turn| turn.free_at_idle_bytes);
            if let (Some(then), Some(now)) = (idle(then), idle(device))
                && then.abs_diff(now) >= IDLE_BYTES
            {
                note(Some(device), "free_at_idle", &size(then), &size(now));
            }
            for turn in &device.turns {
                let fault = |turn: &Outcome| match &turn.fault {
                    Some(fault) => format!("{}: {}", turn.strategy, fault.words),
                    None => "none".to_owned(),
                };
                if let Some(earlier) = then.turns.iter().find(|earlier| earlier.strategy == turn.strategy) {
                    note(Some(device), "fault", &fault(earlier), &fault(turn));
                    prices.extend(changes(device, turn, earlier));
                }
            }
        }
        left.iter()
            .for_each(|device| note(Some(device), "device", &device.name, &"none"));
        prices.sort_by(|one: &PriceChange, other| other.ratio.total_cmp(&one.ratio));
        Comparison {
            made: before.made.clone(),
            baseline_passed: before.passed,
            differences,
            prices,
        }
    }
}

fn changes(device: &Device, now: &Outcome, before: &Outcome) -> Vec<PriceChange> {
    let change = |now_price: &Price| {
        let is_same = |then: &&Price| (&then.call, &then.size) == (&now_price.call, &now_price.size);
        let then = before.prices.iter().find(is_same)?;
        (then.count.min(now_price.count) >= FEWEST_CALLS).then(|| PriceChange {
            device: device.uuid.clone(),
            strategy: now.strategy.clone(),
            call: now_price.call.clone(),
            size: now_price.size.clone(),
            before_p50_ns: then.p50_ns,
            now_p50_ns: now_price.p50_ns,
            ratio: now_price.p50_ns as f64 / then.p50_ns.max(1) as f64,
        })
    };
    now.prices.iter().filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stress::outcome::{Fault, FaultKind};

    fn run(p50_ns: u64) -> Baseline {
        let price = |call: &str, count, p50_ns| Price {
            call: call.into(),
            size: "to 64 KiB".into(),
            count,
            p50_ns,
            p99_ns: p50_ns,
        };
        let turn = Outcome {
            strategy: "passthrough".into(),
            free_at_idle_bytes: Some(79 << 30),
            prices: vec![price("cuMemAlloc", 1000, p50_ns), price("cuMemMap", 3, p50_ns * 9)],
            ..Outcome::default()
        };
        let run = serde_json::json!({
            "vramshim_baseline": VERSION, "program": "0.1.0", "made": "2026-01-01T00:00:00Z", "seed": 1, "for_ms": 1000,
            "passed": true, "interrupted": false, "cuda_version": 13000, "driver": "580.00",
            "devices": [{
                "ordinal": 0, "uuid": "GPU-1", "name": "A", "total_bytes": 80_u64 << 30,
                "memory_bytes": 1 << 30, "turns": [turn],
            }],
        });
        serde_json::from_value(run).unwrap()
    }

    #[test]
    fn prices_of_many_calls_are_compared() {
        let told = Comparison::new(&run(1000), &run(2500));
        assert!(told.differences.is_empty(), "{told:?}");
        assert_eq!(told.prices.len(), 1, "prices of few calls are not compared");
        assert!(told.prices[0].is_worth_telling() && told.prices[0].ratio == 2.5);
    }

    #[test]
    fn each_thing_that_changed_is_named() {
        let (before, mut now) = (run(1000), run(1000));
        now.driver = Some("590.00".into());
        now.cuda_version = 13010;
        let device = &mut now.devices[0];
        device.name = "B".into();
        device.total_bytes -= 1 << 30;
        device.turns[0].free_at_idle_bytes = Some(70 << 30);
        device.turns[0].fault = Some(Fault::new(FaultKind::Died, "signal 11"));
        let whats = |before: &Baseline, now: &Baseline| {
            let told = Comparison::new(before, now).differences;
            told.iter().map(|one| (one.what, one.now == "none")).collect::<Vec<_>>()
        };
        let whats_of_one = [
            "driver",
            "cuda_version",
            "name",
            "total_memory",
            "free_at_idle",
            "fault",
        ];
        assert_eq!(whats(&before, &now), whats_of_one.map(|what| (what, false)));
        let mut two = run(1000);
        let second = Device {
            ordinal: 1,
            uuid: "GPU-2".into(),
            ..two.devices[0].clone()
        };
        two.devices.push(second);
        assert_eq!(whats(&two, &before), [("device", true)]);
        assert_eq!(whats(&before, &two), [("device", false)]);
    }
}
