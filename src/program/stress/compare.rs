//! Compares what a worker holds, the ledger, the driver and NVML at a rest point.
//!
//! The worker's count and the ledger must agree to the byte. Driver and NVML are compared by what their figures moved
//! since the worker's start, because the context, and the memory of others, are in them too. They may differ by the
//! `bound` and by what the driver's pages take beyond the bytes of a request.

use std::collections::BTreeMap;
use std::time::Duration;

use super::outcome::{Fault, FaultKind};
use crate::analysis::nvml::{Reading, Unanswered};
use crate::render::format::{difference, size};

/// The time between two readings of figures that differ.
const BETWEEN_TRIES: Duration = Duration::from_millis(250);
/// Others are taken to hold still if their memory moved by less than this.
const STILL_BYTES: u64 = 1 << 20;
const OTHERS_NOT_KNOWN: &str = "NVML does not say what other processes hold of the device";

/// What NVML says of a device, or why it says nothing.
pub type Asked = Result<Reading, Unanswered>;

/// What a comparison came to: `None` if the figures agree, or why they could not be compared.
pub type Compared = Result<Option<String>, Fault>;

/// What the books say while the worker rests. All sizes are in bytes.
#[derive(Clone, Debug)]
pub struct Rest {
    /// Whether all blocks were freed, and all memory was given back.
    pub is_empty: bool,
    /// What the worker holds by class of memory, and the ledger's requested bytes.
    pub classes: BTreeMap<&'static str, (u64, u64)>,
    /// The ledger's reserved bytes of the device.
    pub reserved: u64,
    /// Of `cuMemGetInfo`, without what is free inside pools of the library.
    pub free: u64,
    pub total: u64,
    /// What the driver's pages may take beyond the ledger's bytes.
    pub slack: u64,
    pub nvml: Asked,
}

/// Who is compared, and how closely.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The worker.
    pub pid: u32,
    /// The bytes by which figures may differ.
    pub bound: u64,
}

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

    /// Whether the figures of driver and NVML moved as the ledger did.
    pub fn device(self, start: &Rest, now: &Rest) -> Compared {
        let bound = i128::from(self.bound);
        let ledger = moved(now.reserved, start.reserved);
        let accepted = ledger - bound..=ledger + i128::from(now.slack) + bound;
        let apart = |kind, what: &str, figure: i128| {
            let [figure, ledger, least, most] = [figure, ledger, *accepted.start(), *accepted.end()].map(signed);
            let words = format!(
                "since the start {what} moved by {figure}, and the ledger's reserved memory by {ledger}; accepted: \
                 {least} to {most}"
            );
            Err(Fault::new(kind, words))
        };
        if now.total != start.total || now.free > now.total {
            let [free, total, then] = [now.free, now.total, start.total].map(size);
            let words = format!("cuMemGetInfo tells {free} free of {total}, and told a total of {then} at the start");
            return Err(Fault::new(FaultKind::DriverDiffers, words).in_call("cuMemGetInfo", 0));
        }
        if let (Some(then), Some(now)) = (self.of_worker(&start.nvml), self.of_worker(&now.nvml)) {
            let nvml = moved(now, then);
            if !accepted.contains(&nvml) {
                return apart(FaultKind::NvmlDiffers, "what NVML says of the worker", nvml);
            }
        }
        let driver = moved(start.free, now.free);
        if let (Ok(then), Ok(now)) = (&start.nvml, &now.nvml) {
            let nvml = moved(now.used, then.used);
            if (nvml - driver).abs() > bound {
                let words = format!(
                    "since the start the used memory of the device moved by {} by NVML, and by {} by cuMemGetInfo",
                    signed(nvml),
                    signed(driver)
                );
                return Err(Fault::new(FaultKind::NvmlDiffers, words));
            }
        }
        let others = self.of_others(&now.nvml).zip(self.of_others(&start.nvml));
        let own = driver - others.map_or(0, |(now, then)| moved(now, then));
        match (accepted.contains(&own), others, &now.nvml) {
            // If it agrees without a word of others, it agrees.
            (true, ..) => Ok(None),
            (false, None, Err(why)) => Ok(Some(why.to_string())),
            (false, None, Ok(_)) => Ok(Some(OTHERS_NOT_KNOWN.to_owned())),
            (false, Some(_), _) => {
                let what = "the used memory by cuMemGetInfo, without other processes,";
                apart(FaultKind::DriverDiffers, what, own)
            }
        }
    }

    /// Whether the device has back what the worker took. `before` is from the time before its context.
    pub fn given_back(self, before: &Asked, after: &Asked) -> Compared {
        let (then, now) = match (before, after) {
            (Ok(then), Ok(now)) => (then, now),
            (_, Err(why)) | (Err(why), _) => return Ok(Some(why.to_string())),
        };
        if self.of_worker(after).is_some() {
            let words = "the worker has ended, but NVML still lists it";
            return Err(Fault::new(FaultKind::NotGivenBack, words));
        }
        let (Some(others_then), Some(others_now)) = (self.of_others(before), self.of_others(after)) else {
            return Ok(Some(OTHERS_NOT_KNOWN.to_owned()));
        };
        let kept = moved(now.used, then.used) - moved(others_now, others_then);
        if kept <= i128::from(self.bound) {
            return Ok(None);
        }
        let kept = signed(kept);
        let words = format!("after the worker's end the device has {kept} less than before its start");
        Err(Fault::new(FaultKind::NotGivenBack, words))
    }
}

