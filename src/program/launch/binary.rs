//! Reads from an ELF file the machine that it is made for, the glibc that it needs, and the names that it exports.

use std::fs::File;
use std::path::Path;

use object::elf::FileHeader64;
use object::read::elf::{FileHeader, Sym};
use object::{Endianness, ReadCache, ReadRef};

type Header = FileHeader64<Endianness>;

#[derive(Debug, Default)]
pub struct Binary {
    pub machine: u16,
    /// The exported names that begin like functions of the loader, CUDA, NVML, the simulated GPU or the library.
    pub exports: Vec<String>,
    /// The latest version of glibc that the file needs.
    pub glibc: Option<(u32, u32)>,
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
    let mut binary = Binary {
        machine: header.e_machine.get(endian),
        ..Binary::default()
    };
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
    binary.glibc = glibc(endian, data, &sections);
    Some(binary)
}

fn glibc<'data, R: ReadRef<'data>>(
    endian: Endianness,
    data: R,
    sections: &object::read::elf::SectionTable<'data, Header, R>,
) -> Option<(u32, u32)> {
    let (mut files, link) = sections.gnu_verneed(endian, data).ok()??;
    let strings = sections.strings(endian, data, link).ok()?;
    let mut latest = None;
    while let Ok(Some((_, mut versions))) = files.next() {
        while let Ok(Some(version)) = versions.next() {
            // The loader goes on without a version that only weak symbols have.
            if version.vna_flags.get(endian) & object::elf::VER_FLG_WEAK != 0 {
                continue;
            }
            let name = version.name(endian, strings).unwrap_or_default();
            let number = std::str::from_utf8(name)
                .ok()
                .and_then(|name| name.strip_prefix("GLIBC_"));
            latest = latest.max(number.and_then(parse_version));
        }
    }
    latest
}

/// Parses a version such as `2.34`.
pub fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

pub fn machine_name(machine: u16) -> String {
    match machine {
        object::elf::EM_X86_64 => "x86-64".into(),
        object::elf::EM_AARCH64 => "aarch64".into(),
        number => format!("machine {number}"),
    }
}

/// The ELF machine number of this program, which the library and the job must have, too.
pub const OUR_MACHINE: u16 = if cfg!(target_arch = "aarch64") {
    object::elf::EM_AARCH64
} else {
    object::elf::EM_X86_64
};
