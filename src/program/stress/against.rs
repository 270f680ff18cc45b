//! Compares a run with a baseline of an earlier one.

use std::collections::BTreeMap;

use serde::Serialize;

use super::baseline::{Baseline, Device};
use crate::render::format::{count, size};

/// Prices of fewer calls than this are not compared.
const FEWEST_CALLS: u64 = 20;
/// A price that changed by less than this factor is not told.
const WORTH_TELLING: f64 = 1.5;
/// Free memory at idle that moved by less is not told.
const IDLE_BYTES: u64 = 64 << 20;

/// Something that is not as it was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The UUID of the device; `null` for what concerns all.
    pub device: Option<String>,
    pub what: What,
    pub before: String,
    pub now: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    Driver,
    CudaVersion,
    Program,
    /// The baseline has a device that this run did not have, or the reverse.
    DeviceGone,
    DeviceNew,
    Name,
    TotalMemory,
    FreeAtIdle,
    Fault,
}

impl What {
    pub fn words(self) -> &'static str {
        match self {
            What::Driver => "driver",
            What::CudaVersion => "version of CUDA",
            What::Program => "version of vramshim",
            What::DeviceGone | What::DeviceNew => "device",
            What::Name => "name",
            What::TotalMemory => "memory in all",
            What::FreeAtIdle => "free memory at idle",
            What::Fault => "fault",
        }
    }
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
    /// More than `--slower`.
    pub fails: bool,
}

impl PriceChange {
    pub fn is_worth_telling(&self) -> bool {
        self.fails || self.ratio >= WORTH_TELLING || self.ratio <= 1.0 / WORTH_TELLING
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
    pub fn fails(&self) -> bool {
        self.prices.iter().any(|price| price.fails)
    }

    /// `slower` is the ratio of prices from which on the comparison fails. Only the devices that this run chose are looked
    /// for, if `chosen` is true.
    pub fn of(before: &Baseline, now: &Baseline, slower: Option<f64>, chosen: bool) -> Comparison {
        let mut differences = Vec::new();
        let mut note = |device: Option<&Device>, what, before: &dyn ToString, now: &dyn ToString| {
            let (before, now) = (before.to_string(), now.to_string());
            if before != now {
                differences.push(Difference {
                    device: device.map(|device| device.uuid.clone()),
                    what,
                    before,
                    now,
                });
            }
        };
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "not known".to_owned());
        note(None, What::Driver, &or_none(&before.driver), &or_none(&now.driver));
        note(None, What::CudaVersion, &before.cuda_version, &now.cuda_version);
        note(None, What::Program, &before.program, &now.program);
        let mut prices = Vec::new();
        let mut left: Vec<&Device> = before.devices.iter().collect();
        for device in &now.devices {
            let Some(at) = place_of(&left, device) else {
                note(Some(device), What::DeviceNew, &"none", &device.name);
                continue;
            };
            let then = left.remove(at);
            note(Some(device), What::Name, &then.name, &device.name);
            note(
                Some(device),
                What::TotalMemory,
                &size(then.total_bytes),
                &size(device.total_bytes),
            );
            if let (Some(then), Some(now)) = (then.free_at_idle_bytes, device.free_at_idle_bytes)
                && then.abs_diff(now) >= IDLE_BYTES
            {
                note(Some(device), What::FreeAtIdle, &size(then), &size(now));
            }
            for turn in &device.turns {
                let earlier = then.turns.iter().find(|earlier| earlier.strategy == turn.strategy);
                let words = |turn: &super::baseline::Turn| match &turn.fault {
                    Some(told) => format!("{}: {}", turn.strategy, told.fault.words),
                    None => "none".to_owned(),
                };
                if let Some(earlier) = earlier {
                    note(Some(device), What::Fault, &words(earlier), &words(turn));
                    prices.extend(changes(device, turn, earlier, slower));
                }
            }
        }
        // A device of another place in the machine is another one. A run of chosen devices leaves the others out.
        for device in left.iter().filter(|_| !chosen) {
            note(Some(device), What::DeviceGone, &device.name, &"none");
        }
        prices.sort_by(|one: &PriceChange, other| other.ratio.total_cmp(&one.ratio));
        Comparison {
            made: before.made.clone(),
            baseline_passed: before.passed,
            differences,
            prices,
        }
    }

    /// For people, which prices were compared.
    pub fn prices_in_words(&self) -> String {
        let told = self.prices.iter().filter(|price| price.is_worth_telling()).count();
        format!(
            "{} of {} prices changed by a factor of {WORTH_TELLING} or more",
            count(told as u64),
            count(self.prices.len() as u64)
        )
    }
}

