//! One live allocation, and what names it.

use base::api::Class;

/// What names an allocation. Pointers of all kinds share one address space (unified addressing); handles do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Device or host address.
    Address(u64),
    /// Host memory that was registered, not allocated: the same address may be an allocation as well.
    Registered(u64),
    /// Reserved address space.
    Range(u64),
    /// Physical memory (`CUmemGenericAllocationHandle`).
    Physical(u64),
    /// Array, mipmapped array, imported external memory.
    Object(u64),
}

impl Key {
    /// Which variant a key is, from 1 on. 0 stands for no key.
    #[inline]
    pub fn kind(self) -> u8 {
        match self {
            Key::Address(_) => 1,
            Key::Registered(_) => 2,
            Key::Range(_) => 3,
            Key::Physical(_) => 4,
            Key::Object(_) => 5,
        }
    }

    /// The key of this kind and value; `None` for no key.
    pub fn of_kind(kind: u8, value: u64) -> Option<Key> {
        const KINDS: [fn(u64) -> Key; 5] = [Key::Address, Key::Registered, Key::Range, Key::Physical, Key::Object];
        let kind = KINDS.get(usize::from(kind).checked_sub(1)?)?;
        Some(kind(value))
    }

    pub fn value(self) -> u64 {
        match self {
            Key::Address(v) | Key::Registered(v) | Key::Range(v) | Key::Physical(v) | Key::Object(v) => v,
        }
    }
}

/// One live allocation. Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub class: Class,
    /// Device ordinal, or `HOST_DEVICE`.
    pub device: i16,
    /// The context that it dies with; 0 for memory that belongs to no context.
    pub context: u64,
    pub requested: u64,
    pub allocated: u64,
    /// Whether it took no bytes from the next layer: it lies in a pool of the driver, or is another process's.
    pub takes_nothing: bool,
}

impl Allocation {
    /// Bytes that this allocation took from the next layer.
    pub fn reserved(&self) -> u64 {
        if self.takes_nothing { 0 } else { self.allocated }
    }
}
