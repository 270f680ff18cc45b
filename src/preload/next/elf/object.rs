//! One loaded object: its position in load order, its segments, its names, and the functions that it exports.

use std::ffi::{CStr, c_char, c_void};
use std::slice;

use base::notes::build_id;
use libc::{Elf64_Ehdr, Elf64_Phdr, Elf64_Sym, dl_phdr_info};

const DT_NULL: i64 = 0;
const DT_NEEDED: i64 = 1;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;

const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
const STB_LOCAL: u8 = 0;
/// `STV_INTERNAL` and `STV_HIDDEN`: visible only inside the object.
const HIDDEN_VISIBILITIES: [u8; 2] = [1, 2];
/// A flag in a version index: this is not the default version of the name.
const HIDDEN_VERSION: u16 = 0x8000;

const SMALLEST_PAGE: usize = 4096;

/// The position of an object in load order, compared with ours. For the objects that a program starts with, load order is
/// also the order of symbol look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The program, or a library preloaded in front of ours.
    BeforeOurs,
    Ours,
    /// Every other object: a layer preloaded behind us, the C library, objects that were loaded later.
    BehindOurs,
}

/// One loaded object. It is valid while the object stays loaded: inside `find`, or if code of the object is on the
/// stack.
#[derive(Clone, Copy)]
pub struct Object {
    /// The difference between addresses in memory and those in the object's file.
    pub base: usize,
    headers: *const Elf64_Phdr,
    pub(super) count: usize,
    pub(super) name: *const c_char,
    pub position: Position,
}

/// A mapped segment from some address on.
#[derive(Clone, Copy)]
struct Tail {
    start: usize,
    end: usize,
}

impl Tail {
    /// The `index`th `T`, if it lies inside the segment.
    fn read<T: Copy>(self, index: usize) -> Option<T> {
        let at = self.start.checked_add(index.checked_mul(size_of::<T>())?)?;
        if at.checked_add(size_of::<T>())? > self.end {
            return None;
        }
        // SAFETY: the bytes lie in a readable segment of a loaded object, and every bit pattern is a value of the types that
        // are read here.
        Some(unsafe { (at as *const T).read_unaligned() })
    }

    fn skip(self, bytes: usize) -> Option<Tail> {
        let start = self.start.checked_add(bytes)?;
        (start <= self.end).then_some(Tail { start, end: self.end })
    }

    /// The next `length` bytes, if they lie inside the segment.
    fn bytes<'a>(self, length: usize) -> Option<&'a [u8]> {
        // SAFETY: the bytes lie in a readable segment of a loaded object.
        (length <= self.end - self.start).then(|| unsafe { slice::from_raw_parts(self.start as *const u8, length) })
    }

    /// Whether the segment continues with exactly `text` and its NUL.
    fn is(self, text: &CStr) -> bool {
        let text = text.to_bytes_with_nul();
        self.bytes(text.len()) == Some(text)
    }

