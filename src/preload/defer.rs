//! `vramshim-defer LIBRARY`: takes references of a linked `libvramshim.so` out of the loader's table, so that the library
//! binds them itself, at its first use. `next/bind` says why and how.
//!
//! The file is replaced by one with these changes. No address changes.
//!
//! - The table of references has those that the loader binds first. The dynamic section says that the table ends there, and
//!   by a tag of ours how long the rest is (in place of `DT_RELACOUNT`, a hint for loaders).
//! - The place of a deferred reference to the library itself holds the address in the file.
//! - The loader calls no start function. There is one, by which Rust's standard library notes the arguments of the program
//!   for `std::env::args`; the library does not use that. The page of its code would have to be mapped.
//! - The last page of data that the file has a part of is in the file as a whole. The loader would fill it with zeros.
//! - The program header of constant data (`PT_GNU_RELRO`) has a type of ours: until its pages are bound they are writable.
//!
//! For other machines than x86-64 the program changes nothing, and says so.

#[path = "next/bind/marks.rs"]
mod marks;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, iter};

use marks::{KEPT, Reference, Rela};

type Outcome<T> = Result<T, Box<dyn Error>>;

const X86_64: u16 = 62;
const SHARED_OBJECT: u16 = 3;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_RELRO: u32 = 0x6474_e552;

const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_INIT: u64 = 12;
const DT_FINI_ARRAY: u64 = 26;
const DT_INIT_ARRAYSZ: u64 = 27;
const DT_FINI_ARRAYSZ: u64 = 28;
const DT_RELACOUNT: u64 = 0x6fff_fff9;

const STT_FUNC: u8 = 2;

const RELA_BYTES: usize = size_of::<Rela>();
const SYMBOL_BYTES: u64 = 24;
const ADDRESS_BYTES: u64 = 8;
const PAGE: u64 = 4096;

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let (Some(path), None) = (arguments.next().map(PathBuf::from), arguments.next()) else {
        eprintln!("usage: vramshim-defer LIBRARY\nLets libvramshim.so bind its references at its first use.");
        return ExitCode::from(2);
    };
    match defer(&path) {
        Ok(done) => {
            println!("{}: {done}", path.display());
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("vramshim-defer: {}: {problem}", path.display());
            ExitCode::FAILURE
        }
    }
}

fn defer(path: &Path) -> Outcome<String> {
    let mut image = Image::read(path)?;
    if image.half(18)? != X86_64 {
        return Ok("not for x86-64; the loader binds everything".to_owned());
    }
    if image.tag(marks::TAG).is_some() {
        return Ok("its references are deferred already".to_owned());
    }
    let (kept, deferred) = image.split()?;
    let table = image.place(image.needed_tag(DT_RELA)?)?;
    for (index, rela) in kept.iter().chain(&deferred).enumerate() {
        let at = table + index * RELA_BYTES;
        image.set(at, rela.offset)?;
        image.set(at + 8, rela.info)?;
        image.set(at + 16, rela.addend)?;
    }
    for rela in &deferred {
        if marks::reference(rela.info) == Some(Reference::Own) {
            image.set(image.place(rela.offset)?, rela.addend)?;
        }
    }
    let size = image.entry(DT_RELASZ).ok_or("it has no DT_RELASZ")?;
    image.set(size + 8, (kept.len() * RELA_BYTES) as u64)?;
    let hint = image
        .entry(DT_RELACOUNT)
        .ok_or("it has no DT_RELACOUNT, whose place is needed")?;
    image.set(hint, marks::TAG)?;
    image.set(hint + 8, (deferred.len() * RELA_BYTES) as u64)?;
    if image.tag(DT_INIT_ARRAYSZ) != Some(ADDRESS_BYTES) || image.tag(DT_INIT).is_some() {
        return Err("it has other start functions than that of Rust's standard library, which may be needed".into());
    }
    let start_functions = image.entry(DT_INIT_ARRAYSZ).ok_or("it has no start function")?;
    image.set(start_functions + 8, 0)?;
    image.fill_last_page()?;
    let relro = image
        .header(PT_GNU_RELRO)
        .ok_or("it has no PT_GNU_RELRO: link it with -z relro")?;
    image.bytes[relro..relro + 4].copy_from_slice(&marks::CONSTANT_DATA.to_le_bytes());
    image.write(path)?;
    Ok(format!(
        "{} references are deferred, {} are left to the loader",
        deferred.len(),
        kept.len()
    ))
}

