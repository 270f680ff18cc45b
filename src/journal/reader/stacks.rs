//! Reads the file of stacks beside a journal (`format::stacks`). Its process may be running or killed.
//!
//! The whole file is read at once. A thread may write the line of a stack before another thread writes the lines of
//! its frames, so frames are looked up when all lines are read. A line that cannot be understood is counted and left
//! out.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::lines::{self, Kind, Lines, Shared, unescaped};
use crate::format::{Frame, STACKS_EXTENSION, STACKS_MAGIC, STACKS_VERSION, Stack, StackKind};

pub(super) const KIND: Kind = Kind {
    magic: STACKS_MAGIC,
    version: STACKS_VERSION,
    what: "stacks",
};
/// No job writes more; what follows is left out.
pub(super) const LARGEST_FILE_BYTES: u64 = 256 << 20;
/// No job writes a deeper stack; outer frames are left out.
const DEEPEST: usize = 1024;
/// No job writes more lines of frames, modules and texts together; what follows counts as damage. A short line takes
/// many times its length in memory. The library ends at 2^18 frames of Python, as many native ones, and 2^16 texts.
const MOST_NAMES: usize = 5 << 17;
/// No job writes more stacks; what follows counts as damage.
const MOST_STACKS: usize = 1 << 16;
/// No job writes more frames in all of its stacks together; what follows counts as damage. The library ends at 65,536
/// stacks of 128 frames.
const MOST_FRAMES_OF_STACKS: usize = 8 << 20;

/// A file of code that was mapped in the process: a program or a shared library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    pub path: Arc<str>,
    /// The build id in hexadecimal digits; empty if the file has none.
    pub build_id: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The index in `Stacks::modules`.
    pub module: usize,
    /// The address in the module's file, as symbol tables have it: the address in memory less the module's base.
    pub offset: u64,
}

#[derive(Default)]
pub struct Stacks {
    pub pid: u32,
    modules: HashMap<usize, Module>,
    places: HashMap<u64, Place>,
    stacks: HashMap<u32, Stack, RandomState>,
    texts: HashMap<u64, String>,
    /// The native frames of stacks: the place of each frame that has one.
    native: HashMap<u32, Vec<Option<Place>>>,
    /// Lines that could not be understood.
    pub damaged: u64,
}

/// What lines say, before frames are looked up.
#[derive(Default)]
struct Lists {
    frames: HashMap<u64, Frame>,
    stacks: Vec<(u32, StackKind, Vec<u64>)>,
    /// The frames that the stacks have together.
    depths: usize,
    texts: Shared,
}

impl Stacks {
    /// Reads the file that belongs to a journal. `None` if the file does not exist.
    pub fn beside(journal: &Path) -> io::Result<Option<Stacks>> {
        Stacks::open(&Stacks::path(journal))
    }

    pub fn path(journal: &Path) -> PathBuf {
        journal.with_extension(STACKS_EXTENSION)
    }

    fn open(path: &Path) -> io::Result<Option<Stacks>> {
        let Some((lines, head)) = lines::open(path, &KIND)? else {
            return Ok(None);
        };
        let mut stacks = Stacks {
            pid: head.first().and_then(|pid| pid.parse().ok()).unwrap_or(0),
            ..Stacks::default()
        };
        stacks.read(lines)?;
        Ok(Some(stacks))
    }

    fn read(&mut self, mut lines: Lines) -> io::Result<()> {
        let mut lists = Lists::default();
        let mut bytes = 0;
        while let Some(line) = lines.next()? {
            bytes += line.len() as u64;
            if bytes > LARGEST_FILE_BYTES {
                break;
            }
            if self.take(&String::from_utf8_lossy(line), &mut lists).is_none() {
                self.damaged += 1;
            }
        }
        for (&number, place) in &self.places {
            lists.frames.insert(number, self.unnamed(place));
        }
        let unknown = Frame::new("", 0, "(not in the file)");
        for (number, kind, numbers) in lists.stacks {
            let frame = |number| lists.frames.get(number).unwrap_or(&unknown).clone();
            let frames = numbers.iter().map(frame).collect();
            let native = numbers
                .iter()
                .take_while(|number| self.places.contains_key(number))
                .count();
            if kind != StackKind::Python {
                let places = numbers.iter().map(|number| self.places.get(number).copied()).collect();
                self.native.insert(number, places);
            }
            self.stacks.insert(number, Stack { kind, frames, native });
        }
        Ok(())
    }