    /// The string that starts here, if its NUL lies in the segment too.
    fn text<'a>(self) -> Option<&'a CStr> {
        let length = (0..self.end - self.start).find(|&index| self.read::<u8>(index) == Some(0))?;
        CStr::from_bytes_with_nul(self.bytes(length + 1)?).ok()
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// The tables that a look-up by name needs.
struct Symbols {
    entries: Tail,
    strings: Tail,
    versions: Option<Tail>,
    hash: Hash,
}

enum Hash {
    Gnu(Tail),
    SystemV(Tail),
}

impl Object {
    /// The object mapped from `start` on. Its program headers are found through its ELF header.
    ///
    /// # Safety
    /// An object is mapped there, and the other arguments belong to it.
    pub unsafe fn mapped_at(start: usize, base: usize, name: *const c_char, position: Position) -> Option<Self> {
        // SAFETY: the first page of a mapped object is readable, and this is less than a page.
        let header = unsafe { (start as *const Elf64_Ehdr).read_unaligned() };
        if header.e_ident[..4] != *b"\x7fELF" || usize::from(header.e_phentsize) != size_of::<Elf64_Phdr>() {
            return None;
        }
        let headers = start.checked_add(header.e_phoff as usize)?;
        let count = usize::from(header.e_phnum);
        let end = headers.checked_add(count * size_of::<Elf64_Phdr>())?;
        if end > start + SMALLEST_PAGE || headers % align_of::<Elf64_Phdr>() != 0 {
            return None;
        }
        Some(Object {
            base,
            headers: headers as *const Elf64_Phdr,
            count,
            name,
            position,
        })
    }

    /// # Safety
    /// `dl_iterate_phdr` passed `info` to its callback.
    pub unsafe fn new(info: *const dl_phdr_info, ours_seen: bool) -> Self {
        // SAFETY: valid by contract.
        let info = unsafe { &*info };
        let mut object = Object {
            base: info.dlpi_addr as usize,
            headers: info.dlpi_phdr,
            count: info.dlpi_phnum as usize,
            name: info.dlpi_name,
            position: if ours_seen {
                Position::BehindOurs
            } else {
                Position::BeforeOurs
            },
        };
        if object.holds(our_address()) {
            object.position = Position::Ours;
        }
        object
    }

    pub fn is_ours(&self) -> bool {
        self.position == Position::Ours
    }

    fn headers(&self) -> &[Elf64_Phdr] {
        if self.headers.is_null() {
            return &[];
        }
        // SAFETY: the loader gave this description of a loaded object.
        unsafe { slice::from_raw_parts(self.headers, self.count) }
    }

    fn segments(&self) -> impl Iterator<Item = (Tail, u32)> {
        let loaded = self.headers().iter().filter(|header| header.p_type == libc::PT_LOAD);
        loaded.map(|header| {
            let start = self.base.wrapping_add(header.p_vaddr as usize);
            let end = start.saturating_add(header.p_memsz as usize);
            (Tail { start, end }, header.p_flags)
        })
    }

    /// Whether `address` lies in one of the object's segments.
    pub fn holds(&self, address: usize) -> bool {
        self.segments()
            .any(|(segment, _)| segment.start <= address && address < segment.end)
    }

    /// The first address of the object, and the first one after its end.
    pub fn span(&self) -> (usize, usize) {
        self.segments().fold((usize::MAX, 0), |(low, high), (segment, _)| {
            (low.min(segment.start), high.max(segment.end))
        })
    }

    /// The readable segment that holds `address`, from there on, and readable segments that follow without a gap: a table
    /// may reach into the next segment. patchelf makes such programs; it puts new pages right before the first one.
    fn tail(&self, address: usize) -> Option<Tail> {
        let readable = |at: usize| {
            let mut readable = self.segments().filter(|(_, flags)| flags & libc::PF_R != 0);
            readable.find(|(segment, _)| segment.start <= at && at < segment.end)
        };
        let mut end = readable(address)?.0.end;
        while let Some((next, _)) = readable(end) {
            end = next.end;
        }
        Some(Tail { start: address, end })
    }

    fn dynamic(&self) -> impl Iterator<Item = Dynamic> {
        let section = self.parts(libc::PT_DYNAMIC).next().and_then(|(_, tail)| tail);
        (0..)
            .map_while(move |index| section?.read::<Dynamic>(index))
            .take_while(|entry| entry.tag != DT_NULL)
    }

    /// A table that the dynamic section points to. glibc has added the base to most of these addresses already. Those of
    /// the vDSO, and of objects under other loaders, are still relative.
    fn table(&self, value: u64) -> Option<Tail> {
        self.tail(value as usize)
            .or_else(|| self.tail(self.base.wrapping_add(value as usize)))
    }

    fn symbols(&self) -> Option<Symbols> {
        let (mut entries, mut strings, mut versions, mut gnu, mut system_v) = (None, None, None, None, None);
        for entry in self.dynamic() {
            match entry.tag {
                DT_SYMTAB => entries = self.table(entry.value),
                DT_STRTAB => strings = self.table(entry.value),
                DT_VERSYM => versions = self.table(entry.value),
                DT_GNU_HASH => gnu = self.table(entry.value),
                DT_HASH => system_v = self.table(entry.value),
                _ => {}
            }
        }
        let hash = gnu.map(Hash::Gnu).or(system_v.map(Hash::SystemV))?;
        Some(Symbols {
            entries: entries?,
            strings: strings?,
            versions,
            hash,
        })
    }

    /// Whether the object exports a function of this name.
    pub fn exports(&self, name: &CStr) -> bool {
        self.symbols().is_some_and(|symbols| symbols.find(name).is_some())
    }

    /// The exported function of this name. A function that a resolver chooses at load time (`STT_GNU_IFUNC`) is refused,
    /// because its entry is the resolver.
    pub fn function(&self, name: &CStr) -> Option<*mut c_void> {
        let symbol = self.symbols()?.find(name)?;
        let address = self.base.wrapping_add(symbol.st_value as usize);
        (kind(&symbol) != STT_GNU_IFUNC && self.holds(address)).then_some(address as *mut c_void)
    }

    /// The segments of a type that are not loaded for themselves, each with the loaded segment that it lies in.
    fn parts(&self, segment_type: u32) -> impl Iterator<Item = (&Elf64_Phdr, Option<Tail>)> {
        let parts = self
            .headers()
            .iter()
            .filter(move |header| header.p_type == segment_type);
        parts.map(|header| (header, self.tail(self.base.wrapping_add(header.p_vaddr as usize))))
    }

    /// The table that finds unwind information (`.eh_frame_hdr`).
    #[cfg(target_arch = "x86_64")]
    pub fn unwind_table(&self) -> Option<&[u8]> {
        let (header, tail) = self.parts(libc::PT_GNU_EH_FRAME).next()?;
        tail?.bytes(header.p_memsz as usize)
    }

    /// The bytes of a readable segment from `address` on.
    #[cfg(target_arch = "x86_64")]
    pub fn bytes_from(&self, address: usize) -> Option<&[u8]> {
        let tail = self.tail(address)?;
        tail.bytes(tail.end - tail.start)
    }

    /// Empty if there is none.
    pub fn build_id(&self) -> &[u8] {
        let notes = self.parts(libc::PT_NOTE);
        let mut ids = notes.filter_map(|(notes, at)| build_id(at?.bytes(notes.p_memsz as usize)?));
        ids.next().unwrap_or_default()
    }

    fn dynamic_strings(&self, tag: i64) -> impl Iterator<Item = &CStr> {
        let strings = self
            .dynamic()
            .find(|entry| entry.tag == DT_STRTAB)
            .and_then(|entry| self.table(entry.value));
        self.dynamic()
            .filter(move |entry| entry.tag == tag)
            .filter_map(move |entry| strings?.skip(entry.value as usize)?.text())
    }

    pub fn soname(&self) -> Option<&CStr> {
        self.dynamic_strings(DT_SONAME).next()
    }

    /// The names of the libraries this object was linked with.
    pub fn needed(&self) -> impl Iterator<Item = &CStr> {
        self.dynamic_strings(DT_NEEDED)
    }

    /// The path that it was loaded from; empty for the program itself.
    pub fn path(&self) -> &CStr {
        if self.name.is_null() {
            return c"";
        }
        // SAFETY: the loader's own string lives as long as the object.
        unsafe { CStr::from_ptr(self.name) }
    }

    pub fn file_name(&self) -> &[u8] {
        self.path()
            .to_bytes()
            .rsplit(|&byte| byte == b'/')
            .next()
            .unwrap_or_default()
    }

    /// Whether this is the object's soname or the name of its file.
    pub fn answers_to(&self, name: &[u8]) -> bool {
        self.file_name() == name || self.soname().is_some_and(|own| own.to_bytes() == name)
    }

    /// Whether the object's soname or the name of its file starts like this (`libcudart.so`).
    pub fn is_called(&self, start: &[u8]) -> bool {
        self.file_name().starts_with(start) || self.soname().is_some_and(|name| name.to_bytes().starts_with(start))
    }
}

fn kind(symbol: &Elf64_Sym) -> u8 {
    symbol.st_info & 0xf
}

impl Symbols {
    fn find(&self, name: &CStr) -> Option<Elf64_Sym> {
        match self.hash {
            Hash::Gnu(table) => self.find_gnu(table, name),
            Hash::SystemV(table) => self.find_system_v(table, name),
        }
    }

    /// The symbol at `index`, if it is the default version of a visible function called `name`.
    fn at(&self, index: usize, name: &CStr) -> Option<Elf64_Sym> {
        let symbol: Elf64_Sym = self.entries.read(index)?;
        let version = match self.versions {
            Some(versions) => versions.read::<u16>(index)?,
            None => 1,
        };
        let usable = symbol.st_shndx != 0
            && matches!(kind(&symbol), STT_NOTYPE | STT_FUNC | STT_GNU_IFUNC)
            && symbol.st_info >> 4 != STB_LOCAL
            && !HIDDEN_VISIBILITIES.contains(&(symbol.st_other & 3))
            && version & HIDDEN_VERSION == 0
            && version != 0;
        (usable && self.strings.skip(symbol.st_name as usize)?.is(name)).then_some(symbol)
    }

    /// The table's layout: bucket count, first hashed symbol, filter words, filter shift; filter; buckets; one hash for each
    /// symbol, whose lowest bit ends a chain.
    fn find_gnu(&self, table: Tail, name: &CStr) -> Option<Elf64_Sym> {
        let wanted = gnu_hash(name);
        let (buckets, first) = (table.read::<u32>(0)?, table.read::<u32>(1)?);
        let (filter_words, filter_shift) = (table.read::<u32>(2)?, table.read::<u32>(3)?);
        let filter = table.skip(16)?;
        let word: u64 = filter.read((wanted / 64).checked_rem(filter_words)? as usize)?;
        if word >> (wanted % 64) & word >> (wanted.checked_shr(filter_shift).unwrap_or(0) % 64) & 1 == 0 {
            return None;
        }
        let heads = filter.skip((filter_words as usize).checked_mul(8)?)?;
        let chains = heads.skip((buckets as usize).checked_mul(4)?)?;
        let mut index = heads.read::<u32>(wanted.checked_rem(buckets)? as usize)?;
        loop {
            let hash: u32 = chains.read(index.checked_sub(first)? as usize)?;
            if hash | 1 == wanted | 1
                && let Some(symbol) = self.at(index as usize, name)
            {
                return Some(symbol);
            }
            if hash & 1 == 1 {
                return None;
            }
            index = index.checked_add(1)?;
        }
    }

    /// The table's layout: bucket count, symbol count; buckets; for each symbol the next one of its chain.
    fn find_system_v(&self, table: Tail, name: &CStr) -> Option<Elf64_Sym> {
        let (buckets, count) = (table.read::<u32>(0)?, table.read::<u32>(1)?);
        let chains = 2 + buckets as usize;
        let mut index = table.read::<u32>(2 + system_v_hash(name).checked_rem(buckets)? as usize)?;
        for _ in 0..count {
            if index == 0 {
                return None;
            }
            if let Some(symbol) = self.at(index as usize, name) {
                return Some(symbol);
            }
            index = table.read(chains + index as usize)?;
        }
        None
    }
}

pub fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes()
        .iter()
        .fold(5381, |hash: u32, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()))
}

