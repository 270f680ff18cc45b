//! Counts calls of the driver, and adds up what they and the waits took.

use std::ops::{AddAssign, Sub};

/// Makes the enum `Call`, the list of all, and the driver's names of them.
macro_rules! calls {
    ($($call:ident $name:literal)*) => {
        /// A kind of call of the driver.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Call {
            $($call,)*
        }

        impl Call {
            pub const ALL: &[Call] = &[$(Call::$call,)*];

            /// The driver's name of the call.
            pub const fn name(self) -> &'static str {
                match self { $(Call::$call => $name,)* }
            }
        }
    };
}

calls! {
    Create "cuMemCreate"
    Map "cuMemMap"
    SetAccess "cuMemSetAccess"
    Unmap "cuMemUnmap"
    Release "cuMemRelease"
    Allocate "cuMemAlloc"
    Free "cuMemFree"
    Reserve "cuMemAddressReserve"
    Unreserve "cuMemAddressFree"
    RecordEvent "cuEventRecord"
    QueryEvent "cuEventQuery"
}

impl Call {
    /// Whether the call changes which memory the process has, or where it is mapped.
    pub const fn changes_memory(self) -> bool {
        !self.is_of_events() && !matches!(self, Call::Reserve | Call::Unreserve)
    }

    pub const fn is_of_events(self) -> bool {
        matches!(self, Call::RecordEvent | Call::QueryEvent)
    }
}

/// Calls and waits, and the nanoseconds that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bill {
    calls: [u64; Call::ALL.len()],
    /// The prices of all calls.
    pub driver_ns: u64,
    /// Waits for work of the GPU inside an allocation, and inside a free.
    pub waits_in_allocations: u64,
    pub waits_in_frees: u64,
    /// What the waits took.
    pub waited_ns: u64,
}

impl Bill {
    pub fn add(&mut self, call: Call, price_ns: u64) {
        self.add_many(call, price_ns, 1);
    }

    /// Adds `count` calls of this price each.
    pub fn add_many(&mut self, call: Call, price_ns: u64, count: u64) {
        self.calls[call as usize] += count;
        self.driver_ns = self.driver_ns.saturating_add(price_ns.saturating_mul(count));
    }

    pub fn count(&self, call: Call) -> u64 {
        self.calls[call as usize]
    }

    fn sum(&self, wanted: impl Fn(Call) -> bool) -> u64 {
        let wanted = Call::ALL.iter().filter(|&&call| wanted(call));
        wanted.map(|&call| self.count(call)).sum()
    }

    pub fn memory_calls(&self) -> u64 {
        self.sum(Call::changes_memory)
    }

    /// All calls but those of events.
    pub fn driver_calls(&self) -> u64 {
        self.sum(|call| !call.is_of_events())
    }

    pub fn waits(&self) -> u64 {
        self.waits_in_allocations + self.waits_in_frees
    }

    fn combined(mut self, other: Bill, with: impl Fn(u64, u64) -> u64) -> Bill {
        for (mine, its) in self.calls.iter_mut().zip(other.calls) {
            *mine = with(*mine, its);
        }
        self.driver_ns = with(self.driver_ns, other.driver_ns);
        self.waits_in_allocations = with(self.waits_in_allocations, other.waits_in_allocations);
        self.waits_in_frees = with(self.waits_in_frees, other.waits_in_frees);
        self.waited_ns = with(self.waited_ns, other.waited_ns);
        self
    }

    pub fn total_ns(&self) -> u64 {
        self.driver_ns.saturating_add(self.waited_ns)
    }
}

impl AddAssign for Bill {
    fn add_assign(&mut self, other: Bill) {
        *self = self.combined(other, u64::saturating_add);
    }
}

/// What was added to a bill since it was `earlier`.
impl Sub for Bill {
    type Output = Bill;

    fn sub(self, earlier: Bill) -> Bill {
        self.combined(earlier, |now, before| now - before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_calls_are_told_apart() {
        let mut bill = Bill::default();
        for &call in Call::ALL {
            bill.add(call, 1);
        }
        let first = bill;
        bill.add(Call::Free, 10);
        bill.waits_in_frees += 1;
        bill.waited_ns += 5;
        assert_eq!((bill.memory_calls(), bill.driver_calls(), bill.waits()), (8, 10, 1));
        let later = bill - first;
        assert_eq!(
            (later.count(Call::Free), later.count(Call::Map), later.total_ns()),
            (1, 0, 15)
        );
        let mut sum = first;
        sum += later;
        assert_eq!(sum, bill);
    }
}
