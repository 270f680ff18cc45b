//! Our own file in memory: its table of references, and its symbols and their versions.

use std::arch::asm;
use std::ffi::{CStr, c_char};
use std::slice;

use libc::{Elf64_Ehdr, Elf64_Phdr, Elf64_Sym};

use super::dynamic::{DT_STRTAB, DT_SYMTAB, DT_VERSYM, Dynamic, entries, value_of};
use super::marks::{self, Rela};
use super::wanted::{Version, Wanted};

const DT_NEEDED: u64 = 1;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_VERNEED: u64 = 0x6fff_fffe;

const STB_WEAK: u8 = 2;

const PAGE: usize = 4096;

/// `Elf64_Verneed`
#[repr(C)]
struct Need {
    version: u16,
    count: u16,
    file: u32,
    first: u32,
    next: u32,
}

/// `Elf64_Vernaux`
#[repr(C)]
struct NeededVersion {
    hash: u32,
    flags: u16,
    index: u16,
    name: u32,
    next: u32,
}

/// Our own file. The loader mapped it, and `NODELETE` keeps it mapped; so what its tables point to is there.
pub struct Own {
    base: usize,
    pub dynamic: *const Dynamic,
}

impl Own {
    pub fn find() -> Self {
        let (base, dynamic);
        // SAFETY: it computes the addresses of two names that the linker defines in every file. A reference by the compiler could
        // be one of those that are not bound yet.
        unsafe {
            asm!(
                "lea {base}, [rip + __ehdr_start]",
                "lea {dynamic}, [rip + _DYNAMIC]",
                base = out(reg) base,
                dynamic = out(reg) dynamic,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        Own { base, dynamic }
    }

    /// The address in memory of an address in the file.
    pub fn at(&self, address: usize) -> usize {
        self.base.wrapping_add(address)
    }

    fn table<T>(&self, tag: u64) -> *const T {
        // SAFETY: our own dynamic section. glibc has added the base to this value.
        unsafe { value_of(self.dynamic, tag) as *const T }
    }

    /// The references that `bind` binds.
    pub fn references(&self) -> &[Rela] {
        // SAFETY: our own dynamic section.
        let (size, of_loader) = unsafe { (value_of(self.dynamic, marks::TAG), value_of(self.dynamic, DT_RELASZ)) };
        if size == 0 {
            return &[];
        }
        // SAFETY: `vramshim-defer` wrote the size of the table, which follows that of the loader.
        unsafe {
            slice::from_raw_parts(
                self.table::<u8>(DT_RELA).add(of_loader).cast(),
                size / size_of::<Rela>(),
            )
        }
    }

    /// The references that the loader binds.
    #[cfg(test)]
    pub fn references_of_loader(&self) -> &[Rela] {
        // SAFETY: our own dynamic section, and the table that it describes.
        unsafe {
            let size = value_of(self.dynamic, DT_RELASZ);
            slice::from_raw_parts(self.table(DT_RELA), size / size_of::<Rela>())
        }
    }

    fn symbol(&self, index: usize) -> &Elf64_Sym {
        // SAFETY: `index` comes from our own table of references.
        unsafe { &*self.table::<Elf64_Sym>(DT_SYMTAB).add(index) }
    }

    pub fn is_weak(&self, index: usize) -> bool {
        self.symbol(index).st_info >> 4 == STB_WEAK
    }

    /// The name and the version of a symbol.
    pub fn wanted(&self, index: usize) -> Wanted<'_> {
        Wanted::new(self.string(self.symbol(index).st_name), self.version(index))
    }

    fn string(&self, offset: u32) -> &CStr {
        // SAFETY: the offset comes from our own tables.
        unsafe { CStr::from_ptr(self.table::<c_char>(DT_STRTAB).add(offset as usize)) }
    }

    fn version(&self, symbol: usize) -> Option<Version<'_>> {
        // SAFETY: our own dynamic section. glibc does not add the base to this value.
        let needs = unsafe { value_of(self.dynamic, DT_VERNEED) };
        let versions = self.table::<u16>(DT_VERSYM);
        if versions.is_null() || needs == 0 {
            return None;
        }
        let mut need = self.at(needs) as *const Need;
        // SAFETY: the table has an entry for each symbol. The lists are as the linker made them, and a distance of 0 ends each.
        unsafe {
            let index = *versions.add(symbol) & 0x7fff;
            loop {
                let mut one = need.byte_add((*need).first as usize).cast::<NeededVersion>();
                loop {
                    if (*one).index & 0x7fff == index {
                        return Some(Version {
                            name: self.string((*one).name),
                            hash: (*one).hash,
                        });
                    }
                    if (*one).next == 0 {
                        break;
                    }
                    one = one.byte_add((*one).next as usize);
                }
                if (*need).next == 0 {
                    return None;
                }
                need = need.byte_add((*need).next as usize);
            }
        }
    }

    /// The names of the libraries that the library is linked with.
    pub fn needed(&self) -> impl Iterator<Item = &CStr> {
        // SAFETY: our own dynamic section.
        unsafe { entries(self.dynamic) }
            .filter(|entry| entry.tag == DT_NEEDED)
            .map(|entry| self.string(entry.value as u32))
    }

    /// The pages of data that nothing writes to once the library is bound: their start and length.
    pub fn constant_data(&self) -> Option<(usize, usize)> {
        // SAFETY: the header of our own file, and the program headers that it describes, are mapped.
        let headers = unsafe {
            let header = &*(self.base as *const Elf64_Ehdr);
            slice::from_raw_parts(
                self.at(header.e_phoff as usize) as *const Elf64_Phdr,
                header.e_phnum.into(),
            )
        };
        let data = headers.iter().find(|header| header.p_type == marks::CONSTANT_DATA)?;
        let start = self.at(data.p_vaddr as usize) & !(PAGE - 1);
        let end = self.at(data.p_vaddr.wrapping_add(data.p_memsz) as usize) & !(PAGE - 1);
        (start < end).then(|| (start, end - start))
    }
}
