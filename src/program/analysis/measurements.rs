//! What the next layer and NVML reported about a device while the job ran (`Event::Measured`). The reports show how
//! many bytes the process holds outside its ledger.

use base::units::size;
use journal::format::{Event, MemInfo, Record, Teller};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measurement {
    pub time_ns: u64,
    /// The answer of the next layer to `cuMemGetInfo`; `None` if there was no answer.
    pub driver: Option<MemInfo>,
    pub teller: Teller,
    /// The bytes of this process according to NVML; `None` if NVML did not report them.
    pub nvml: Option<u64>,
    /// The reserved bytes of the ledger at the same moment.
    pub reserved: u64,
}

impl Measurement {
    pub fn of(record: &Record) -> Option<Measurement> {
        match record.event {
            Event::Measured {
                mem_info: driver,
                told_by: teller,
                process_bytes: nvml,
                reserved,
            } => Some(Measurement {
                time_ns: record.time_ns,
                driver,
                teller,
                nvml,
                reserved,
            }),
            _ => None,
        }
    }

    /// The used bytes of the whole device.
    pub fn used(&self) -> Option<u64> {
        self.driver.map(|info| info.total.saturating_sub(info.free))
    }

    /// Used bytes of the device that are not in this process's ledger, whichever process holds them. Negative if the
    /// ledger has more bytes than the device has in use.
    pub fn outside(&self) -> Option<i64> {
        Some(minus(self.used()?, self.reserved))
    }

    /// Bytes that the process holds outside its ledger, according to NVML.
    pub fn excess(&self) -> Option<i64> {
        self.nvml.map(|used| minus(used, self.reserved))
    }
}

/// `bytes - less`, limited to the range of `i64`.
pub fn minus(bytes: u64, less: u64) -> i64 {
    i64::try_from(i128::from(bytes) - i128::from(less)).unwrap_or(if bytes > less { i64::MAX } else { i64::MIN })
}

/// The sums of one device's ledger at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Balance {
    pub requested: u64,
    pub allocated: u64,
    pub reserved: u64,
    /// The part of `reserved` that the records tell. It is less if records were lost or damaged.
    pub recorded: u64,
    pub free_inside: u64,
    /// An upper bound for the bytes that the driver's pages occupy beyond the obtained bytes.
    #[serde(skip)]
    pub slack: u64,
    /// The part of `reserved` that is managed memory, which may lie in host memory.
    #[serde(skip)]
    pub managed: u64,
}

#[derive(Default)]
pub struct Measurements {
    pub first: Option<Measurement>,
    last: Option<(Measurement, Balance)>,
    context_excess: Option<i64>,
    least_outside: Option<i64>,
    most_outside: Option<i64>,
    context_destroyed: bool,
    /// A context was destroyed at any time.
    context_went: bool,
}

impl Measurements {
    pub fn add(&mut self, record: &Record, balance: Balance) {
        let Some(measured) = Measurement::of(record) else {
            return;
        };
        let reserved = measured.reserved;
        self.first.get_or_insert(measured);
        if let Some(excess) = measured.excess() {
            self.context_excess = Some(match self.context_excess {
                None => excess,
                // A context was destroyed in between. Both figures are upper bounds for the remaining contexts.
                Some(context_excess) if self.context_destroyed => context_excess.min(excess),
                Some(context_excess) => context_excess,
            });
            self.context_destroyed = false;
        }
        self.least_outside = self.least_outside.into_iter().chain(measured.outside()).min();
        self.most_outside = self.most_outside.max(measured.outside());
        self.last = Some((measured, Balance { reserved, ..balance }));
    }

    pub fn context_destroyed(&mut self) {
        (self.context_destroyed, self.context_went) = (true, true);
    }

    /// The latest measurement, with the ledger's sums of the same moment.
    pub fn last(&self) -> Option<&(Measurement, Balance)> {
        self.last.as_ref()
    }

    /// The size of the process's contexts: the bytes that NVML reported beyond the ledger when the process first used
    /// the device. After a context was destroyed, a smaller later figure replaces it. `excess` is the present figure.
    pub fn measured_context(&self, excess: Option<i64>) -> Option<u64> {
        let after = excess.filter(|_| self.context_destroyed);
        let least = self.context_excess?.min(after.unwrap_or(i64::MAX));
        Some(u64::try_from(least).unwrap_or(0))
    }

    /// What others held at least and gave back since, in words: the bytes outside the ledger became fewer, and no context
    /// of this process went. `None` if less than the inexactness of two figures that are read one after the other.
    pub fn given_back(&self) -> Option<String> {
        const INEXACT: u64 = 64 << 20;
        let (most, last) = (self.most_outside?, self.last?.0.outside()?);
        let gone = u64::try_from(most.saturating_sub(last)).ok()?;
        (gone >= INEXACT && !self.context_went).then(|| {
            let [most, last] = [most, last].map(|bytes| size(bytes.unsigned_abs()));
            format!(
                "Outside this process's ledger {most} were in use once, and {last} at the last measurement: others held at \
                 least {} and gave them back",
                size(gone)
            )
        })
    }

    /// The smallest `outside` of all measurements. It contains the contexts of this process and the memory of other
    /// processes.
    pub fn least_outside(&self) -> Option<u64> {
        self.least_outside.map(|least| u64::try_from(least).unwrap_or(0))
    }
}
