//! Memory that an address names: linear, pitched, managed, host, registered, imported; and arrays.

use std::ffi::c_void;

use crate::engine::pools::suballocation::Freed;
use crate::engine::state::ledger::{Allocation, Key};
use crate::engine::{Call, Place, booking};
use crate::next::{
    self, Array3dDescriptorV1, ArrayDescriptorV1, CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, NOT_PERMITTED,
    SUCCESS,
};
use base::api::Class;

/// `CUDA_ARRAY3D_LAYERED` and `CUDA_ARRAY3D_CUBEMAP`: the depth counts layers, which do not shrink with the level.
const LAYERED: u32 = 0x01;
const CUBEMAP: u32 = 0x04;

/// Bytes: no driver was seen to align rows to more.
const ROW_ALIGNMENT: u64 = 512;

/// The extent of an array, whatever descriptor it came in.
#[derive(Clone, Copy)]
pub struct ArrayShape {
    width: u64,
    height: u64,
    depth: u64,
    format: u32,
    channels: u64,
    flags: u32,
}

impl From<&ArrayDescriptorV1> for ArrayShape {
    fn from(d: &ArrayDescriptorV1) -> Self {
        let (width, height) = (u64::from(d.width), u64::from(d.height));
        ArrayShape {
            width,
            height,
            depth: 0,
            format: d.format,
            channels: u64::from(d.channels),
            flags: 0,
        }
    }
}

impl From<&Array3dDescriptorV1> for ArrayShape {
    fn from(d: &Array3dDescriptorV1) -> Self {
        let [width, height, depth] = [d.width, d.height, d.depth].map(u64::from);
        ArrayShape {
            width,
            height,
            depth,
            format: d.format,
            channels: u64::from(d.channels),
            flags: d.flags,
        }
    }
}

impl ArrayShape {
    /// # Safety
    /// `descriptor` is readable.
    pub unsafe fn plane(descriptor: *const CUDA_ARRAY_DESCRIPTOR) -> Self {
        // SAFETY: readable by contract; every field is read as a number, the format included, whose enum type must not
        // meet a value it does not know.
        unsafe {
            ArrayShape {
                width: (*descriptor).Width as u64,
                height: (*descriptor).Height as u64,
                depth: 0,
                format: (&raw const (*descriptor).Format).cast::<u32>().read(),
                channels: u64::from((*descriptor).NumChannels),
                flags: 0,
            }
        }
    }

    /// # Safety
    /// `descriptor` is readable.
    pub unsafe fn volume(descriptor: *const CUDA_ARRAY3D_DESCRIPTOR) -> Self {
        // SAFETY: as in `plane`.
        unsafe {
            ArrayShape {
                width: (*descriptor).Width as u64,
                height: (*descriptor).Height as u64,
                depth: (*descriptor).Depth as u64,
                format: (&raw const (*descriptor).Format).cast::<u32>().read(),
                channels: u64::from((*descriptor).NumChannels),
                flags: (*descriptor).Flags,
            }
        }
    }

    /// Bytes of the elements (drivers pad beyond that in ways they do not tell).
    pub fn bytes(&self) -> u64 {
        [
            self.width,
            self.height.max(1),
            self.depth.max(1),
            self.channels,
            self.element_bytes(),
        ]
        .into_iter()
        .fold(1, u64::saturating_mul)
    }

    /// Bytes of all levels of a mipmapped array of this shape; each level halves every extent but the layers.
    pub fn mipmap_bytes(&self, levels: u32) -> u64 {
        let layered = self.flags & (LAYERED | CUBEMAP) != 0;
        let halved = |extent: u64, level: u32| {
            if extent == 0 {
                0
            } else {
                (extent >> level.min(63)).max(1)
            }
        };
        // As the driver does: at least one.
        (0..levels.clamp(1, 64))
            .map(|level| {
                let depth = if layered { self.depth } else { halved(self.depth, level) };
                ArrayShape {
                    width: halved(self.width, level),
                    height: halved(self.height, level),
                    depth,
                    ..*self
                }
                .bytes()
            })
            .fold(0, u64::saturating_add)
    }

    /// Bytes of one channel of one element, by `CUarray_format`.
    fn element_bytes(&self) -> u64 {
        match self.format {
            0x01 | 0x08 => 1,        // unsigned and signed 8 bit
            0x02 | 0x09 | 0x10 => 2, // 16 bit, half
            0x03 | 0x0a | 0x20 => 4, // 32 bit, float
            // Normalised, of 8 and 16 bit; the channels in the name are told again in NumChannels.
            0xc0..=0xc2 | 0xc6..=0xc8 => 1,
            0xc3..=0xc5 | 0xc9..=0xcb => 2,
            // Planar, of 10 to 16 bit.
            0x9f | 0xa1 | 0xa3 | 0xa4 | 0xa6 | 0xa7 | 0xb1 | 0xb3 | 0xb5 => 2,
            0x54 | 0x56 | 0x58 | 0x5a | 0x5c | 0x5e => 2,
            // Block-compressed formats and those of 8 bit: one byte a channel at most.
            _ => 1,
        }
    }
}

impl Call {
    /// Linear memory: from a policy where one is in force, else from the layer below.
    ///
    /// # Safety
    /// `out` is null or writable.
    pub unsafe fn allocate_linear(&self, out: *mut u64, size: usize) -> i32 {
        if !out.is_null()
            && size > 0
            && !self.engine.refuses
            && let Some(pool) = self.pool()
        {
            return match self.allocate_in(pool, size as u64, None) {
                Ok(address) => {
                    // SAFETY: not null, and writable by contract.
                    unsafe { *out = address };
                    SUCCESS
                }
                Err(problem) => problem,
            };
        }
        // SAFETY: the job's own arguments, on their way to the function it called.
        let below = || unsafe { next::cuMemAlloc_v2(out, size) };
        // SAFETY: written by a successful call, which a null pointer does not allow.
        self.obtain_direct(Class::Linear, Place::current(), size as u64, below, || unsafe { *out })
    }

