//! Compares what a worker holds, the ledger, the driver and NVML at a rest point.
//!
//! The worker's count and the ledger must agree to the byte. Driver and NVML are compared by what their figures moved
//! since the worker's start, because the context, and the memory of others, are in them too. They may differ by the
//! `bound` and by what the driver's pages take beyond the bytes of a request.

use std::time::Duration;

use super::outcome::{Fault, FaultKind, Rest};
use crate::analysis::nvml::{Reading, Unanswered};
use crate::render::format::{difference, size};

/// The time between two readings of figures that differ.
const BETWEEN_TRIES: Duration = Duration::from_millis(250);
/// Others are taken to hold still if their memory moved by less than this.
const STILL_BYTES: u64 = 1 << 20;

/// What NVML says of a device, or why it says nothing.
pub type Asked = Result<Reading, Unanswered>;

/// A rest point, and what NVML said meanwhile.
#[derive(Clone, Debug)]
pub struct Moment {
    pub rest: Rest,
    pub nvml: Asked,
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
}

const OTHERS_NOT_KNOWN: &str = "NVML does not say what other processes hold of the device";

impl Terms {
    /// The bytes that NVML says of the worker; `None` if NVML does not say it.
    pub fn of_worker(self, nvml: &Asked) -> Option<u64> {
        let listed = nvml.as_ref().ok()?.processes.as_ref().ok()?;
        listed.iter().find(|process| process.pid == self.pid)?.used
    }

    /// The bytes of all other processes; `None` if NVML does not say them.
    pub fn of_others(self, nvml: &Asked) -> Option<u64> {
        let listed = nvml.as_ref().ok()?.processes.as_ref().ok()?;
        let others = listed.iter().filter(|process| process.pid != self.pid);
        others.map(|process| process.used).sum()
    }

    /// Whether the ledger has what the worker holds, and nothing is left once all was freed.
    pub fn ledger(self, start: &Rest, now: &Rest) -> Result<(), Fault> {
        for (class, own) in &now.own {
            let ledger = now.ledger.get(class).copied().unwrap_or_default();
            if ledger != *own {
                let kind = if now.is_empty {
                    FaultKind::NotFreed
                } else {
                    FaultKind::LedgerDiffers
                };
                let words = format!("the worker holds {own} bytes of class {class}, but the ledger has {ledger}");
                return Err(Fault::new(kind, words));
            }
        }
        if now.is_empty && now.reserved > start.reserved {
            let (now, then) = (size(now.reserved), size(start.reserved));
            let words = format!(
                "all memory was freed and trimmed, but the ledger has {now} reserved, and had {then} at the start"
            );
            return Err(Fault::new(FaultKind::NotFreed, words));
        }
        Ok(())
    }

    /// Whether the figures of driver and NVML moved as the ledger did.
    pub fn device(self, start: &Moment, now: &Moment) -> Verdict {
        let bound = i128::from(self.bound);
        let ledger = moved(now.rest.reserved, start.rest.reserved);
        let accepted = ledger - bound..=ledger + i128::from(now.rest.slack) + bound;
        let apart = |kind, what: &str, figure: i128| {
            let [figure, ledger, least, most] = [figure, ledger, *accepted.start(), *accepted.end()].map(signed);
            let words = format!(
                "since the start {what} moved by {figure}, and the ledger's reserved memory by {ledger}; accepted: \
                 {least} to {most}"
            );
            Verdict::Apart(Fault::new(kind, words))
        };
        if now.rest.total != start.rest.total || now.rest.free > now.rest.total {
            let [free, total, then] = [now.rest.free, now.rest.total, start.rest.total].map(size);
            let words = format!("cuMemGetInfo tells {free} free of {total}, and told a total of {then} at the start");
            return Verdict::Apart(Fault::new(FaultKind::DriverDiffers, words).in_call("cuMemGetInfo", 0));
        }
        if let (Some(then), Some(now)) = (self.of_worker(&start.nvml), self.of_worker(&now.nvml)) {
            let nvml = moved(now, then);
            if !accepted.contains(&nvml) {
                return apart(FaultKind::NvmlDiffers, "what NVML says of the worker", nvml);
            }
        }
        let driver = moved(start.rest.free, now.rest.free);
        if let (Ok(then), Ok(now)) = (&start.nvml, &now.nvml) {
            let nvml = moved(now.used, then.used);
            if (nvml - driver).abs() > bound {
                let [nvml, driver] = [nvml, driver].map(signed);
                let words = format!(
                    "since the start the used memory of the device moved by {nvml} by NVML, and by {driver} by \
                     cuMemGetInfo"
                );
                return Verdict::Apart(Fault::new(FaultKind::NvmlDiffers, words));
            }
        }
        let others = self.of_others(&now.nvml).zip(self.of_others(&start.nvml));
        let own = driver - others.map_or(0, |(now, then)| moved(now, then));
        match (accepted.contains(&own), others, &now.nvml) {
            // If it agrees without a word of others, it agrees.
            (true, ..) => Verdict::Agree,
            (false, None, Err(why)) => Verdict::Unknown(why.to_string()),
            (false, None, Ok(_)) => Verdict::Unknown(OTHERS_NOT_KNOWN.to_owned()),
            (false, Some(_), _) => apart(
                FaultKind::DriverDiffers,
                "the used memory by cuMemGetInfo, without other processes,",
                own,
            ),
        }
    }

