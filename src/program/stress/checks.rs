//! Compares what a worker holds, the ledger, the driver and NVML at a rest point.
//!
//! The worker's count and the ledger must agree to the byte. Driver and NVML are compared by what their figures moved
//! since the worker's start, because the context, and the memory of others, are in them too. They may differ by the
//! `bound` and by what the driver's pages take beyond the bytes of a request.

use super::fault::{Fault, Kind};
use super::message::{Phase, Rest};
use crate::analysis::nvml::Reading;
use crate::render::format::{difference, size};

/// A rest point, and what NVML said meanwhile.
#[derive(Clone, Debug)]
pub struct Moment {
    pub rest: Rest,
    pub nvml: Result<Reading, String>,
}

/// What a comparison came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Agree,
    Apart(Fault),
    /// It could not be compared, and why.
    Unknown(String),
}

/// Who is compared, and how closely.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The worker.
    pub pid: u32,
    /// The bytes by which figures may differ.
    pub bound: u64,
    /// Nobody else uses the device.
    pub alone: bool,
}

/// The bytes that NVML says of the worker; `None` if NVML does not say it.
pub fn of_worker(nvml: &Result<Reading, String>, pid: u32) -> Option<u64> {
    let listed = nvml.as_ref().ok()?.processes.as_ref().ok()?;
    listed.iter().find(|process| process.pid == pid)?.used
}

impl Terms {
    /// The bytes of all other processes; `None` if NVML does not say them.
    pub fn of_others(&self, nvml: &Result<Reading, String>) -> Option<u64> {
        if self.alone {
            return Some(0);
        }
        let listed = nvml.as_ref().ok()?.processes.as_ref().ok()?;
        let others = listed.iter().filter(|process| process.pid != self.pid);
        others.map(|process| process.used).sum()
    }

    /// Whether the ledger has what the worker holds, and nothing is left once all was freed.
    pub fn ledger(&self, start: &Rest, now: &Rest) -> Result<(), Fault> {
        for (class, own) in &now.own {
            let ledger = now.ledger.get(class).copied().unwrap_or_default();
            if ledger == *own {
                continue;
            }
            let (kind, words) = match now.phase {
                Phase::Live => (
                    Kind::LedgerDiffers,
                    format!("the worker holds {own} bytes of class {class}"),
                ),
                _ => (
                    Kind::NotFreed,
                    format!("the worker has freed all memory of class {class}"),
                ),
            };
            return Err(Fault::new(kind, format!("{words}, but the ledger has {ledger}")));
        }
        if now.phase == Phase::Empty && now.reserved > start.reserved {
            let words = format!(
                "all memory was freed and trimmed, but the ledger has {} reserved, and had {} at the start",
                size(now.reserved),
                size(start.reserved)
            );
            return Err(Fault::new(Kind::NotFreed, words));
        }
        Ok(())
    }

