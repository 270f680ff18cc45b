//! Arrays and mipmapped arrays, which a handle names. Their sizes follow from their descriptors.

use crate::next::{Array3dDescriptor, ArrayDescriptor};

/// `CUDA_ARRAY3D_LAYERED` and `CUDA_ARRAY3D_CUBEMAP`: the depth counts layers, of which every level has all.
const LAYERED: u32 = 0x01;
const CUBEMAP: u32 = 0x04;
/// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`: the job maps memory of `cuMemCreate` there.
const SPARSE: u32 = 0x40;
const MAPPED_LATER: u32 = 0x80;

/// The extent of an array, from a descriptor of either version.
#[derive(Clone, Copy)]
pub struct ArrayShape {
    width: u64,
    height: u64,
    depth: u64,
    format: u32,
    channels: u64,
    flags: u32,
}

/// An extent of either version.
fn number<N: TryInto<u64>>(extent: N) -> u64 {
    extent.try_into().unwrap_or(u64::MAX)
}

impl<N: Copy + TryInto<u64>> From<&ArrayDescriptor<N>> for ArrayShape {
    fn from(of: &ArrayDescriptor<N>) -> Self {
        ArrayShape {
            width: number(of.width),
            height: number(of.height),
            depth: 0,
            format: of.format,
            channels: of.channels.into(),
            flags: 0,
        }
    }
}

impl<N: Copy + TryInto<u64>> From<&Array3dDescriptor<N>> for ArrayShape {
    fn from(of: &Array3dDescriptor<N>) -> Self {
        ArrayShape {
            width: number(of.width),
            height: number(of.height),
            depth: number(of.depth),
            format: of.format,
            channels: of.channels.into(),
            flags: of.flags,
        }
    }
}

impl ArrayShape {
    /// Bytes of the elements; none if the job maps the memory. Drivers add padding, but do not say how much.
    pub fn bytes(&self) -> u64 {
        if self.flags & (SPARSE | MAPPED_LATER) != 0 {
            return 0;
        }
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
        let halved = |extent: u64, level: u32| (extent >> level.min(63)).max(extent.min(1));
        // At least one level, as in the driver.
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
            // Normalised, of 8 and 16 bit; NumChannels repeats the number of channels in the name.
            0xc0..=0xc2 | 0xc6..=0xc8 => 1,
            0xc3..=0xc5 | 0xc9..=0xcb => 2,
            // Planar, of 10 to 16 bit.
            0x9f | 0xa1 | 0xa3 | 0xa4 | 0xa6 | 0xa7 | 0xb1 | 0xb3 | 0xb5 => 2,
            0x54 | 0x56 | 0x58 | 0x5a | 0x5c | 0x5e => 2,
            // Block-compressed formats and 8-bit formats: at most one byte for each channel.
            _ => 1,
        }
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
    }
}
