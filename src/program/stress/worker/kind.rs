//! The kinds of memory that a worker takes.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Linear,
    Pitched,
    Managed,
    /// Of the driver's default pool, in the order of a stream.
    Async,
    /// A handle, mapped at reserved addresses.
    Mapped,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Linear, Kind::Pitched, Kind::Managed, Kind::Async, Kind::Mapped];

    /// The call that hands the memory out.
    pub fn call(self) -> &'static str {
        match self {
            Kind::Linear => "cuMemAlloc",
            Kind::Pitched => "cuMemAllocPitch",
            Kind::Managed => "cuMemAllocManaged",
            Kind::Async => "cuMemAllocAsync",
            Kind::Mapped => "cuMemCreate",
        }
    }

    /// The classes of shim.h in which the memory counts.
    pub fn classes(self) -> &'static [&'static str] {
        match self {
            Kind::Linear => &["linear"],
            Kind::Pitched => &["pitched"],
            Kind::Managed => &["managed"],
            Kind::Async => &["async"],
            Kind::Mapped => &["vmm", "address_range"],
        }
    }

    /// The attribute that says whether a device has this kind (`CU_DEVICE_ATTRIBUTE_*`, cuda.h); linear memory is always
    /// there.
    pub fn attribute(self) -> Option<i32> {
        match self {
            Kind::Linear | Kind::Pitched => None,
            Kind::Managed => Some(83),
            Kind::Async => Some(115),
            Kind::Mapped => Some(102),
        }
    }
}