    /// Whether the figures of driver and NVML moved as the ledger did.
    pub fn device(&self, start: &Moment, now: &Moment) -> Verdict {
        let bound = i128::from(self.bound);
        let moved = |now: u64, then: u64| i128::from(now) - i128::from(then);
        let ledger = moved(now.rest.reserved, start.rest.reserved);
        let least = ledger - i128::from(now.rest.managed) - bound;
        let most = ledger + i128::from(now.rest.slack) + bound;
        let apart = |kind, what: &str, figure: i128| {
            let words = format!(
                "since the start {what} moved by {}, and the ledger's reserved memory by {}; accepted: {} to {}",
                signed(figure),
                signed(ledger),
                signed(least),
                signed(most)
            );
            Verdict::Apart(Fault::new(kind, words))
        };
        if now.rest.total != start.rest.total || now.rest.free > now.rest.total {
            let words = format!(
                "cuMemGetInfo tells {} free of {}, and told a total of {} at the start",
                size(now.rest.free),
                size(now.rest.total),
                size(start.rest.total)
            );
            return Verdict::Apart(Fault::new(Kind::DriverDiffers, words).in_call("cuMemGetInfo", 0));
        }
        let of_worker = |moment: &Moment| of_worker(&moment.nvml, self.pid);
        if let (Some(then), Some(now)) = (of_worker(start), of_worker(now)) {
            let nvml = moved(now, then);
            if nvml < least || nvml > most {
                return apart(Kind::NvmlDiffers, "what NVML says of the worker", nvml);
            }
        }
        let used = |rest: &Rest| rest.total - rest.free;
        let driver = moved(used(&now.rest), used(&start.rest));
        if let (Ok(then), Ok(of_now)) = (&start.nvml, &now.nvml) {
            let nvml = moved(of_now.used, then.used);
            if (nvml - driver).abs() > bound {
                let words = format!(
                    "since the start the used memory of the device moved by {} by NVML, and by {} by cuMemGetInfo",
                    signed(nvml),
                    signed(driver)
                );
                return Verdict::Apart(Fault::new(Kind::NvmlDiffers, words));
            }
        }
        let (Some(then), Some(others)) = (self.of_others(&start.nvml), self.of_others(&now.nvml)) else {
            return Verdict::Unknown(match &now.nvml {
                Err(why) => why.clone(),
                Ok(_) => "NVML does not say what other processes hold of the device".to_owned(),
            });
        };
        let own = driver - moved(others, then);
        match own < least || own > most {
            true => apart(
                Kind::DriverDiffers,
                "the used memory by cuMemGetInfo, without other processes,",
                own,
            ),
            false => Verdict::Agree,
        }
    }

    /// Whether the device has back what the worker took. `before` is from the time before its context.
    pub fn given_back(&self, before: &Result<Reading, String>, after: &Result<Reading, String>) -> Verdict {
        let (Ok(then), Ok(now)) = (before, after) else {
            let why = after.as_ref().err().or(before.as_ref().err());
            return Verdict::Unknown(why.cloned().unwrap_or_default());
        };
        if of_worker(after, self.pid).is_some() {
            let words = "the worker has ended, but NVML still lists it".to_owned();
            return Verdict::Apart(Fault::new(Kind::NotGivenBack, words));
        }
        let (Some(others_then), Some(others_now)) = (self.of_others(before), self.of_others(after)) else {
            return Verdict::Unknown("NVML does not say what other processes hold of the device".to_owned());
        };
        let used = |reading: &Reading, others: u64| i128::from(reading.used) - i128::from(others);
        let kept = used(now, others_now) - used(then, others_then);
        if kept <= i128::from(self.bound) {
            return Verdict::Agree;
        }
        let words = format!(
            "after the worker's end the device has {} less than before its start",
            signed(kept)
        );
        Verdict::Apart(Fault::new(Kind::NotGivenBack, words))
    }
}

