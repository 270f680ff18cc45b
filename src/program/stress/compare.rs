//! Compares what a worker holds, the ledger, the driver and NVML at a rest point.
//!
//! The worker's count and the ledger must agree to the byte. Driver and NVML are compared by what their figures moved
//! since the worker's start, because the context, and the memory of others, are in them too. They may differ by the
//! `bound` and by what the driver's pages take beyond the bytes of a request.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::time::Duration;

use super::outcome::{Fault, FaultKind, Order};
use crate::analysis::host::Host;
use crate::analysis::nvml::{self, Listed};
use crate::render::format::{difference, size};

/// The time between two readings of figures that differ.
const BETWEEN_TRIES: Duration = Duration::from_millis(250);
/// Others are taken to hold still if their memory moved by less than this.
const STILL_BYTES: u64 = 1 << 20;

/// The bytes of a device by NVML: of all, of the worker and of all other processes. `None` if NVML does not say it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub used: u64,
    pub worker: Option<u64>,
    pub others: Option<u64>,
}

/// What NVML says, or why it says nothing.
pub type Asked = Result<Seen, String>;

/// What a comparison came to: `None` if the figures agree, or why they could not be compared.
pub type Compared = Result<Option<String>, Fault>;

/// What the books say while the worker rests. All sizes are in bytes.
#[derive(Clone, Debug)]
pub struct Rest {
    /// Whether all blocks were freed, and all memory was given back.
    pub is_empty: bool,
    /// What the worker holds by class of memory, and the ledger's requested bytes.
    pub classes: BTreeMap<&'static CStr, (u64, u64)>,
    /// The ledger's reserved bytes of the device.
    pub reserved: u64,
    /// Of `cuMemGetInfo`, without what is free inside pools of the library.
    pub free: u64,
    /// What the driver's pages may take beyond the ledger's bytes.
    pub slack: u64,
    pub nvml: Asked,
}

/// Asks NVML about the device of an order.
pub fn ask_nvml(order: &Order, host: &Host, worker: u32) -> Asked {
    let all = nvml::ask(host, std::slice::from_ref(&order.uuid), order.patience);
    let reading = all.and_then(|all| nvml::reading_of(&all, &order.uuid));
    let reading = reading.map_err(|why| why.to_string())?;
    let listed = reading.processes.as_deref().ok();
    let is_worker = |process: &&Listed| process.pid == worker;
    Ok(Seen {
        used: reading.used,
        worker: listed.and_then(|listed| listed.iter().find(is_worker)?.used),
        others: listed.and_then(|listed| listed.iter().filter(|one| !is_worker(one)).map(|one| one.used).sum()),
    })
}

/// Whether the figures of driver and NVML moved as the ledger did.
pub fn compare_device(bound: u64, start: &Rest, now: &Rest) -> Compared {
    let ledger = moved(now.reserved, start.reserved);
    let (least, most) = (ledger - bound as i64, ledger + (now.slack + bound) as i64);
    let check = |kind, what: &str, figure: i64| {
        let [is, ledger, from, to] = [figure, ledger, least, most].map(difference);
        let words = format!(
            "since the start {what} moved by {is}, and the ledger's reserved memory by {ledger}; accepted: {from} to {to}"
        );
        let agrees = (least..=most).contains(&figure);
        agrees.then_some(()).ok_or_else(|| Fault::new(kind, words))
    };
    let driver = moved(start.free, now.free);
    if let (Ok(then), Ok(now)) = (&start.nvml, &now.nvml) {
        if let (Some(then), Some(now)) = (then.worker, now.worker) {
            check(FaultKind::NvmlDiffers, "what NVML says of the worker", moved(now, then))?;
        }
        let nvml = moved(now.used, then.used);
        if nvml.abs_diff(driver) > bound {
            let [nvml, driver] = [nvml, driver].map(difference);
            let words = format!(
                "since the start the device's used memory moved by {nvml} by NVML, and by {driver} by cuMemGetInfo"
            );
            return Err(Fault::new(FaultKind::NvmlDiffers, words));
        }
    }
    let others = others_moved(&start.nvml, &now.nvml);
    let own = driver.saturating_sub(*others.as_ref().unwrap_or(&0));
    let what = "the used memory by cuMemGetInfo, without other processes,";
    match (check(FaultKind::DriverDiffers, what, own), others) {
        // If it agrees without a word of others, it agrees.
        (Ok(()), _) => Ok(None),
        (Err(_), Err(why)) => Ok(Some(why)),
        (Err(fault), Ok(_)) => Err(fault),
    }
}

/// Whether the device has back what the worker took. `before` is from the time before its context.
pub fn compare_end(bound: u64, before: &Asked, after: &Asked) -> Compared {
    let others = others_moved(before, after);
    let (Ok(then), Ok(now)) = (before, after) else {
        return Ok(others.err());
    };
    let kept = moved(now.used, then.used).saturating_sub(*others.as_ref().unwrap_or(&i64::MAX));
    let words = if now.worker.is_some() {
        "the worker has ended, but NVML still lists it".to_owned()
    } else if kept > bound as i64 {
        let kept = difference(kept);
        format!("after the worker's end the device has {kept} less than before its start")
    } else {
        return Ok(others.err());
    };
    Err(Fault::new(FaultKind::NotGivenBack, words))
}

