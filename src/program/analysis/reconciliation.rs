//! Balance, driver and NVML side by side: each byte of difference under a name, and never more under a name than there is
//! evidence for.
//!
//! NVML's figure for a process, less what its ledger has reserved, is the *excess*. It is explained in this order, each
//! step taking at most what its evidence allows and leaving the rest to the next:
//!
//! 1. **context**: what the driver holds for the process's contexts. Evidence is the excess in the first measurement of
//!    the device (`Kind::Measured`, taken right after its context came to be), or less where a context went since. Where
//!    NVML did not speak then: all that the device ever had outside of the ledger, at its least, if nobody else is known
//!    to have had memory there by then and it is no more than a context can plausibly be (`PLAUSIBLE_CONTEXT`). Where
//!    somebody had: as much as the context of another process on the same device, because one driver makes them alike.
//! 2. **rounding**: the driver obtains physical memory by pages; at most what is left of pages that the ledger's memory
//!    covers in part (`slack`).
//! 3. **module code**: growth since the context was measured, at most the GPU code in the files that the process has
//!    mapped (`device_code`). None where the context is not known, because then nothing shows growth.
//! 4. **managed**: where there is less than the ledger has, managed memory that lies in host memory instead (negative).
//! 5. **unknown**: the rest. Negative where the ledger has more than the driver.
//!
//! The first three are what can be so at most, hence *unknown* is what nothing at all explains. Of a device, what NVML
//! says is used = for each process under the library: reserved, context, rounding, module code and managed; then other
//! processes, and unknown. What a policy keeps for later is in reserved, and named there: free inside.

use super::device_ledger::DeviceLedger;
use super::measurements::{Balance, Measurement, Measurements};

/// The most that the contexts of one process are believed to take, where only the driver's figure for the whole device
/// tells. Contexts of current GPUs take 0.2 to 0.7 GiB.
pub const PLAUSIBLE_CONTEXT: u64 = 1 << 30;

/// How a context's bytes are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// NVML's figure for the process at the first measurement.
    Nvml,
    /// The driver's figure for the device at its least, while nobody else was known to be there.
    Device,
    /// The context of another process on the same device.
    Alike,
}

impl Basis {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nvml => "nvml",
            Self::Device => "device",
            Self::Alike => "alike",
        }
    }
}

/// What is known of a context: at most so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    pub bytes: u64,
    pub basis: Basis,
}

impl Context {
    /// From the measurements of the process itself, and its excess at the moment that is looked at. `alone`: nobody else
    /// is known to have been on the device when it was first measured.
    pub fn of(measurements: &Measurements, alone: bool, excess: Option<i64>) -> Option<Self> {
        if let Some(bytes) = measurements.told_context(excess) {
            let basis = Basis::Nvml;
            return Some(Self { bytes, basis });
        }
        let bytes = measurements.least_beside()?;
        let basis = Basis::Device;
        (alone && bytes <= PLAUSIBLE_CONTEXT).then_some(Self { bytes, basis })
    }

    /// What of an excess it is.
    fn within(self, excess: i64) -> u64 {
        match self.basis {
            // It was measured: if there is less than that, something else went missing.
            Basis::Nvml => self.bytes,
            _ => self.bytes.min(u64::try_from(excess).unwrap_or(0)),
        }
    }
}

/// What an excess consists of; all together are the excess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    pub context: u64,
    pub rounding: u64,
    pub module_code: u64,
    /// Not positive.
    pub managed: i64,
    pub unknown: i64,
}

impl Differences {
    /// Explains an excess. `code` tells the most that module code can be; asked only where that matters.
    pub fn explain(excess: i64, balance: &Balance, context: Option<Context>, code: impl FnOnce() -> u64) -> Self {
        let positive = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        let (known, context) = (context.is_some(), context.map_or(0, |context| context.within(excess)));
        let after_context = excess.saturating_sub_unsigned(context);
        let rounding = positive(after_context).min(balance.slack);
        let grown = after_context.saturating_sub_unsigned(rounding);
        let module_code = if known && grown > 0 {
            positive(grown).min(code())
        } else {
            0
        };
        let left = grown.saturating_sub_unsigned(module_code);
        let managed = left.clamp(0i64.saturating_sub_unsigned(balance.managed), 0);
        Self {
            context,
            rounding,
            module_code,
            managed,
            unknown: left.saturating_sub(managed),
        }
    }
}