fn signed(bytes: i128) -> String {
    difference(bytes.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::analysis::nvml::Listed;
    use crate::stress::message::Counts;

    const MIB: u64 = 1 << 20;
    const TERMS: Terms = Terms {
        pid: 7,
        bound: 16 * MIB,
        alone: false,
    };

    /// A device of 1000 MiB. The worker reserved `own` and has a context of 10 MiB, others hold `others`.
    fn moment(own: u64, others: u64) -> Moment {
        let used = (own + others + 10) * MIB;
        let listed = |pid, bytes: u64| Listed {
            pid,
            used: Some(bytes * MIB),
        };
        Moment {
            rest: Rest {
                round: 1,
                phase: Phase::Live,
                own: BTreeMap::from([("linear".to_owned(), own * MIB)]),
                ledger: BTreeMap::from([("linear".to_owned(), own * MIB)]),
                reserved: own * MIB,
                free: 1000 * MIB - used,
                total: 1000 * MIB,
                managed: 0,
                slack: 0,
                counts: Counts::default(),
            },
            nvml: Ok(Reading {
                total: 1000 * MIB,
                used,
                free: 1000 * MIB - used,
                reserved: 0,
                mig: false,
                layer: None,
                processes: Ok(vec![listed(7, own + 10), listed(8, others)]),
            }),
        }
    }

    fn kind_of(verdict: Verdict) -> Option<Kind> {
        match verdict {
            Verdict::Agree => None,
            Verdict::Apart(fault) => Some(fault.kind),
            Verdict::Unknown(why) => panic!("{why}"),
        }
    }

    #[test]
    fn figures_that_move_together_agree_whatever_others_take() {
        let start = moment(0, 100);
        for others in [0, 100, 300] {
            assert_eq!(TERMS.device(&start, &moment(200, others)), Verdict::Agree);
        }
    }

    #[test]
    fn a_figure_that_moves_otherwise_is_told() {
        let start = moment(0, 100);
        let mut stays = moment(200, 100);
        stays.rest.free = start.rest.free;
        assert_eq!(kind_of(TERMS.device(&start, &stays)), Some(Kind::NvmlDiffers));
        stays.nvml = Err("no NVML".into());
        assert_eq!(TERMS.device(&start, &stays), Verdict::Unknown("no NVML".into()));
        let alone = Terms { alone: true, ..TERMS };
        assert_eq!(kind_of(alone.device(&start, &stays)), Some(Kind::DriverDiffers));
        let mut leaks = moment(200, 100);
        leaks.rest.free -= 20 * MIB;
        if let Ok(reading) = &mut leaks.nvml {
            reading.used += 20 * MIB;
        }
        assert_eq!(kind_of(TERMS.device(&start, &leaks)), Some(Kind::DriverDiffers));
        leaks.rest.slack = 4 * MIB;
        assert_eq!(kind_of(TERMS.device(&start, &leaks)), None);
        let mut of_worker = moment(200, 100);
        if let Ok(Ok(processes)) = of_worker.nvml.as_mut().map(|reading| reading.processes.as_mut()) {
            processes[0].used = Some(100 * MIB);
        }
        assert_eq!(kind_of(TERMS.device(&start, &of_worker)), Some(Kind::NvmlDiffers));
        let mut total = moment(200, 100);
        total.rest.total += MIB;
        assert_eq!(kind_of(TERMS.device(&start, &total)), Some(Kind::DriverDiffers));
    }

    #[test]
    fn managed_memory_may_be_anywhere() {
        let (start, mut now) = (moment(0, 0), moment(200, 0));
        now.rest.free += 100 * MIB;
        if let Ok(reading) = &mut now.nvml {
            reading.used -= 100 * MIB;
            reading.processes = Ok(Vec::new());
        }
        assert_eq!(kind_of(TERMS.device(&start, &now)), Some(Kind::DriverDiffers));
        now.rest.managed = 150 * MIB;
        assert_eq!(TERMS.device(&start, &now), Verdict::Agree);
    }

    #[test]
    fn the_ledger_must_agree_to_the_byte_and_be_empty_at_the_end() {
        let start = moment(0, 0).rest;
        let mut now = moment(200, 0).rest;
        assert_eq!(TERMS.ledger(&start, &now), Ok(()));
        now.ledger.insert("linear".to_owned(), 200 * MIB + 1);
        let kind = |now: &Rest| TERMS.ledger(&start, now).err().map(|fault| fault.kind);
        assert_eq!(kind(&now), Some(Kind::LedgerDiffers));
        now.phase = Phase::Empty;
        assert_eq!(kind(&now), Some(Kind::NotFreed));
        let mut empty = moment(0, 0).rest;
        empty.phase = Phase::Empty;
        assert_eq!(kind(&empty), None);
        empty.reserved = 1;
        assert_eq!(kind(&empty), Some(Kind::NotFreed));
    }

    #[test]
    fn a_device_must_be_as_before() {
        let without = |others, kept: u64| {
            let mut reading = moment(0, others).nvml.unwrap();
            reading.processes.as_mut().unwrap().remove(0);
            reading.used += kept * MIB;
            Ok(reading)
        };
        let before = without(100, 0);
        assert_eq!(TERMS.given_back(&before, &without(300, 8)), Verdict::Agree);
        assert_eq!(
            kind_of(TERMS.given_back(&before, &without(0, 20))),
            Some(Kind::NotGivenBack)
        );
        assert_eq!(
            kind_of(TERMS.given_back(&before, &moment(0, 0).nvml)),
            Some(Kind::NotGivenBack)
        );
    }
}