    /// Whether the device has back what the worker took. `before` is from the time before its context.
    pub fn given_back(self, before: &Asked, after: &Asked) -> Verdict {
        let (then, now) = match (before, after) {
            (Ok(then), Ok(now)) => (then, now),
            (_, Err(why)) | (Err(why), _) => return Verdict::Unknown(why.to_string()),
        };
        let apart = |words: String| Verdict::Apart(Fault::new(FaultKind::NotGivenBack, words));
        if self.of_worker(after).is_some() {
            return apart("the worker has ended, but NVML still lists it".to_owned());
        }
        let (Some(others_then), Some(others_now)) = (self.of_others(before), self.of_others(after)) else {
            return Verdict::Unknown(OTHERS_NOT_KNOWN.to_owned());
        };
        let kept = moved(now.used, then.used) - moved(others_now, others_then);
        if kept <= i128::from(self.bound) {
            return Verdict::Agree;
        }
        apart(format!(
            "after the worker's end the device has {} less than before its start",
            signed(kept)
        ))
    }
}

/// Reads figures until they agree or cannot be compared. Figures that differ are read again, because others may take
/// memory at the same moment. Each reading has the memory of others too, and a difference is a fault only if that stayed as
/// it was. Returns why the figures could not be compared.
pub fn settle(
    tries: usize,
    mut read: impl FnMut() -> Result<(Verdict, Option<u64>), Fault>,
) -> Result<Option<String>, Fault> {
    let (mut least, mut most) = (u64::MAX, 0);
    for left in (0..tries).rev() {
        let (verdict, of_others) = read()?;
        let fault = match verdict {
            Verdict::Agree => return Ok(None),
            Verdict::Unknown(why) => return Ok(Some(why)),
            Verdict::Apart(fault) => fault,
        };
        // If nothing is known of others, NVML's figures of the worker, and of the device, differ all the same.
        if let Some(bytes) = of_others {
            (least, most) = (least.min(bytes), most.max(bytes));
        }
        if left == 0 && most.saturating_sub(least) < STILL_BYTES {
            return Err(fault);
        }
        std::thread::sleep(BETWEEN_TRIES);
    }
    Ok(Some("other processes took or freed memory at the same time".to_owned()))
}

fn moved(now: u64, then: u64) -> i128 {
    i128::from(now) - i128::from(then)
}

fn signed(bytes: i128) -> String {
    difference(bytes.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::analysis::nvml::Listed;

    const MIB: u64 = 1 << 20;
    const TERMS: Terms = Terms {
        pid: 7,
        bound: 16 * MIB,
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
                is_empty: false,
                own: BTreeMap::from([("linear", own * MIB)]),
                ledger: BTreeMap::from([("linear", own * MIB)]),
                reserved: own * MIB,
                free: 1000 * MIB - used,
                total: 1000 * MIB,
                slack: 0,
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

    fn kind(verdict: Verdict) -> Option<FaultKind> {
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
        let mut without_nvml = moment(200, 100);
        without_nvml.nvml = Err(Unanswered::Old);
        assert_eq!(TERMS.device(&start, &without_nvml), Verdict::Agree);
    }

    #[test]
    fn a_figure_that_moves_otherwise_is_told() {
        let start = moment(0, 100);
        let changed = |change: &dyn Fn(&mut Rest, &mut Reading)| {
            let mut moment = moment(200, 100);
            let mut reading = moment.nvml.clone().unwrap();
            change(&mut moment.rest, &mut reading);
            moment.nvml = Ok(reading);
            moment
        };
        let mut stays = changed(&|rest, _| rest.free = start.rest.free);
        assert_eq!(kind(TERMS.device(&start, &stays)), Some(FaultKind::NvmlDiffers));
        stays.nvml = Err(Unanswered::Old);
        assert_eq!(
            TERMS.device(&start, &stays),
            Verdict::Unknown(Unanswered::Old.to_string())
        );
        let mut leaks = changed(&|rest, reading| {
            rest.free -= 20 * MIB;
            reading.used += 20 * MIB;
        });
        assert_eq!(kind(TERMS.device(&start, &leaks)), Some(FaultKind::DriverDiffers));
        leaks.rest.slack = 4 * MIB;
        assert_eq!(kind(TERMS.device(&start, &leaks)), None);
        let of_worker = changed(&|_, reading| reading.processes.as_mut().unwrap()[0].used = Some(100 * MIB));
        assert_eq!(kind(TERMS.device(&start, &of_worker)), Some(FaultKind::NvmlDiffers));
        let total = changed(&|rest, _| rest.total += MIB);
        assert_eq!(kind(TERMS.device(&start, &total)), Some(FaultKind::DriverDiffers));
    }

    #[test]
    fn the_ledger_must_agree_to_the_byte_and_be_empty_at_the_end() {
        let start = moment(0, 0).rest;
        let mut now = moment(200, 0).rest;
        assert_eq!(TERMS.ledger(&start, &now), Ok(()));
        now.ledger.insert("linear", 200 * MIB + 1);
        let kind = |now: &Rest| TERMS.ledger(&start, now).err().map(|fault| fault.kind);
        assert_eq!(kind(&now), Some(FaultKind::LedgerDiffers));
        now.is_empty = true;
        assert_eq!(kind(&now), Some(FaultKind::NotFreed));
        let mut empty = moment(0, 0).rest;
        empty.is_empty = true;
        assert_eq!(kind(&empty), None);
        empty.reserved = 1;
        assert_eq!(kind(&empty), Some(FaultKind::NotFreed));
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
        for kept in [without(0, 20), moment(0, 0).nvml] {
            assert_eq!(kind(TERMS.given_back(&before, &kept)), Some(FaultKind::NotGivenBack));
        }
    }
}