    /// Takes what one line says. `None` if the line cannot be understood.
    fn take(&mut self, line: &str, lists: &mut Lists) -> Option<()> {
        let mut fields = line.split('\t');
        let (kind, number) = (fields.next()?, fields.next()?.parse::<u64>().ok()?);
        let names = self.modules.len() + self.places.len() + self.texts.len() + lists.frames.len();
        let is_full = match kind {
            "T" => lists.stacks.len() >= MOST_STACKS,
            _ => names >= MOST_NAMES,
        };
        if is_full {
            return None;
        }
        match kind {
            "M" => {
                let path = lists.texts.text(fields.next()?);
                let build_id = fields.next()?;
                if !build_id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                    return None;
                }
                let build_id = build_id.to_owned();
                self.modules.insert(number as usize, Module { path, build_id });
            }
            "P" => {
                let frame = Frame {
                    file: lists.texts.text(fields.next()?),
                    line: fields.next()?.parse().ok()?,
                    function: lists.texts.text(fields.next()?),
                };
                lists.frames.insert(number, frame);
            }
            "A" => {
                let module = fields.next()?.parse().ok()?;
                let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
                self.places.insert(number, Place { module, offset });
            }
            "T" => {
                let kind = StackKind::parse(fields.next()?)?;
                let numbers: Option<Vec<u64>> = fields.take(DEEPEST).map(|field| field.parse().ok()).collect();
                // An empty stack takes memory too.
                let depths = lists.depths + numbers.as_ref()?.len().max(1);
                if depths > MOST_FRAMES_OF_STACKS {
                    return None;
                }
                lists.depths = depths;
                lists.stacks.push((number.try_into().ok()?, kind, numbers?));
            }
            "N" => {
                self.texts.insert(number, unescaped(fields.next()?));
            }
            _ => return None,
        }
        Some(())
    }

    /// The frame of a place whose symbol is not known.
    fn unnamed(&self, place: &Place) -> Frame {
        let file = (self.modules.get(&place.module)).map_or_else(|| Arc::from(""), |module| Arc::clone(&module.path));
        let name = file.rsplit('/').next().unwrap_or(&file);
        Frame {
            function: format!("{name}+{:#x}", place.offset).into(),
            line: 0,
            file,
        }
    }

    pub fn get(&self, number: u32) -> Option<&Stack> {
        self.stacks.get(&number)
    }

    /// All stacks with their numbers, in no order.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Stack)> {
        self.stacks.iter().map(|(&number, stack)| (number, stack))
    }

    /// The interned text with this number.
    pub fn text(&self, number: u64) -> Option<&str> {
        self.texts.get(&number).map(String::as_str)
    }

    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    pub fn module(&self, place: &Place) -> Option<&Module> {
        self.modules.get(&place.module)
    }

    pub fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.places.values().copied()
    }

    /// Replaces each native frame by the frames that `named` has for its place: a function and those that the compiler
    /// inlined into it, innermost first. Frames without an entry stay as they are.
    pub fn name_native(&mut self, named: &HashMap<Place, Vec<Frame>>) {
        for (number, places) in std::mem::take(&mut self.native) {
            let Some(stack) = self.stacks.get_mut(&number) else {
                continue;
            };
            let mut frames = Vec::with_capacity(stack.frames.len());
            let mut native = 0;
            for (frame, place) in stack.frames.drain(..).zip(places) {
                native += usize::from(place.is_some());
                match place.and_then(|place| named.get(&place)) {
                    Some(named) => {
                        native += named.len().saturating_sub(1);
                        frames.extend(named.iter().cloned());
                    }
                    None => frames.push(frame),
                }
            }
            (stack.frames, stack.native) = (frames, native);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Stacks {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("a.vraj");
        std::fs::write(folder.path().join("a.stacks"), text).unwrap();
        Stacks::beside(&journal).unwrap().unwrap()
    }

    #[test]
    fn every_kind_of_line_is_read_in_any_order() {
        let mut stacks = read(
            b"vramshim-stacks\t1\t7\nT\t1\tboth\t3\t1\nP\t1\ta\\tb.py\t3\tf\\n\\\\\nM\t0\t/lib/c.so\tab01\n\
              A\t3\t0\t1f0\nN\t1\tepoch 3\nT\t2\tpython\t1\t9\n",
        );
        let python = Frame::new("a\tb.py", 3, "f\n\\");
        assert_eq!((stacks.pid, stacks.len(), stacks.damaged), (7, 2, 0));
        let stack = stacks.get(1).unwrap();
        assert_eq!((stack.kind, stack.native), (StackKind::Both, 1));
        assert_eq!(stack.frames, [Frame::new("/lib/c.so", 0, "c.so+0x1f0"), python.clone()]);
        assert_eq!(
            stacks.get(2).unwrap().frames,
            [python.clone(), Frame::new("", 0, "(not in the file)")]
        );
        assert_eq!((stacks.text(1), stacks.text(2)), (Some("epoch 3"), None));
        let place = Place {
            module: 0,
            offset: 0x1f0,
        };
        assert_eq!(stacks.module(&place).unwrap().build_id, "ab01");
        let inner = [Frame::new("c.c", 5, "inlined"), Frame::new("c.c", 9, "outer")];
        stacks.name_native(&HashMap::from([(place, inner.to_vec())]));
        let stack = stacks.get(1).unwrap();
        assert_eq!((&stack.frames, stack.native), (&[&inner[..], &[python]].concat(), 2));
    }

    #[test]
    fn a_torn_last_line_ends_the_file_and_damaged_ones_are_left_out() {
        let stacks = read(b"vramshim-stacks\t1\t7\nX\t1\nT\tone\nP\t1\tx\nM\t0\tc\tnot hex\n\xff\xfe\nT\t1\tpython\t1");
        assert_eq!((stacks.len(), stacks.damaged), (0, 5));
    }

    #[test]
    fn a_stack_of_a_hostile_file_is_cut() {
        let line = format!("vramshim-stacks\t1\t7\nT\t1\tpython{}\n", "\t1".repeat(5000));
        assert_eq!(read(line.as_bytes()).get(1).unwrap().frames.len(), DEEPEST);
    }

    #[test]
    fn a_hostile_file_of_many_short_lines_takes_bounded_memory() {
        let stack = format!("T\t1\tpython{}\n", "\t1".repeat(DEEPEST));
        let stacks = read(format!("vramshim-stacks\t1\t7\n{}", stack.repeat(8194)).as_bytes());
        assert_eq!(stacks.damaged, 2, "8 Mi frames are 8,192 stacks of {DEEPEST}");
        let names: String = (0..MOST_NAMES + 3).map(|number| format!("N\t{number}\t\n")).collect();
        assert_eq!(read(format!("vramshim-stacks\t1\t7\n{names}").as_bytes()).damaged, 3);
    }
}
