//! Names of native frames: functions from the symbol tables of modules, and lines from their debug information.
//!
//! A module's file is used only if it still has the build id that the job's module had. Otherwise the frame keeps its
//! module and its offset.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use addr2line::demangle_auto;
use journal::format::Frame;
use journal::reader::{Module, Place, Stacks};
use object::{Object, ObjectSymbol, ReadCache, SymbolKind};

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
    let mut named = HashMap::new();
    for places in by_module.values() {
        if let Some(module) = stacks.module(&places[0]) {
            name_in(module, places, &mut named);
        }
    }
    stacks.name_native(&named);
}

/// Whether no other user can cut the file. The debug information is mapped, and what is mapped and cut would end this program;
/// `vramshim serve` reads the journals of others. Symbols are read without a mapping.
fn is_never_cut(about: &Metadata) -> bool {
    // SAFETY: geteuid has no preconditions.
    let user = unsafe { libc::geteuid() };
    about.uid() == user || about.uid() == 0 && about.mode() & 0o022 == 0
}

/// The frames at offsets of one file; of each those that were inlined there too, innermost first. `None` if the file cannot
/// be read, or does not have this build id.
pub fn frames_in(path: &str, build_id: &str, offsets: &[u64]) -> Option<HashMap<u64, Vec<Frame>>> {
    let module = Module {
        path: path.into(),
        build_id: build_id.to_owned(),
    };
    let places: Vec<Place> = offsets.iter().map(|&offset| Place { module: 0, offset }).collect();
    let mut named = HashMap::new();
    name_in(&module, &places, &mut named)?;
    Some(
        named
            .into_iter()
            .map(|(place, frames)| (place.offset, frames))
            .collect(),
    )
}

/// Names the places in one module. `None` if its file cannot be read or is another one.
fn name_in(module: &Module, places: &[Place], named: &mut HashMap<Place, Vec<Frame>>) -> Option<()> {
    let path = Path::new(&*module.path);
    // The path comes from a file that may be damaged, or that another user wrote. Reading a pipe could wait for ever, and
    // another file can have the name by the time of the open.
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    let about = opened.metadata().ok().filter(Metadata::is_file)?;
    let cache = ReadCache::new(opened);
    let file = object::File::parse(&cache).ok()?;
    let build_id = file.build_id().ok().flatten().unwrap_or_default();
    let digits: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    if digits.is_empty() || digits != module.build_id {
        return None;
    }
    let lines = match file.section_by_name(".debug_info") {
        Some(_) if is_never_cut(&about) => addr2line::Loader::new(path).ok(),
        _ => None,
    };
    let functions = functions(&file);
    for &place in places {
        let frames = lines
            .as_ref()
            .and_then(|lines| with_lines(lines, module, place.offset))
            .or_else(|| {
                let function = function_at(&functions, place.offset)?;
                let name = demangle_auto(function.name.into(), None);
                Some(vec![Frame::new(module.path.clone(), 0, name.as_ref())])
            });
        if let Some(frames) = frames {
            named.insert(place, frames);
        }
    }
    Some(())
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
            function: function.demangle().ok()?.as_ref().into(),
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