/// An ELF file of 64 bits, little endian.
struct Image {
    bytes: Vec<u8>,
    /// Where the program headers lie in the file.
    headers: Vec<usize>,
    /// Tag and place of each entry of the dynamic section.
    dynamic: Vec<(u64, usize)>,
}

impl Image {
    fn read(path: &Path) -> Outcome<Self> {
        let mut image = Image {
            bytes: fs::read(path)?,
            headers: Vec::new(),
            dynamic: Vec::new(),
        };
        let is_elf = image.bytes.starts_with(b"\x7fELF\x02\x01");
        if !is_elf || image.half(16)? != SHARED_OBJECT {
            return Err("it is no shared library of 64 bits".into());
        }
        let (first, size, count) = (image.word(32)? as usize, image.half(54)?, image.half(56)?);
        image.headers = (0..usize::from(count))
            .map(|index| first + index * usize::from(size))
            .collect();
        let section = image.header(PT_DYNAMIC).ok_or("it has no dynamic section")?;
        let (start, length) = (image.word(section + 8)? as usize, image.word(section + 32)? as usize);
        for at in (start..start + length).step_by(16) {
            image.dynamic.push((image.word(at)?, at));
        }
        Ok(image)
    }

    /// Replaces the file as a whole: processes that have the old one mapped keep it.
    fn write(&self, path: &Path) -> Outcome<()> {
        let beside = path.with_extension("deferred");
        fs::copy(path, &beside)?;
        fs::write(&beside, &self.bytes)?;
        Ok(fs::rename(beside, path)?)
    }

    fn array<const N: usize>(&self, at: usize) -> Outcome<[u8; N]> {
        let bytes = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        Ok(*bytes.ok_or_else(|| format!("it ends before byte {at}"))?)
    }

    fn half(&self, at: usize) -> Outcome<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn word(&self, at: usize) -> Outcome<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    fn set(&mut self, at: usize, word: u64) -> Outcome<()> {
        self.array::<8>(at)?;
        self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        Ok(())
    }

    /// The place of the first program header of a type.
    fn header(&self, kind: u32) -> Option<usize> {
        let is_of_kind = |at: &&usize| self.array(**at).is_ok_and(|bytes| u32::from_le_bytes(bytes) == kind);
        self.headers.iter().find(is_of_kind).copied()
    }

    /// The place in the file of what is mapped at `address`.
    fn place(&self, address: u64) -> Outcome<usize> {
        for &header in &self.headers {
            let kind = u32::from_le_bytes(self.array(header)?);
            let (offset, start, size) = (self.word(header + 8)?, self.word(header + 16)?, self.word(header + 32)?);
            if kind == PT_LOAD && (start..start + size).contains(&address) {
                return Ok((address - start + offset) as usize);
            }
        }
        Err(format!("address {address:#x} is not in the file").into())
    }

    /// The place of the entry of a tag in the dynamic section.
    fn entry(&self, tag: u64) -> Option<usize> {
        self.dynamic.iter().find(|(own, _)| *own == tag).map(|(_, at)| *at)
    }

    fn tag(&self, tag: u64) -> Option<u64> {
        self.entry(tag).and_then(|at| self.word(at + 8).ok())
    }

    fn needed_tag(&self, tag: u64) -> Outcome<u64> {
        self.tag(tag)
            .ok_or_else(|| format!("its dynamic section has no tag {tag}").into())
    }