    /// Memory that one call to the layer below obtains whole; `address` reads what a successful `ask` wrote.
    pub fn obtain_direct(
        &self,
        class: Class,
        place: Option<Place>,
        size: u64,
        ask: impl Fn() -> i32,
        address: impl FnOnce() -> u64,
    ) -> i32 {
        let booked_at = place.unwrap_or(Place::HOST);
        self.obtain(class, place, size, ask, || {
            (Key::Address(address()), booking(class, booked_at, size, size))
        })
    }

    /// Pitched memory: `rows` of `width` bytes asked for, `pitch` bytes apart.
    pub fn obtain_pitched(
        &self,
        width: u64,
        rows: u64,
        ask: impl Fn() -> i32,
        answer: impl FnOnce() -> (u64, u64),
    ) -> i32 {
        let place = Place::current();
        let size = width.saturating_mul(rows);
        let most = width
            .checked_next_multiple_of(ROW_ALIGNMENT)
            .unwrap_or(width)
            .saturating_mul(rows);
        self.obtain_at_most(Class::Pitched, place, size, most, ask, || {
            let (address, pitch) = answer();
            let reserved = pitch.saturating_mul(rows);
            (
                Key::Address(address),
                booking(Class::Pitched, place.unwrap_or(Place::HOST), size, reserved),
            )
        })
    }

    /// Host memory; it dies with the context it was allocated in.
    pub fn obtain_host(&self, size: u64, ask: impl Fn() -> i32, address: impl FnOnce() -> *mut c_void) -> i32 {
        let context = Place::current().map_or(0, |place| place.context);
        let place = Place { context, ..Place::HOST };
        self.obtain(Class::Host, Some(place), size, ask, || {
            (Key::Address(address() as u64), booking(Class::Host, place, size, size))
        })
    }

    pub fn register_host(&self, address: *mut c_void, size: u64, ask: impl Fn() -> i32) -> i32 {
        self.obtain(Class::HostRegistered, Some(Place::HOST), size, ask, || {
            let key = Key::Registered(address as u64);
            (key, booking(Class::HostRegistered, Place::HOST, size, size))
        })
    }

    pub fn unregister_host(&self, address: *mut c_void, ask: impl FnOnce() -> i32) -> i32 {
        self.give_back(Key::Registered(address as u64), ask)
    }

    /// An array or mipmapped array of `size` bytes.
    pub fn obtain_array(&self, class: Class, size: u64, ask: impl Fn() -> i32, array: impl FnOnce() -> u64) -> i32 {
        let place = Place::current();
        self.obtain(class, place, size, ask, || {
            (
                Key::Object(array()),
                booking(class, place.unwrap_or(Place::HOST), size, size),
            )
        })
    }

    /// Something of another process or API that was made visible here: known, not ours. `name` reads what a successful
    /// `ask` wrote, `size` finds the bytes of what it names.
    pub fn import(
        &self,
        name: impl FnOnce() -> u64,
        key: impl FnOnce(u64) -> Key,
        size: impl FnOnce(u64) -> u64,
        ask: impl Fn() -> i32,
    ) -> i32 {
        let place = Place::current();
        self.obtain(Class::Imported, place, 0, ask, || {
            let name = name();
            let bytes = size(name);
            let place = place.unwrap_or(Place::HOST);
            (
                key(name),
                Allocation {
                    allocated: bytes,
                    ..booking(Class::Imported, place, bytes, 0)
                },
            )
        })
    }

    /// `cuMemFree` and everything else that frees by address.
    pub fn free(&self, address: u64, ask: impl FnOnce() -> i32) -> i32 {
        if self.engine.refuses {
            return NOT_PERMITTED;
        }
        match self.free_pooled(address, None) {
            Freed::Answer(result) => result,
            Freed::NotOurs(claim) => self.give_back_claimed(claim, Key::Address(address), ask),
        }
    }

    /// As `free`, for functions that only ever see memory of the layer below (`cuMemFreeHost`, `cuIpcCloseMemHandle`).
    pub fn free_direct(&self, key: Key, ask: impl FnOnce() -> i32) -> i32 {
        self.give_back(key, ask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_sizes_are_bytes() {
        let shape = ArrayShape {
            width: 64,
            height: 32,
            depth: 0,
            format: 0x20,
            channels: 4,
            flags: 0,
        };
        assert_eq!(shape.bytes(), 64 * 32 * 4 * 4);
        assert_eq!(shape.mipmap_bytes(0), shape.bytes(), "one level at least");
        // CU_AD_FORMAT_UNORM_INT16X4, SNORM_INT8X4, P016, BC7_UNORM
        for (format, bytes) in [(0xc5, 2), (0xc8, 1), (0xa1, 2), (0x9d, 1)] {
            assert_eq!(
                ArrayShape { format, ..shape }.bytes(),
                64 * 32 * 4 * bytes,
                "{format:#x}"
            );
        }
        assert_eq!(shape.mipmap_bytes(2), 64 * 32 * 16 + 32 * 16 * 16);
        let layered = ArrayShape {
            depth: 6,
            flags: LAYERED,
            ..shape
        };
        assert_eq!(layered.mipmap_bytes(2), 6 * (64 * 32 * 16 + 32 * 16 * 16));
    }
}
