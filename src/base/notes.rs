//! Notes of ELF files (elf(5)). Nothing here allocates or panics.

/// The type of the note "GNU" that has the build id (elf.h).
const NT_GNU_BUILD_ID: u32 = 3;

/// The build id among the notes of a segment: three lengths of 4 bytes, the name, the content, each padded to 4 bytes.
pub fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let number = |at: usize| Some(u32::from_ne_bytes(notes.get(at..at.checked_add(4)?)?.try_into().ok()?) as usize);
        let (name_bytes, bytes, kind) = (number(0)?, number(4)?, number(8)?);
        let content = 12usize.checked_add(name_bytes.checked_next_multiple_of(4)?)?;
        let end = content.checked_add(bytes)?;
        if kind == NT_GNU_BUILD_ID as usize && notes.get(12..16)? == b"GNU\0" && bytes > 0 {
            return notes.get(content..end);
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
}
