//! Reads from an ELF file the machine that it is made for, the libraries that it needs, and the names that it exports.

use std::fs::File;
use std::path::Path;

use object::elf::{DT_NEEDED, EM_386, FileHeader64, PT_INTERP};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Sym};
use object::{Endianness, ReadCache, ReadRef};

type Header = FileHeader64<Endianness>;

/// The contents of a file that may be run or loaded.
#[derive(Debug)]
pub enum Kind {
    Elf(Binary),
    /// A 32-bit ELF file.
    Elf32 {
        machine: u16,
    },
    /// A script, with the text behind `#!` in the first line.
    Script(String),
    Other,
}

#[derive(Debug, Default)]
pub struct Binary {
    pub machine: u16,
    /// The loader that the program names; a static program names none.
    pub interpreter: Option<String>,
    pub needed: Vec<String>,
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

pub fn read(path: &Path) -> std::io::Result<Kind> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let cache = ReadCache::new(file);
    let head: &[u8] = cache.read_bytes_at(0, size.min(4096)).unwrap_or_default();
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
        return Ok(Kind::Script(String::from_utf8_lossy(line).trim().to_owned()));
    }
    if !head.starts_with(b"\x7fELF") || head.len() < 20 {
        return Ok(Kind::Other);
    }
    if head[4] == 1 {
        let machine = u16::from_le_bytes([head[18], head[19]]);
        return Ok(Kind::Elf32 { machine });
    }
    Ok(parse(&cache).map_or(Kind::Other, Kind::Elf))
}

/// Parses an ELF file; `None` if it is damaged.
fn parse<'data, R: ReadRef<'data>>(data: R) -> Option<Binary> {
    let header = Header::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let mut binary = Binary {
        machine: header.e_machine.get(endian),
        ..Binary::default()
    };
    for segment in header.program_headers(endian, data).ok()? {
        if segment.p_type(endian) == PT_INTERP
            && let Ok(Some(interpreter)) = segment.interpreter(endian, data)
        {
            binary.interpreter = Some(String::from_utf8_lossy(interpreter).into_owned());
        }
    }
    let sections = header.sections(endian, data).ok()?;
    if let Ok(Some((entries, link))) = sections.dynamic(endian, data) {
        let strings = sections.strings(endian, data, link).unwrap_or_default();
        let text = |entry: &object::elf::Dyn64<Endianness>| {
            let at = u32::try_from(entry.d_val.get(endian)).unwrap_or(0);
            let name = strings.get(at).unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        };
        for entry in entries {
            if entry.tag32(endian) == Some(DT_NEEDED) {
                binary.needed.push(text(entry));
            }
        }
    }
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
        EM_386 => "32-bit x86".into(),
        object::elf::EM_X86_64 => "x86-64".into(),
        object::elf::EM_AARCH64 => "aarch64".into(),
        object::elf::EM_ARM => "32-bit ARM".into(),
        number => format!("machine {number}"),
    }
}

/// The ELF machine number of this program, which the library and the job must have, too.
pub const OUR_MACHINE: u16 = if cfg!(target_arch = "aarch64") {
    object::elf::EM_AARCH64
} else {
    object::elf::EM_X86_64
};