/// The device of the baseline that is compared with this one: the same, or else the one at its place, if the machine is
/// another one.
fn place_of(devices: &[&Device], device: &Device) -> Option<usize> {
    let same = devices.iter().position(|then| then.uuid == device.uuid);
    same.or_else(|| devices.iter().position(|then| then.ordinal == device.ordinal))
}

fn changes(
    device: &Device,
    now: &super::baseline::Turn,
    before: &super::baseline::Turn,
    slower: Option<f64>,
) -> Vec<PriceChange> {
    let known = before.prices.iter().filter(|price| price.count >= FEWEST_CALLS);
    let known: BTreeMap<(&str, &str), u64> = known
        .map(|price| ((price.call.as_str(), price.size.as_str()), price.p50_ns))
        .collect();
    let of_now = now.prices.iter().filter(|price| price.count >= FEWEST_CALLS);
    let change = |price: &super::prices::Price| {
        let then = *known.get(&(price.call.as_str(), price.size.as_str()))?;
        let ratio = price.p50_ns as f64 / then.max(1) as f64;
        Some(PriceChange {
            device: device.uuid.clone(),
            strategy: now.strategy.clone(),
            call: price.call.clone(),
            size: price.size.clone(),
            before_p50_ns: then,
            now_p50_ns: price.p50_ns,
            ratio,
            fails: slower.is_some_and(|slower| ratio > slower),
        })
    };
    of_now.filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stress::baseline::Turn;
    use crate::stress::fault::{Fault, Kind};
    use crate::stress::message::Counts;
    use crate::stress::prices::Price;

    fn run(p50_ns: u64) -> Baseline {
        let price = |call: &str, count, p50_ns| Price {
            call: call.into(),
            size: "to 64 KiB".into(),
            count,
            p50_ns,
            p99_ns: p50_ns,
        };
        Baseline {
            version: Baseline::version(),
            program: "0.1.0".into(),
            made: "2026-01-01T00:00:00Z".into(),
            seed: 1,
            for_ms: 1000,
            passed: true,
            interrupted: false,
            cuda_version: 13000,
            driver: Some("580.00".into()),
            devices: vec![Device {
                ordinal: 0,
                uuid: "GPU-1".into(),
                name: "A".into(),
                total_bytes: 80 << 30,
                free_at_idle_bytes: Some(79 << 30),
                context_bytes: None,
                memory_bytes: 1 << 30,
                turns: vec![Turn {
                    strategy: "passthrough".into(),
                    rounds: 2,
                    counts: Counts::default(),
                    compared: 4,
                    not_compared: 0,
                    why_not_compared: Vec::new(),
                    left_out: Vec::new(),
                    fault: None,
                    prices: vec![price("cuMemAlloc", 1000, p50_ns), price("cuMemMap", 3, p50_ns * 9)],
                }],
            }],
        }
    }

    #[test]
    fn only_a_threshold_that_was_given_fails() {
        let told = Comparison::of(&run(1000), &run(2500), None, false);
        assert!(!told.fails() && told.differences.is_empty(), "{told:?}");
        assert_eq!(told.prices.len(), 1, "prices of few calls are not compared");
        assert!(told.prices[0].is_worth_telling() && told.prices[0].ratio == 2.5);
        assert!(Comparison::of(&run(1000), &run(2500), Some(2.0), false).fails());
        assert!(!Comparison::of(&run(1000), &run(2500), Some(3.0), false).fails());
        assert!(!Comparison::of(&run(1000), &run(1000), Some(1.1), false).fails());
    }

    #[test]
    fn each_thing_that_changed_is_named() {
        let (before, mut now) = (run(1000), run(1000));
        now.driver = Some("590.00".into());
        now.cuda_version = 13010;
        let device = &mut now.devices[0];
        device.name = "B".into();
        device.total_bytes -= 1 << 30;
        device.free_at_idle_bytes = Some(70 << 30);
        device.turns[0].fault = Some(crate::stress::baseline::Told {
            fault: Fault::new(Kind::Died, "signal 11".into()),
            round: 1,
            again: String::new(),
            folder: String::new(),
        });
        let whats = |told: Comparison| told.differences.iter().map(|one| one.what).collect::<Vec<_>>();
        let of_device = [What::Name, What::TotalMemory, What::FreeAtIdle, What::Fault];
        let expected = [&[What::Driver, What::CudaVersion][..], &of_device].concat();
        assert_eq!(whats(Comparison::of(&before, &now, None, false)), expected);
        let mut two = run(1000);
        two.devices.push(Device {
            ordinal: 1,
            uuid: "GPU-2".into(),
            ..two.devices[0].clone()
        });
        assert_eq!(whats(Comparison::of(&two, &before, None, false)), [What::DeviceGone]);
        assert_eq!(whats(Comparison::of(&two, &before, None, true)), []);
        assert_eq!(whats(Comparison::of(&before, &two, None, false)), [What::DeviceNew]);
    }
}
