//! Numbers for frames, stacks and texts. Each gets a line in the file of stacks when it is first seen, before any record
//! refers to it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::table::{Key, Table};
use super::unwind;
use journal::format::{NoStack, StackKind};
use journal::writer::{Line, StackFile};

const MOST_FRAMES: usize = 1 << 18;
const MOST_STACKS: usize = 1 << 16;
const MOST_TEXTS: usize = 1 << 16;

/// The bit of a table's value that is a reason instead.
const REASON: u64 = 1 << 62;
const _: () = assert!(unwind::BITS + 32 <= 62);

/// The value of `key` in a table with so many `places`. If the key is new, `make` makes the value, with a line of `file`. A
/// reason is kept in place of a value, unless reading or writing failed, which is tried again later.
#[inline]
fn value_of(
    (table, places): (&OnceLock<Table>, usize),
    file: &StackFile,
    key: Key,
    make: impl FnOnce() -> Result<u64, NoStack>,
) -> Result<u64, NoStack> {
    let table = table.get_or_init(|| Table::new(places));
    let make = || match make() {
        Err(NoStack::Failed) => Err(REASON | u64::from(NoStack::Failed as u32)),
        made => Ok(made.unwrap_or_else(|reason| REASON | u64::from(reason as u32))),
    };
    let value = match table.get(key) {
        Some(known) => known,
        None if file.rests() => return Err(NoStack::Failed),
        None => table.get_or_make(key, make).ok_or(NoStack::Full)?,
    };
    if value & REASON != 0 {
        return Err(NoStack::stack(value as u32).err().unwrap_or(NoStack::Failed));
    }
    Ok(value)
}

/// One kind of things that have numbers.
struct Numbered {
    table: OnceLock<Table>,
    places: usize,
    next: AtomicU64,
}

impl Numbered {
    const fn new(places: usize) -> Numbered {
        Numbered {
            table: OnceLock::new(),
            places,
            next: AtomicU64::new(1),
        }
    }

    /// The number of `key`. If it is new, `write` writes the line for its number to `file`.
    #[inline]
    fn number(
        &self,
        file: &StackFile,
        key: Key,
        write: impl FnOnce(u64) -> Result<(), NoStack>,
    ) -> Result<u32, NoStack> {
        let made = || {
            let number = self.next.fetch_add(1, Relaxed);
            write(number).map(|()| number)
        };
        value_of((&self.table, self.places), file, key, made).map(|number| number as u32)
    }
}

/// What the file of stacks of one process has.
pub struct Interned {
    file: StackFile,
    frames: Numbered,
    places: OnceLock<Table>,
    modules: Numbered,
    stacks: Numbered,
    texts: Numbered,
}

impl Interned {
    pub fn new(file: StackFile) -> Interned {
        Interned {
            file,
            frames: Numbered::new(MOST_FRAMES),
            places: OnceLock::new(),
            modules: Numbered::new(1 << 12),
            stacks: Numbered::new(MOST_STACKS),
            texts: Numbered::new(MOST_TEXTS),
        }
    }

    /// The number of a frame. If it is new, `describe` adds the fields of its line, which is of `kind`.
    #[inline]
    pub fn frame(
        &self,
        kind: u8,
        key: Key,
        describe: impl FnOnce(Line) -> Result<Line, NoStack>,
    ) -> Result<u32, NoStack> {
        self.frames.number(&self.file, key, |number| {
            self.file.append(describe(Line::new(kind, number))?)
        })
    }

    /// The number of the frame at a place in the code, and what is kept with the number (`unwind::Step::pack`). If the
    /// place is new, `make` answers both; it gets a function that writes the frame's line with these fields.
    #[inline]
    pub fn place(
        &self,
        key: Key,
        make: impl FnOnce(&dyn Fn(&[&[u8]]) -> Result<u32, NoStack>) -> Result<(u32, u64), NoStack>,
    ) -> Result<(u32, u64), NoStack> {
        let describe = |fields: &[&[u8]]| {
            let number = self.frames.next.fetch_add(1, Relaxed);
            let line = fields
                .iter()
                .fold(Line::new(b'A', number), |line, field| line.field(field));
            self.file.append(line).map(|()| number as u32)
        };
        let pack = || make(&describe).map(|(number, step)| step | u64::from(number) << unwind::BITS);
        let value = value_of((&self.places, MOST_FRAMES), &self.file, key, pack)?;
        Ok(((value >> unwind::BITS) as u32, value & ((1 << unwind::BITS) - 1)))
    }

    /// The number of a module, from 0. If it is new, `describe` adds the fields of its line.
    pub fn module(&self, key: Key, describe: impl FnOnce(Line) -> Line) -> Result<u32, NoStack> {
        let write = |number| self.file.append(describe(Line::new(b'M', number - 1)));
        Ok(self.modules.number(&self.file, key, write)? - 1)
    }

    /// The number of a stack with these frames.
    #[inline]
    pub fn stack(&self, kind: StackKind, frames: &[u32]) -> Result<u32, NoStack> {
        let key = content_key(kind as u64, frames.iter().map(|&frame| u64::from(frame)));
        self.stacks.number(&self.file, key, |number| {
            let line = Line::new(b'T', number).field(kind.name().as_bytes());
            let with_frame = |line: Line, frame: &u32| line.field(frame.to_string().as_bytes());
            self.file.append(frames.iter().fold(line, with_frame))
        })
    }

    /// The number of a text; 0 if it is not kept.
    pub fn text(&self, text: &[u8]) -> u64 {
        let words = text.chunks(8).map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        });
        let key = content_key(text.len() as u64, words);
        let write = |number| self.file.append(Line::new(b'N', number).field(text));
        self.texts.number(&self.file, key, write).map_or(0, u64::from)
    }
}

/// A key that stands for a sequence of words: two sums that mix differently. Two sequences of one job having the same
/// 128 bits is less likely than a fault of its memory.
fn content_key(seed: u64, words: impl Iterator<Item = u64>) -> Key {
    let (mut a, mut b) = (seed ^ 0x9e37_79b9_7f4a_7c15, !seed);
    for word in words {
        a = (a ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
        a ^= a >> 32;
        b = (b.rotate_left(23) ^ word).wrapping_mul(0x94d0_49bb_1331_11eb);
    }
    [a, b ^ b >> 29]
}
