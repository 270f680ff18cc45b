//! How the library's file tells which references `bind` binds. `vramshim-defer` writes the marks, and `bind` reads them.

/// The tag in the dynamic section whose value is the size of the table of references, in bytes. The table follows the one
/// that the loader reads (`DT_RELA`). Loaders pass over unknown tags of this range (System V ABI, "Dynamic Section").
pub const TAG: u64 = 0x6000_7673;

/// The type of the program header of constant data, which the loader would take for `PT_GNU_RELRO`. It is a type that
/// loaders pass over.
pub const CONSTANT_DATA: u32 = 0x6000_7672;

/// Functions that the loader binds at the start, because code uses them before the rest is bound. The compiler makes calls
/// of the first six on its own.
#[allow(dead_code)] // `defer.rs` reads it.
pub const KEPT: [&str; 7] = [
    "memcpy",
    "memmove",
    "memset",
    "memcmp",
    "bcmp",
    "strlen",
    "dl_iterate_phdr",
];

/// An entry of a table of references (`Elf64_Rela`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rela {
    /// The place of the reference.
    pub offset: u64,
    pub info: u64,
    pub addend: u64,
}

/// What a reference refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// An address in the library, which the addend says.
    Own,
    /// The symbol of this index.
    Symbol(usize),
}

/// The reference of an entry of this `info`, if it is of a kind that can be deferred (System V ABI for x86-64, "Relocation
/// Types"): `R_X86_64_RELATIVE`, or `R_X86_64_GLOB_DAT`.
pub const fn reference(info: u64) -> Option<Reference> {
    match info as u32 {
        8 => Some(Reference::Own),
        6 => Some(Reference::Symbol((info >> 32) as usize)),
        _ => None,
    }
}
