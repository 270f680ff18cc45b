//! Finds the definition that the loader would bind a reference to: that of the first object of the global scope which has
//! the name in the wanted version. It takes no lock if the library was preloaded, allocates nothing, and calls only what
//! `marks::KEPT` names.
//!
//! The order of the global scope is load order. The search ends at the latest with the last object that the library itself
//! is linked with. All objects up to there are those that the program started with; they are never unloaded.
//!
//! Source: System V ABI, chapter 5; "Linux Standard Base Core", "Symbol Versioning"; `_dl_lookup_symbol_x` of glibc for what
//! happens if only one of the two sides has versions.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::{mem, ptr};

use libc::{Elf64_Sym, dl_phdr_info};

use super::dynamic::{DT_STRTAB, DT_SYMTAB, DT_VERSYM, Dynamic, value_of};
use super::own::Own;
use super::wanted::Wanted;
use crate::next::elf::{LinkMap, loaded, system_v_hash};

const DT_HASH: u64 = 4;
const DT_SONAME: u64 = 14;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERDEF: u64 = 0x6fff_fffc;

const STB_LOCAL: u8 = 0;
const STT_TLS: u8 = 6;
const STT_GNU_IFUNC: u8 = 10;
/// Flags of a version's index in the table of symbols, and of a definition: not the default one; the name of the file.
const HIDDEN_VERSION: u16 = 0x8000;
const BASE: u16 = 1;

/// `Elf64_Verdef`
#[repr(C)]
struct Definition {
    version: u16,
    flags: u16,
    index: u16,
    count: u16,
    hash: u32,
    first: u32,
    next: u32,
}

/// The objects in which names are searched.
pub struct Scope<'a> {
    own: &'a Own,
    objects: Objects,
}

enum Objects {
    /// From this entry of the loader's list on.
    Listed(*const LinkMap),
    /// What `dl_iterate_phdr` visits.
    Visited,
}

/// One loaded object.
struct Loaded {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
}

impl Scope<'_> {
    /// Passes the global scope to `search`. If the library was not preloaded, other threads may load and unload objects in front
    /// of it. Then each search holds the loader's lock.
    pub fn with(own: &Own, search: impl FnOnce(&Scope)) {
        let objects = match ours(own) {
            Some(_) => Objects::Listed(loaded()),
            None => Objects::Visited,
        };
        search(&Scope { own, objects });
    }

    /// The objects behind ours; `None` if the library was not preloaded.
    pub fn behind(own: &Own) -> Option<Scope<'_>> {
        // SAFETY: it is our own entry of the list.
        let next = unsafe { (*ours(own)?).next };
        Some(Scope {
            own,
            objects: Objects::Listed(next),
        })
    }

    /// The address that a reference gets.
    pub fn find(&self, wanted: &Wanted) -> Option<usize> {
        let all = self.own.needed().fold(0u64, |all, _| all << 1 | 1);
        let (mut found, mut seen) = (None, 0);
        self.each(|object| {
            found = object.find(wanted);
            seen |= self.needed_by_us(object);
            found.is_some() || seen == all
        });
        found
    }

    /// One bit for each name under which the library needs the object.
    fn needed_by_us(&self, object: &Loaded) -> u64 {
        let bits = self.own.needed().enumerate().map(|(index, needed)| {
            let bit = u64::from(object.is_called(needed));
            bit.wrapping_shl(index as u32)
        });
        bits.fold(0, |all, bit| all | bit)
    }

    /// Visits objects in load order, until `visit` says that it is enough.
    fn each(&self, mut visit: impl FnMut(&Loaded) -> bool) {
        match self.objects {
            Objects::Listed(mut map) => {
                // SAFETY: the entries belong to objects that the program started with (see the head of this file): the library is
                // preloaded, so what it is linked with was loaded at the start, and `visit` ends the search there.
                while let Some(entry) = unsafe { map.as_ref() } {
                    let object = Loaded {
                        base: entry.base,
                        name: entry.name,
                        dynamic: entry.dynamic.cast(),
                    };
                    if visit(&object) {
                        return;
                    }
                    map = entry.next;
                }
            }
            Objects::Visited => visit_all(&mut visit),
        }
    }
}