/// Whether the ledger has what the worker holds, and nothing is left once all was freed.
pub fn compare_ledger(start: &Rest, now: &Rest) -> Result<(), Fault> {
    let apart = now.classes.iter().find(|(_, (own, ledger))| own != ledger);
    let words = match apart {
        Some((class, (own, ledger))) => {
            format!("the worker holds {own} bytes of class {class:?}, but the ledger has {ledger}")
        }
        None if now.is_empty && now.reserved > start.reserved => {
            let [now, then] = [now.reserved, start.reserved].map(size);
            format!("all memory was freed and trimmed, but the ledger has {now} reserved, and had {then} at the start")
        }
        None => return Ok(()),
    };
    Err(Fault::new(FaultKind::LedgerDiffers, words))
}

/// Reads figures until they agree or cannot be compared. Figures that differ are read again, because others may take
/// memory at the same moment. Each reading has the memory of others too, and a difference is a fault only if that stayed as
/// it was.
pub fn settle(tries: usize, mut read: impl FnMut() -> Result<(Compared, Asked), Fault>) -> Compared {
    let (mut least, mut most) = (u64::MAX, 0);
    for left in (0..tries).rev() {
        let (compared, nvml) = read()?;
        let Err(fault) = compared else { return compared };
        // If nothing is known of others, NVML's figures of the worker, and of the device, differ all the same.
        if let Some(bytes) = nvml.ok().and_then(|seen| seen.others) {
            (least, most) = (least.min(bytes), most.max(bytes));
        }
        if left == 0 && most.saturating_sub(least) < STILL_BYTES {
            return Err(fault);
        }
        std::thread::sleep(BETWEEN_TRIES);
    }
    Ok(Some("other processes took or freed memory at the same time".to_owned()))
}

fn moved(now: u64, then: u64) -> i64 {
    now.wrapping_sub(then) as i64
}

/// By how many bytes the memory of others moved, or why that is not known.
fn others_moved(then: &Asked, now: &Asked) -> Result<i64, String> {
    let others = |asked: &Asked| {
        let others = asked.as_ref().map_err(String::clone)?.others;
        others.ok_or_else(|| "NVML does not say what other processes hold of the device".to_owned())
    };
    Ok(moved(others(now)?, others(then)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const BOUND: u64 = 16 * MIB;

    /// A device of 1000 MiB. The worker reserved `own` and has a context of 10 MiB, others hold `others`.
    fn rest(own: u64, others: u64) -> Rest {
        let [own, others, context, total] = [own, others, 10, 1000].map(|mib| mib * MIB);
        let used = own + others + context;
        let (worker, others) = (Some(own + context), Some(others));
        Rest {
            is_empty: false,
            classes: BTreeMap::from([(c"linear", (own, own))]),
            reserved: own,
            free: total - used,
            slack: 0,
            nvml: Ok(Seen { used, worker, others }),
        }
    }

    /// What a driver with a fault does to the figures is in tests/stress.
    #[test]
    fn only_what_others_and_pages_explain_is_accepted() {
        let start = rest(0, 100);
        for others in [0, 100, 300] {
            assert_eq!(compare_device(BOUND, &start, &rest(200, others)), Ok(None));
        }
        let mut now = rest(200, 100);
        now.free -= 20 * MIB;
        now.nvml.as_mut().unwrap().used += 20 * MIB;
        assert_eq!(
            compare_device(BOUND, &start, &now).unwrap_err().kind,
            FaultKind::DriverDiffers
        );
        now.slack = 4 * MIB;
        assert_eq!(compare_device(BOUND, &start, &now), Ok(None));
        (now.free, now.nvml) = (start.free, Err("no NVML".to_owned()));
        assert_eq!(compare_device(BOUND, &start, &now), Ok(Some("no NVML".to_owned())));
    }

    #[test]
    fn the_ledger_must_agree_to_the_byte_and_be_empty_at_the_end() {
        let start = rest(0, 0);
        let agrees = |now: &Rest| compare_ledger(&start, now).is_ok();
        let mut now = rest(200, 0);
        assert!(agrees(&now));
        now.is_empty = true;
        assert!(!agrees(&now), "memory that is reserved");
        now = rest(0, 0);
        assert!(agrees(&now));
        now.classes.insert(c"linear", (200 * MIB, 200 * MIB + 1));
        assert!(!agrees(&now));
    }

    #[test]
    fn a_device_must_be_as_before() {
        let without = |others: u64, kept: u64| {
            let (used, others) = ((others + kept) * MIB, Some(others * MIB));
            Ok(Seen {
                used,
                worker: None,
                others,
            })
        };
        let before = without(100, 10);
        assert_eq!(compare_end(BOUND, &before, &without(300, 18)), Ok(None));
        for kept in [without(0, 30), rest(0, 0).nvml] {
            assert_eq!(
                compare_end(BOUND, &before, &kept).unwrap_err().kind,
                FaultKind::NotGivenBack
            );
        }
    }
}