/// One device as of the last measurement in a journal.
pub struct AsOf {
    pub measured: Measurement,
    pub balance: Balance,
    pub context: Option<Context>,
    pub differences: Differences,
    /// What was used and not this process's; `None` where NVML did not say what was, and then in the unknown.
    pub other_processes: Option<u64>,
}

impl AsOf {
    /// `None` where nobody said anything. Nobody else is known to have been on the device: one journal knows of no others.
    pub fn of(ledger: &DeviceLedger, code: impl FnOnce() -> u64) -> Option<Self> {
        let (measured, balance) = *ledger.measurements.last()?;
        let context = Context::of(&ledger.measurements, true, measured.excess());
        let excess = measured.excess().or(measured.beside())?;
        Some(Self {
            measured,
            balance,
            context,
            differences: Differences::explain(excess, &balance, context, code),
            // A layer that shows less than the whole device leaves nothing for others.
            other_processes: measured
                .nvml
                .zip(measured.used())
                .map(|(ours, used)| used.saturating_sub(ours)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn balance(slack: u64, managed: u64) -> Balance {
        Balance {
            reserved: 1000 * MIB,
            slack,
            managed,
            ..Balance::default()
        }
    }

    fn context(mib: u64, basis: Basis) -> Option<Context> {
        let bytes = mib * MIB;
        Some(Context { bytes, basis })
    }

    fn sum(differences: Differences) -> i64 {
        let Differences {
            context,
            rounding,
            module_code,
            managed,
            unknown,
        } = differences;
        (context + rounding + module_code) as i64 + managed + unknown
    }

    /// The parts in MiB, after a look at their sum.
    fn explain(excess_mib: i64, balance: Balance, context: Option<Context>, code: u64) -> [i64; 5] {
        let excess = excess_mib * MIB as i64;
        let named = Differences::explain(excess, &balance, context, || code);
        assert_eq!(sum(named), excess, "{named:?}");
        let mib = |bytes: i64| bytes / MIB as i64;
        [
            mib(named.context as i64),
            mib(named.rounding as i64),
            mib(named.module_code as i64),
            mib(named.managed),
            mib(named.unknown),
        ]
    }

    #[test]
    fn each_name_takes_what_its_evidence_allows() {
        let all = balance(3 * MIB, 0);
        assert_eq!(explain(300, all, context(300, Basis::Nvml), MIB), [300, 0, 0, 0, 0]);
        assert_eq!(explain(302, all, context(300, Basis::Nvml), MIB), [300, 2, 0, 0, 0]);
        assert_eq!(explain(310, all, context(300, Basis::Nvml), 4 * MIB), [300, 3, 4, 0, 3]);
        assert_eq!(explain(310, all, context(300, Basis::Alike), 0), [300, 3, 0, 0, 7]);
    }

    #[test]
    fn growth_that_cannot_be_seen_is_no_module_code() {
        assert_eq!(explain(310, balance(0, 0), None, 999 * MIB), [0, 0, 0, 0, 310]);
    }

    #[test]
    fn what_is_missing_is_shown() {
        // Measurement: then something else went missing. Concluded: it was less.
        assert_eq!(
            explain(250, balance(0, 0), context(300, Basis::Nvml), MIB),
            [300, 0, 0, 0, -50]
        );
        assert_eq!(
            explain(250, balance(0, 0), context(300, Basis::Device), MIB),
            [250, 0, 0, 0, 0]
        );
        assert_eq!(explain(-20, balance(9, 0), None, MIB), [0, 0, 0, 0, -20]);
        assert_eq!(explain(-20, balance(0, 15 * MIB), None, MIB), [0, 0, 0, -15, -5]);
        assert_eq!(explain(-20, balance(0, 99 * MIB), None, MIB), [0, 0, 0, -20, 0]);
    }

    #[test]
    fn no_number_overflows() {
        for excess in [i64::MIN, -1, 0, 1, i64::MAX] {
            let extreme = Balance {
                slack: u64::MAX,
                managed: u64::MAX,
                ..Balance::default()
            };
            for basis in [Basis::Nvml, Basis::Device] {
                let bytes = u64::MAX;
                Differences::explain(excess, &extreme, Some(Context { bytes, basis }), || u64::MAX);
            }
        }
    }
}
