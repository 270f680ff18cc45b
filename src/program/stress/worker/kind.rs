//! The kinds of memory that a worker takes.

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Linear,
    /// Of the driver's default pool, in the order of a stream.
    Async,
    /// A handle, mapped at reserved addresses.
    Mapped,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Linear, Kind::Async, Kind::Mapped];

    /// The call that hands the memory out, the classes of shim.h in which the memory counts, and the attribute that says
    /// whether a device has this kind (`CU_DEVICE_ATTRIBUTE_*`, cuda.h); linear memory is always there.
    const fn facts(self) -> (&'static str, &'static [&'static str], Option<i32>) {
        match self {
            Kind::Linear => ("cuMemAlloc", &["linear"], None),
            Kind::Async => ("cuMemAllocAsync", &["async"], Some(115)),
            Kind::Mapped => ("cuMemCreate", &["vmm", "address_range"], Some(102)),
        }
    }

    pub const fn call(self) -> &'static str {
        self.facts().0
    }

    pub const fn classes(self) -> &'static [&'static str] {
        self.facts().1
    }

    pub const fn attribute(self) -> Option<i32> {
        self.facts().2
    }
}
