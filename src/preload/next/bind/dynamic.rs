//! The dynamic section of an object: numbers and addresses by their tags.

const DT_NULL: u64 = 0;
pub const DT_STRTAB: u64 = 5;
pub const DT_SYMTAB: u64 = 6;
pub const DT_VERSYM: u64 = 0x6fff_fff0;

/// `Elf64_Dyn`
#[repr(C)]
pub struct Dynamic {
    pub tag: u64,
    pub value: usize,
}

/// # Safety
/// It is the dynamic section of an object that stays loaded.
pub unsafe fn entries<'a>(dynamic: *const Dynamic) -> impl Iterator<Item = &'a Dynamic> {
    // SAFETY: the section ends with an entry of this tag.
    (0..)
        .map(move |index| unsafe { &*dynamic.add(index) })
        .take_while(|entry| entry.tag != DT_NULL)
}

/// The value of a tag; 0 if the section does not have it.
///
/// # Safety
/// As `entries`.
pub unsafe fn value_of(dynamic: *const Dynamic, tag: u64) -> usize {
    // SAFETY: the same contract.
    unsafe { entries(dynamic) }
        .find(|entry| entry.tag == tag)
        .map_or(0, |entry| entry.value)
}