/// Whether the ledger has what the worker holds, and nothing is left once all was freed.
pub fn compare_ledger(start: &Rest, now: &Rest) -> Result<(), Fault> {
    let apart = now.classes.iter().find(|(_, (own, ledger))| own != ledger);
    if let Some((class, (own, ledger))) = apart {
        let kind = if now.is_empty {
            FaultKind::NotFreed
        } else {
            FaultKind::LedgerDiffers
        };
        let words = format!("the worker holds {own} bytes of class {class}, but the ledger has {ledger}");
        return Err(Fault::new(kind, words));
    }
    if now.is_empty && now.reserved > start.reserved {
        let [now, then] = [now.reserved, start.reserved].map(size);
        let words =
            format!("all memory was freed and trimmed, but the ledger has {now} reserved, and had {then} at the start");
        return Err(Fault::new(FaultKind::NotFreed, words));
    }
    Ok(())
}

/// Reads figures until they agree or cannot be compared. Figures that differ are read again, because others may take
/// memory at the same moment. Each reading has the memory of others too, and a difference is a fault only if that stayed as
/// it was.
pub fn settle(tries: usize, mut read: impl FnMut() -> Result<(Compared, Option<u64>), Fault>) -> Compared {
    let (mut least, mut most) = (u64::MAX, 0);
    for left in (0..tries).rev() {
        let (compared, of_others) = read()?;
        let Err(fault) = compared else { return compared };
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
    use super::*;
    use crate::analysis::nvml::Listed;

    const MIB: u64 = 1 << 20;
    const TERMS: Terms = Terms {
        pid: 7,
        bound: 16 * MIB,
    };

    /// A device of 1000 MiB. The worker reserved `own` and has a context of 10 MiB, others hold `others`.
    fn rest(own: u64, others: u64) -> Rest {
        let used = (own + others + 10) * MIB;
        let (total, free) = (1000 * MIB, 1000 * MIB - used);
        let listed = |pid, bytes: u64| Listed {
            pid,
            used: Some(bytes * MIB),
        };
        let processes = Ok(vec![listed(7, own + 10), listed(8, others)]);
        Rest {
            is_empty: false,
            classes: BTreeMap::from([("linear", (own * MIB, own * MIB))]),
            reserved: own * MIB,
            free,
            total,
            slack: 0,
            nvml: Ok(Reading {
                total,
                used,
                free,
                reserved: 0,
                mig: false,
                layer: None,
                processes,
            }),
        }
    }

    fn kind(compared: Compared) -> Option<FaultKind> {
        compared.map_or_else(|fault| Some(fault.kind), |why| why.map(|why| panic!("{why}")))
    }

    /// What a driver with a fault does to the figures is in tests/stress.
    #[test]
    fn only_what_others_and_pages_explain_is_accepted() {
        let start = rest(0, 100);
        let compared = |others, change: &dyn Fn(&mut Rest)| {
            let mut now = rest(200, others);
            change(&mut now);
            TERMS.device(&start, &now)
        };
        for others in [0, 100, 300] {
            assert_eq!(compared(others, &|_| ()), Ok(None));
        }
        let stays = |now: &mut Rest| {
            now.free = start.free;
            now.nvml = Err(Unanswered::Old);
        };
        assert_eq!(compared(100, &stays), Ok(Some(Unanswered::Old.to_string())));
        let leaks = |now: &mut Rest| {
            now.free -= 20 * MIB;
            now.nvml.as_mut().unwrap().used += 20 * MIB;
        };
        assert_eq!(kind(compared(100, &leaks)), Some(FaultKind::DriverDiffers));
        let by_pages = |now: &mut Rest| (leaks(now), now.slack = 4 * MIB).1;
        assert_eq!(compared(100, &by_pages), Ok(None));
    }

    #[test]
    fn the_ledger_must_agree_to_the_byte_and_be_empty_at_the_end() {
        let start = rest(0, 0);
        let kind = |now: &Rest| compare_ledger(&start, now).err().map(|fault| fault.kind);
        let mut now = rest(200, 0);
        assert_eq!(kind(&now), None);
        now.classes.insert("linear", (200 * MIB, 200 * MIB + 1));
        assert_eq!(kind(&now), Some(FaultKind::LedgerDiffers));
        now.is_empty = true;
        assert_eq!(kind(&now), Some(FaultKind::NotFreed));
        let mut empty = Rest {
            is_empty: true,
            ..rest(0, 0)
        };
        assert_eq!(kind(&empty), None);
        empty.reserved = 1;
        assert_eq!(kind(&empty), Some(FaultKind::NotFreed));
    }

    #[test]
    fn a_device_must_be_as_before() {
        let without = |others, kept: u64| {
            let mut reading = rest(0, others).nvml.unwrap();
            reading.processes.as_mut().unwrap().remove(0);
            reading.used += kept * MIB;
            Ok(reading)
        };
        let before = without(100, 0);
        assert_eq!(TERMS.given_back(&before, &without(300, 8)), Ok(None));
        for kept in [without(0, 20), rest(0, 0).nvml] {
            assert_eq!(kind(TERMS.given_back(&before, &kept)), Some(FaultKind::NotGivenBack));
        }
    }
}
