//! What others said of a device while the job ran (`Event::Measured`), and what follows from it for the bytes that the
//! process has outside of its ledger.

use journal::format::{Event, Record};

use super::account::DeviceAccount;
use base::api::Class;

/// Device used, free and ledger at one moment of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    pub time_ns: u64,
    /// Total and free as the layer below the library answers `cuMemGetInfo`, if it could be asked.
    pub driver: Option<(u64, u64)>,
    /// What NVML said this process has, if it said so.
    pub nvml: Option<u64>,
    /// What the ledger had reserved at that very moment.
    pub reserved: u64,
}

impl Measured {
    /// The measurement that a record tells, if it tells one.
    fn of(record: &Record) -> Option<Self> {
        let Event::Measured {
            mem_info,
            process_bytes,
            reserved,
        } = record.event
        else {
            return None;
        };
        Some(Self {
            time_ns: record.time_ns,
            driver: mem_info.map(|info| (info.total, info.free)),
            nvml: process_bytes,
            reserved,
        })
    }

    /// What is used of the whole device.
    pub fn used(&self) -> Option<u64> {
        self.driver.map(|(total, free)| total.saturating_sub(free))
    }

    /// What of the device the ledger does not have, whosoever it is; negative where the ledger has more than is used.
    pub fn beside(&self) -> Option<i64> {
        Some(minus(self.used()?, self.reserved))
    }

    /// What the process has outside of its ledger.
    pub fn excess(&self) -> Option<i64> {
        self.nvml.map(|used| minus(used, self.reserved))
    }
}

/// The difference of two numbers of bytes.
pub fn minus(bytes: u64, less: u64) -> i64 {
    i64::try_from(i128::from(bytes) - i128::from(less)).unwrap_or(if bytes > less { i64::MAX } else { i64::MIN })
}

/// The ledger of one device at one moment, and what it says about the driver's own rounding of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    pub requested: u64,
    pub allocated: u64,
    pub reserved: u64,
    pub free_inside: u64,
    /// The most that the driver's pages can hold beyond what was obtained from it.
    pub slack: u64,
    /// Of reserved, what is managed memory: it may lie in host memory.
    pub managed: u64,
}

impl Ledger {
    pub fn of(account: &DeviceAccount) -> Self {
        let managed = account.classes.get(&Class::Managed.number());
        Self {
            requested: account.all.requested.current,
            allocated: account.all.allocated.current,
            reserved: account.all.reserved.current,
            free_inside: account.space.free(),
            slack: account.slack.bytes(),
            managed: managed.map_or(0, |totals| totals.reserved.current),
        }
    }
}

/// The measurements of one device, as far as anything follows from them.
#[derive(Default)]
pub struct Measurements {
    first: Option<Measured>,
    last: Option<(Measured, Ledger)>,
    told: Option<i64>,
    least_beside: Option<i64>,
    context_went: bool,
}

impl Measurements {
    pub fn add(&mut self, record: &Record, ledger: Ledger) {
        let Some(measured) = Measured::of(record) else { return };
        self.first.get_or_insert(measured);
        if let Some(excess) = measured.excess() {
            self.told = Some(match self.told {
                None => excess,
                // Where a context went, what is left has no more than both.
                Some(told) if self.context_went => told.min(excess),
                Some(told) => told,
            });
            self.context_went = false;
        }
        self.least_beside = self.least_beside.into_iter().chain(measured.beside()).min();
        let reserved = measured.reserved;
        self.last = Some((measured, Ledger { reserved, ..ledger }));
    }

    pub fn context_went(&mut self) {
        self.context_went = true;
    }

    pub fn first(&self) -> Option<&Measured> {
        self.first.as_ref()
    }

    /// The latest one, with the ledger of the same moment.
    pub fn last(&self) -> Option<&(Measured, Ledger)> {
        self.last.as_ref()
    }

    /// What NVML said the process had outside of its ledger when the device was first used, or less where a context went
    /// since (`excess` counts as measured after that): its contexts.
    pub fn told_context(&self, excess: Option<i64>) -> Option<u64> {
        let after = excess.filter(|_| self.context_went);
        let least = self.told?.min(after.unwrap_or(i64::MAX));
        Some(u64::try_from(least).unwrap_or(0))
    }

    /// The least that the whole device ever had outside of the ledger: the contexts are in it at every moment, and with
    /// them what other processes have.
    pub fn least_beside(&self) -> Option<u64> {
        self.least_beside.map(|least| u64::try_from(least).unwrap_or(0))
    }
}
