//! Names of native frames: functions from the symbol tables of modules, and lines from their debug information.
//!
//! A module's file is used only if it still has the build id that the job's module had. Otherwise the frame keeps its
//! module and its offset.
//!
//! The path comes from the job, and the file may be of another user than the one who reads. So it is opened once, and what is
//! read of it, expanded, and written as a name has a bound.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use base::identity::effective_user;
use journal::format::Frame;
use journal::reader::{Module, Place, Stacks, plain};
use object::{Object, ObjectSection, ObjectSymbol, ReadCache, SymbolKind};

/// The tables of symbols of one module have at most so many bytes, and those of all modules of a job together.
const MOST_OF_MODULE: u64 = 128 << 20;
const MOST_OF_JOB: u64 = 512 << 20;
/// Debug information that takes more once it is expanded is not read.
const MOST_DEBUG_BYTES: u64 = 256 << 20;
/// A name is cut after so many bytes. A short symbol can stand for gigabytes: each part may name the one before twice.
const LONGEST_NAME: usize = 4 << 10;
/// A longer symbol keeps its letters.
const LONGEST_SYMBOL: usize = 16 << 10;

/// The stacks beside a journal, with names for native frames as far as the files of their modules are here. `None` if
/// there are none.
pub fn named_stacks(journal: &Path) -> io::Result<Option<Stacks>> {
    let mut stacks = Stacks::beside(journal)?;
    stacks.iter_mut().for_each(name);
    Ok(stacks)
}

/// Names the native frames of all stacks.
fn name(stacks: &mut Stacks) {
    let mut by_module: BTreeMap<usize, Vec<Place>> = BTreeMap::new();
    for place in stacks.places() {
        by_module.entry(place.module).or_default().push(place);
    }
    let (mut named, mut left) = (HashMap::new(), MOST_OF_JOB);
    for places in by_module.values() {
        if let Some(module) = stacks.module(&places[0]) {
            name_in(module, places, &mut left, &mut named);
        }
    }
    stacks.name_native(&named);
}

/// Whether no other user can cut the file. The debug information is mapped, and what is mapped and cut would end this program;
/// `vramshim serve` reads the journals of others. Symbols are read without a mapping.
fn is_never_cut(about: &Metadata) -> bool {
    about.uid() == effective_user() || about.uid() == 0 && about.mode() & 0o022 == 0
}

/// Names the places in one module, with at most `left` bytes of tables. `None` if its file cannot be read or is another one.
fn name_in(module: &Module, places: &[Place], left: &mut u64, named: &mut HashMap<Place, Vec<Frame>>) -> Option<()> {
    let opened = plain::open(Path::new(&*module.path)).ok()??;
    let about = opened.metadata().ok()?;
    // The file itself once more: another one may have its name by now.
    let same = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let cache = ReadCache::new(opened);
    let file = object::File::parse(&cache).ok()?;
    let build_id = file.build_id().ok().flatten().unwrap_or_default();
    let digits: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    if digits.is_empty() || digits != module.build_id {
        return None;
    }
    let lines = match file.section_by_name(".debug_info") {
        Some(_) if is_never_cut(&about) && debug_bytes(&file) <= MOST_DEBUG_BYTES => addr2line::Loader::new(same).ok(),
        _ => None,
    };
    let tables = [".symtab", ".strtab", ".dynsym", ".dynstr"];
    let bytes: u64 = tables
        .iter()
        .filter_map(|name| Some(file.section_by_name(name)?.size()))
        .fold(0, u64::saturating_add);
    let functions = match left.checked_sub(bytes) {
        Some(rest) if bytes <= MOST_OF_MODULE => {
            *left = rest;
            functions(&file)
        }
        _ => Vec::new(),
    };
    for &place in places {
        let frames = lines
            .as_ref()
            .and_then(|lines| with_lines(lines, module, place.offset))
            .or_else(|| {
                let function = function_at(&functions, place.offset)?;
                Some(vec![Frame::new(module.path.clone(), 0, demangled(function.name))])
            });
        if let Some(frames) = frames {
            named.insert(place, frames);
        }
    }
    Some(())
}

/// The bytes of the debug information, expanded.
fn debug_bytes<'a>(file: &object::File<'a, &'a ReadCache<File>>) -> u64 {
    let debug = file
        .sections()
        .filter(|section| section.name().is_ok_and(|name| name.starts_with(".debug_")));
    let bytes = debug.map(|section| {
        section
            .compressed_data()
            .map_or(u64::MAX, |data| data.uncompressed_size)
    });
    bytes.fold(0, u64::saturating_add)
}

/// The beginning of a text.
struct Beginning(String);

