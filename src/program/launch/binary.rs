//! Reads from an ELF file the names that it exports.

use std::fs::File;
use std::path::Path;

use object::elf::FileHeader64;
use object::read::elf::{FileHeader, Sym};
use object::{Endianness, ReadCache, ReadRef};

type Header = FileHeader64<Endianness>;

#[derive(Debug, Default)]
pub struct Binary {
    /// The exported names that begin like functions of the loader, CUDA, NVML, the simulated GPU or the library.
    exports: Vec<String>,
}

impl Binary {
    pub fn exports(&self, name: &str) -> bool {
        self.exports.iter().any(|exported| exported == name)
    }

    /// Whether it takes calls of CUDA or NVML, or look-ups of their functions. A library's own functions have no capital
    /// letter behind the prefix.
    pub fn takes_calls(&self) -> bool {
        let is_of_cuda = |name: &String| {
            let mut rests = ["cu", "cuda", "nvml"]
                .iter()
                .filter_map(|start| name.strip_prefix(start));
            rests.any(|rest| rest.starts_with(|letter: char| letter.is_ascii_uppercase()))
        };
        self.exports("dlsym") || self.exports.iter().any(is_of_cuda)
    }
}

/// Reads a file; `None` if it is no 64-bit ELF file, or damaged.
pub fn read(path: &Path) -> std::io::Result<Option<Binary>> {
    Ok(parse(&ReadCache::new(File::open(path)?)))
}

fn parse<'data, R: ReadRef<'data>>(data: R) -> Option<Binary> {
    let header = Header::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let mut binary = Binary::default();
    let sections = header.sections(endian, data).ok()?;
    if let Ok(symbols) = sections.symbols(endian, data, object::elf::SHT_DYNSYM) {
        for symbol in symbols.iter().filter(|symbol| symbol.is_definition(endian)) {
            let Ok(name) = symbol.name(endian, symbols.strings()) else {
                continue;
            };
            let concerns_us = ["dl", "cu", "nvml", "simgpu_", "vramshim_"];
            if concerns_us.iter().any(|start| name.starts_with(start.as_bytes())) {
                binary.exports.push(String::from_utf8_lossy(name).into_owned());
            }
        }
    }
    Some(binary)
}