/// Our entry of the loader's list, if the library was preloaded: then it comes before what it is linked with.
fn ours(own: &Own) -> Option<*const LinkMap> {
    let mut map = loaded();
    // SAFETY: up to the first library that ours is linked with, which is the C library or a part of it, the entries belong to
    // objects that the program started with.
    while let Some(entry) = unsafe { map.as_ref() } {
        let object = Loaded {
            base: entry.base,
            name: entry.name,
            dynamic: entry.dynamic.cast(),
        };
        if object.dynamic == own.dynamic {
            return Some(map);
        }
        if own.needed().any(|needed| object.is_called(needed)) {
            return None;
        }
        map = entry.next;
    }
    None
}

fn visit_all<F: FnMut(&Loaded) -> bool>(visit: &mut F) {
    unsafe extern "C" fn one<F: FnMut(&Loaded) -> bool>(
        info: *mut dl_phdr_info,
        _: usize,
        visit: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes its description of a loaded object, and `visit` is what `visit_all` passed.
        let (info, visit) = unsafe { (&*info, &mut *visit.cast::<F>()) };
        for index in 0..usize::from(info.dlpi_phnum) {
            // SAFETY: the object has so many program headers.
            let header = unsafe { &*info.dlpi_phdr.add(index) };
            if header.p_type == libc::PT_DYNAMIC {
                let base = info.dlpi_addr as usize;
                let dynamic = base.wrapping_add(header.p_vaddr as usize) as *const Dynamic;
                return visit(&Loaded {
                    base,
                    name: info.dlpi_name,
                    dynamic,
                })
                .into();
            }
        }
        0
    }
    // SAFETY: `one` gets the closure as the type that it has, and only during the call.
    unsafe { libc::dl_iterate_phdr(Some(one::<F>), ptr::from_mut(visit).cast()) };
}

impl Loaded {
    fn value(&self, tag: u64) -> usize {
        // SAFETY: the object is loaded, and stays so during the search.
        unsafe { value_of(self.dynamic, tag) }
    }

    /// Whether the name of its file or its soname is this one.
    fn is_called(&self, name: &CStr) -> bool {
        let (soname, strings) = (self.value(DT_SONAME), self.value(DT_STRTAB));
        // SAFETY: the loader's own string, or null.
        let path = (!self.name.is_null()).then(|| unsafe { CStr::from_ptr(self.name) });
        let file = path.and_then(|path| path.to_bytes().rsplit(|&byte| byte == b'/').next());
        // SAFETY: the object's own string.
        let soname = (soname != 0 && strings > self.base)
            .then(|| unsafe { CStr::from_ptr(strings.wrapping_add(soname) as *const c_char) });
        file == Some(name.to_bytes()) || soname == Some(name)
    }

    fn find(&self, wanted: &Wanted) -> Option<usize> {
        let symbols = self.value(DT_SYMTAB);
        // The addresses in the dynamic section of the vDSO are those of its file. It is not in the global scope.
        if self.dynamic.is_null() || symbols <= self.base {
            return None;
        }
        let tables = Tables {
            symbols: symbols as *const Elf64_Sym,
            strings: self.value(DT_STRTAB) as *const c_char,
            versions: self.value(DT_VERSYM) as *const u16,
            definitions: match self.value(DT_VERDEF) {
                0 => ptr::null(),
                // glibc does not add the base to this value.
                definitions => self.base.wrapping_add(definitions) as *const Definition,
            },
        };
        let (gnu, system_v) = (self.value(DT_GNU_HASH) as *const u32, self.value(DT_HASH) as *const u32);
        // SAFETY: the tables are those of a loaded object, which the loader trusts too.
        let symbol = unsafe {
            if !gnu.is_null() {
                tables.find_gnu(gnu, wanted)?
            } else if !system_v.is_null() {
                tables.find_system_v(system_v, wanted)?
            } else {
                return None;
            }
        };
        let address = self.base.wrapping_add(symbol.st_value as usize);
        if symbol.st_info & 0xf != STT_GNU_IFUNC {
            return Some(address);
        }
        // SAFETY: such a symbol is a function without arguments on x86-64, which returns the address ("ELF Extensions" of the
        // GNU project). Its object was relocated before code of ours ran.
        Some(unsafe { mem::transmute::<usize, extern "C" fn() -> usize>(address)() })
    }
}

/// The tables of one object.
struct Tables {
    symbols: *const Elf64_Sym,
    strings: *const c_char,
    versions: *const u16,
    definitions: *const Definition,
}