impl Write for Beginning {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LONGEST_NAME - self.0.len();
        self.0.push_str(&text[..text.floor_char_boundary(room)]);
        if text.len() > room { Err(fmt::Error) } else { Ok(()) }
    }
}

/// The name of a function of Rust or C++, or else the symbol itself.
fn demangled(symbol: &str) -> String {
    if symbol.len() > LONGEST_SYMBOL {
        return format!("{}...", &symbol[..symbol.floor_char_boundary(LONGEST_NAME)]);
    }
    let mut name = Beginning(String::new());
    let written = if let Ok(of_rust) = rustc_demangle::try_demangle(symbol) {
        write!(name, "{of_rust:#}")
    } else if let Ok(of_cpp) = cpp_demangle::BorrowedSymbol::new(symbol.as_bytes()) {
        of_cpp.structured_demangle(&mut name, &cpp_demangle::DemangleOptions::new())
    } else {
        name.write_str(symbol)
    };
    match written {
        Ok(()) => name.0,
        Err(_) if name.0.is_empty() => symbol.to_owned(),
        Err(_) => name.0 + "...",
    }
}

/// The function at an offset and those that were inlined there, innermost first.
fn with_lines(lines: &addr2line::Loader, module: &Module, offset: u64) -> Option<Vec<Frame>> {
    let mut found = lines.find_frames(offset).ok()?;
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = found.next() {
        let Some(function) = &frame.function else { continue };
        let location = frame.location.as_ref();
        frames.push(Frame {
            file: location
                .and_then(|location| location.file)
                .map_or_else(|| module.path.clone(), Into::into),
            line: location.and_then(|location| location.line).unwrap_or(0).into(),
            function: demangled(&function.raw_name().ok()?).into(),
        });
    }
    (!frames.is_empty()).then_some(frames)
}

struct Function<'a> {
    start: u64,
    size: u64,
    name: &'a str,
}

/// The functions of a file, in the order of their addresses.
fn functions<'a>(file: &object::File<'a, &'a ReadCache<File>>) -> Vec<Function<'a>> {
    let symbols = file.symbols().chain(file.dynamic_symbols());
    let mut functions: Vec<_> = symbols
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition() && symbol.size() > 0)
        .filter_map(|symbol| {
            Some(Function {
                start: symbol.address(),
                size: symbol.size(),
                name: symbol.name().ok()?,
            })
        })
        .collect();
    functions.sort_by_key(|function| function.start);
    functions
}

/// The function that has `offset`. Between two functions that a stripped file still names may lie others, so the size
/// counts.
fn function_at<'a, 'b>(functions: &'b [Function<'a>], offset: u64) -> Option<&'b Function<'a>> {
    let behind = functions.partition_point(|function| function.start <= offset);
    let function = functions[..behind].last()?;
    (offset - function.start < function.size).then_some(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_between_functions_has_no_name() {
        let functions = [("a", 16, 16), ("b", 64, 8)].map(|(name, start, size)| Function { start, size, name });
        let name = |offset| function_at(&functions, offset).map(|function| function.name);
        assert_eq!(
            [8, 16, 31, 32, 63, 64, 72].map(name),
            [None, Some("a"), Some("a"), None, None, Some("b"), None]
        );
    }

    /// Each pair is a pair of the pair before.
    #[test]
    fn a_symbol_that_stands_for_gigabytes_is_cut() {
        let substitutions = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ".chars();
        let pairs: String = substitutions.map(|pair| format!("S_IS{pair}_S{pair}_E")).collect();
        let name = demangled(&format!("_Z1fSt4pairIiiE{pairs}"));
        assert!(
            name.starts_with("f(std::pair<int, int>, std::pair<") && name.ends_with("..."),
            "{name}"
        );
        assert_eq!(name.len(), LONGEST_NAME + 3);
        assert_eq!(demangled(&"é".repeat(LONGEST_SYMBOL)).len(), LONGEST_NAME + 3);
        for (symbol, name) in [
            ("_ZN2at5emptyEv", "at::empty()"),
            ("main", "main"),
            ("_RNvC1a1b", "a::b"),
        ] {
            assert_eq!(demangled(symbol), name);
        }
    }

    #[test]
    fn only_files_that_no_other_user_can_cut_are_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("module.so");
        std::fs::write(&path, "").unwrap();
        let is_never_cut = || super::is_never_cut(&path.metadata().unwrap());
        assert!(is_never_cut(), "the user's own");
        // Only root may give a file away.
        if std::os::unix::fs::chown(&path, Some(65534), None).is_ok() {
            assert!(!is_never_cut(), "another user's");
        }
    }
}
