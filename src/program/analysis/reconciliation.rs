//! Compares ledger, driver and NVML, and gives each byte of difference a name. Evidence bounds the bytes of each name,
//! except of *unknown*.
//!
//! The *excess* of a process is NVML's figure for the process minus the reserved bytes of its ledger. The names take
//! their bytes of the excess in this order, and each name leaves the remaining bytes to the next one:
//!
//! 1. **context**: what the driver holds for the contexts of the process. The evidence is the first excess that was
//!    measured (`Event::Measured`), right after the context was created. After a context was destroyed, a smaller
//!    excess measured later replaces the first. Where the process obtained nothing, all that NVML reports is context.
//!    Without a figure of NVML, the evidence is the smallest number of bytes that were used on the device outside the
//!    ledger, up to `PLAUSIBLE_CONTEXT`. If it is not known that the process was alone, other processes may hold them. If
//!    another process was there before, its context serves as evidence, because contexts of one driver on one device
//!    have nearly the same size.
//! 2. **rounding**: the driver obtains physical memory in pages. The evidence is the uncovered bytes of the pages that
//!    the ledger's memory covers in part (`slack`).
//! 3. **module code**: GPU code that was loaded after the context was measured. The evidence is the GPU code in the
//!    files that the process has mapped (`device_code`). If the context is not known, module code gets 0 bytes.
//! 4. **managed** (negative): managed memory that lies in host memory. The evidence is that NVML reports fewer bytes
//!    than the ledger; the bound is the managed memory in the ledger.
//! 5. **unknown**: the remaining bytes; negative if the ledger has more bytes than the driver.
//!
//! The used bytes of a device are the sum of all these parts for each process under the library, of the bytes of other
//! processes, and of the device's unknown bytes. Free memory that a policy keeps is part of reserved and is shown as
//! free inside.

use base::named;

use super::device_ledger::DeviceLedger;
use super::measurements::{Balance, Measurement, Measurements};

/// The largest plausible size of a context, if only the driver's figure for the whole device is known. Contexts of
/// current GPUs take 0.2 to 0.7 GiB.
pub const PLAUSIBLE_CONTEXT: u64 = 1 << 30;

named! {
    /// The source of the size of a context.
    pub enum Basis {
        /// NVML's figure for the process at the first measurement.
        Nvml => "nvml",
        /// The smallest figure of the driver for the device; NVML lists no process that used the device before.
        Device => "device",
        /// The same, but nothing tells which other processes were there: the bytes may be theirs.
        DeviceOrOthers => "device_or_others",
        /// The context of another process on the same device.
        Alike => "alike",
    }
}

/// The size of a context, as an upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    pub bytes: u64,
    pub basis: Basis,
}

impl Context {
    /// The context of a process, from its own measurements and its present excess. `alone` says whether the process was
    /// alone on the device until the first measurement; `None` if that is not known.
    pub fn from_measurements(measurements: &Measurements, alone: Option<bool>, excess: Option<i64>) -> Option<Self> {
        if let Some(bytes) = measurements.measured_context(excess) {
            let basis = Basis::Nvml;
            return Some(Self { bytes, basis });
        }
        let bytes = measurements.least_outside()?;
        let basis = match alone {
            Some(true) => Basis::Device,
            None => Basis::DeviceOrOthers,
            Some(false) => return None,
        };
        (bytes <= PLAUSIBLE_CONTEXT).then_some(Self { bytes, basis })
    }

    /// How many bytes of an excess the context explains.
    fn within(self, excess: i64) -> u64 {
        match self.basis {
            // NVML measured the context. If the excess is smaller now, other bytes are missing, and `unknown` must show
            // them.
            Basis::Nvml => self.bytes,
            _ => self.bytes.min(u64::try_from(excess).unwrap_or(0)),
        }
    }
}

/// The parts of an excess; their sum is the excess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Differences {
    pub context: u64,
    pub rounding: u64,
    pub module_code: u64,
    /// Zero or negative.
    pub managed: i64,
    pub unknown: i64,
}

impl Differences {
    /// Divides an excess into its parts. `code` returns the upper bound for module code and is called only if needed.
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

/// One device at the time of the last measurement in a journal.
pub struct AsOf {
    pub measured: Measurement,
    pub balance: Balance,
    pub context: Option<Context>,
    pub differences: Differences,
    /// Used bytes of other processes. `None` if NVML did not report this process's bytes; the bytes of other processes
    /// are then part of `unknown`.
    pub other_processes: Option<u64>,
}

impl AsOf {
    /// `None` if the journal has no measurement. A journal does not tell whether the process was alone on the device.
    pub fn last_measured(ledger: &DeviceLedger, code: impl FnOnce() -> u64) -> Option<Self> {
        let (measured, balance) = *ledger.measurements.last()?;
        let context = Context::from_measurements(&ledger.measurements, None, measured.excess());
        let excess = measured.excess().or(measured.outside())?;
        Some(Self {
            measured,
            balance,
            context,
            differences: Differences::explain(excess, &balance, context, code),
            // A layer that reports only a part of the device may report fewer used bytes than this process has.
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

    /// Explains an excess, checks the sum of the parts, and returns the parts in MiB.
    fn explain(excess_mib: i64, balance: Balance, context: Option<Context>, code: u64) -> [i64; 5] {
        let excess = excess_mib * MIB as i64;
        let named = Differences::explain(excess, &balance, context, || code);
        let positive = [named.context, named.rounding, named.module_code].map(|bytes| bytes as i64);
        let parts = [&positive[..], &[named.managed, named.unknown]].concat();
        assert_eq!(parts.iter().sum::<i64>(), excess, "{named:?}");
        std::array::from_fn(|part| parts[part] / MIB as i64)
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
    fn what_is_missing_is_shown() {
        // A context that NVML measured stays as it is, so unknown is negative. A context of another basis is made
        // smaller.
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