impl Tables {
    /// # Safety
    /// `table` is the `DT_GNU_HASH` of the object. Its layout: bucket count, first hashed symbol, filter words, filter shift;
    /// filter; buckets; one hash for each symbol, whose lowest bit ends a chain.
    unsafe fn find_gnu(&self, table: *const u32, wanted: &Wanted) -> Option<&Elf64_Sym> {
        // SAFETY: by contract, and the counts in the table are those of its parts.
        unsafe {
            let (buckets, first, words, shift) = (*table, *table.add(1), *table.add(2), *table.add(3));
            let filter = table.add(4).cast::<u64>();
            let heads = filter.add(words as usize).cast::<u32>();
            let chains = heads.add(buckets as usize);
            if buckets == 0 || words == 0 {
                return None;
            }
            let word = *filter.add((wanted.hash / 64 % words) as usize);
            if word >> (wanted.hash % 64) & word >> (wanted.hash.wrapping_shr(shift) % 64) & 1 == 0 {
                return None;
            }
            let mut index = *heads.add((wanted.hash % buckets) as usize);
            if index < first {
                return None;
            }
            loop {
                let hash = *chains.add((index - first) as usize);
                if hash | 1 == wanted.hash | 1
                    && let Some(symbol) = self.at(index as usize, wanted)
                {
                    return Some(symbol);
                }
                if hash & 1 == 1 {
                    return None;
                }
                index = index.wrapping_add(1);
            }
        }
    }

    /// # Safety
    /// `table` is the `DT_HASH` of the object. Its layout: bucket count, symbol count; buckets; for each symbol the next one of
    /// its chain.
    unsafe fn find_system_v(&self, table: *const u32, wanted: &Wanted) -> Option<&Elf64_Sym> {
        // SAFETY: by contract, and the counts in the table are those of its parts.
        unsafe {
            let buckets = *table;
            if buckets == 0 {
                return None;
            }
            let chains = table.add(2).add(buckets as usize);
            let mut index = *table.add(2).add((system_v_hash(wanted.name) % buckets) as usize);
            while index != 0 {
                if let Some(symbol) = self.at(index as usize, wanted) {
                    return Some(symbol);
                }
                index = *chains.add(index as usize);
            }
        }
        None
    }

    /// The symbol at `index`, if it defines what is wanted.
    ///
    /// # Safety
    /// The object has a symbol of this index.
    unsafe fn at(&self, index: usize, wanted: &Wanted) -> Option<&Elf64_Sym> {
        // SAFETY: by contract.
        let symbol = unsafe { &*self.symbols.add(index) };
        let usable = symbol.st_shndx != 0
            && symbol.st_info & 0xf != STT_TLS
            && symbol.st_info >> 4 != STB_LOCAL
            // `STV_INTERNAL` and `STV_HIDDEN`
            && !matches!(symbol.st_other & 3, 1 | 2);
        // SAFETY: the symbol's own name.
        let is_named = || unsafe { CStr::from_ptr(self.strings.add(symbol.st_name as usize)) } == wanted.name;
        // SAFETY: by contract.
        (usable && is_named() && unsafe { self.has_version(index, wanted) }).then_some(symbol)
    }

    /// # Safety
    /// As `at`.
    unsafe fn has_version(&self, index: usize, wanted: &Wanted) -> bool {
        if self.versions.is_null() {
            return true;
        }
        // SAFETY: the table has an entry for each symbol. The list of definitions is as the linker made it, and a distance of 0
        // ends it.
        unsafe {
            let version = *self.versions.add(index);
            let is_default = version & HIDDEN_VERSION == 0;
            let Some(wanted) = &wanted.version else {
                return is_default;
            };
            let mut definition = self.definitions;
            while !definition.is_null() {
                let one = &*definition;
                if one.index == version & !HIDDEN_VERSION && one.flags & BASE == 0 {
                    let name = *definition.byte_add(one.first as usize).cast::<u32>();
                    return one.hash == wanted.hash && CStr::from_ptr(self.strings.add(name as usize)) == wanted.name;
                }
                if one.next == 0 {
                    break;
                }
                definition = definition.byte_add(one.next as usize);
            }
            // A symbol without a version serves for any.
            is_default
        }
    }
}