    /// The references that the loader goes on to bind, and those that are deferred.
    fn split(&self) -> Outcome<(Vec<Rela>, Vec<Rela>)> {
        let (table, size) = (
            self.place(self.needed_tag(DT_RELA)?)?,
            self.needed_tag(DT_RELASZ)? as usize,
        );
        let (mut kept, mut deferred) = (Vec::new(), Vec::new());
        for at in (table..table + size).step_by(RELA_BYTES) {
            let rela = Rela {
                offset: self.word(at)?,
                info: self.word(at + 8)?,
                addend: self.word(at + 16)?,
            };
            if self.can_be_deferred(&rela)? {
                &mut deferred
            } else {
                &mut kept
            }
            .push(rela);
        }
        Ok((kept, deferred))
    }

    fn can_be_deferred(&self, rela: &Rela) -> Outcome<bool> {
        // `bind` writes whole aligned words, and expects a certain word there, which must be in the file.
        if !rela.offset.is_multiple_of(ADDRESS_BYTES) || self.place(rela.offset).is_err() {
            return Ok(false);
        }
        match marks::reference(rela.info) {
            Some(Reference::Own) => Ok(!self.is_called_at_end(rela.offset) && rela.addend != 0),
            Some(Reference::Symbol(index)) => {
                let (kind, name) = self.symbol(index as u64)?;
                let is_kept = KEPT.iter().any(|kept| kept.as_bytes() == name);
                Ok(kind == STT_FUNC && !is_kept && self.word(self.place(rela.offset)?)? == 0)
            }
            None => Ok(false),
        }
    }

    /// Whether the loader calls the function whose address lies there.
    fn is_called_at_end(&self, address: u64) -> bool {
        let start = self.tag(DT_FINI_ARRAY).unwrap_or(0);
        (start..start + self.tag(DT_FINI_ARRAYSZ).unwrap_or(0)).contains(&address)
    }

    /// Moves what the file has behind the last segment, which no process maps, to the next page. The zeros in between belong
    /// to the segment.
    fn fill_last_page(&mut self) -> Outcome<()> {
        let mut segments = Vec::new();
        for &header in &self.headers {
            if u32::from_le_bytes(self.array(header)?) == PT_LOAD {
                segments.push((self.word(header + 8)? + self.word(header + 32)?, header));
            }
        }
        let (end, header) = segments.into_iter().max().ok_or("it has no segments")?;
        let (in_file, in_memory) = (self.word(header + 32)?, self.word(header + 40)?);
        let zeros = (end.next_multiple_of(PAGE) - end).min(in_memory - in_file);
        // The table of sections stays aligned.
        if !zeros.is_multiple_of(ADDRESS_BYTES) {
            return Ok(());
        }
        self.bytes
            .splice(end as usize..end as usize, iter::repeat_n(0, zeros as usize));
        self.set(header + 32, in_file + zeros)?;
        let (mut sections, size, count) = (self.word(40)?, self.half(58)?, self.half(60)?);
        if sections >= end {
            sections += zeros;
            self.set(40, sections)?;
        }
        for section in (0..count).map(|index| (sections + u64::from(index) * u64::from(size)) as usize) {
            let offset = self.word(section + 24)?;
            if offset >= end {
                self.set(section + 24, offset + zeros)?;
            }
        }
        Ok(())
    }

    /// The type and the name of a symbol. The type of a symbol of another library is what the linker found there.
    fn symbol(&self, index: u64) -> Outcome<(u8, &[u8])> {
        let at = self.place(self.needed_tag(DT_SYMTAB)? + index * SYMBOL_BYTES)?;
        let [info] = self.array(at + 4)?;
        let name = self.place(self.needed_tag(DT_STRTAB)? + u64::from(u32::from_le_bytes(self.array(at)?)))?;
        let text = &self.bytes[name..];
        Ok((info & 0xf, text.split(|&byte| byte == 0).next().unwrap_or(text)))
    }
}