pub fn system_v_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(0, |hash: u32, &byte| {
        let sum = (hash << 4).wrapping_add(byte.into());
        (sum ^ (sum >> 24 & 0xf0)) & 0x0fff_ffff
    })
}

/// An address inside our own object.
pub fn our_address() -> usize {
    static MARK: u8 = 0;
    &raw const MARK as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_may_reach_into_the_next_segment() {
        let memory = [7u8; 4096];
        let start = memory.as_ptr() as usize;
        let segment = |from: u64, to: u64, flags| Elf64_Phdr {
            p_type: libc::PT_LOAD,
            p_flags: flags,
            p_offset: 0,
            p_vaddr: from,
            p_paddr: 0,
            p_filesz: 0,
            p_memsz: to - from,
            p_align: 1,
        };
        let readable = libc::PF_R;
        let headers = [
            segment(0, 1024, readable),
            segment(1024, 2048, readable | libc::PF_W),
            segment(2048, 2100, 0),
            segment(3000, 4096, readable),
        ];
        let object = Object {
            base: start,
            headers: headers.as_ptr(),
            count: headers.len(),
            name: std::ptr::null(),
            position: Position::BeforeOurs,
        };
        let ends = |address: usize| object.tail(start + address).map(|tail| tail.end - start);
        assert_eq!(
            (ends(1000), ends(1500), ends(3000)),
            (Some(2048), Some(2048), Some(4096))
        );
        assert_eq!((ends(2060), ends(2500), ends(4096)), (None, None, None));
    }
}
