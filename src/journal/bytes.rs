//! Reads a little-endian number at an offset of a byte slice. An offset outside the slice panics.

#[inline(always)]
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut taken = [0; 8];
    taken.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(taken)
}
