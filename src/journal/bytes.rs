//! Reads little-endian numbers at given offsets of a byte slice. The caller must check the length of the slice first:
//! an offset outside the slice panics.

#[inline(always)]
pub(crate) fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut taken = [0; N];
    taken.copy_from_slice(&bytes[offset..offset + N]);
    taken
}

#[inline(always)]
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, offset))
}

#[inline(always)]
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, offset))
}
