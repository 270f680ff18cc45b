//! Writes Python's pickle, with the opcodes alone that PyTorch's MemoryViz reads: protocol 4 without frames of bytes,
//! lists in batches of at most a thousand, and texts and stacks that are written once and referred to from then on.

use std::collections::HashMap;
use std::io::{self, Write};

use foldhash::fast::RandomState;

const PROTO: u8 = 0x80;
const STOP: u8 = b'.';
const MARK: u8 = b'(';
const NEWTRUE: u8 = 0x88;
const NEWFALSE: u8 = 0x89;
const BININT: u8 = b'J';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const LONG1: u8 = 0x8a;
const SHORT_BINUNICODE: u8 = 0x8c;
const BINUNICODE: u8 = b'X';
const EMPTY_LIST: u8 = b']';
const APPEND: u8 = b'a';
const APPENDS: u8 = b'e';
const TUPLE2: u8 = 0x86;
const EMPTY_DICT: u8 = b'}';
const SETITEM: u8 = b's';
const SETITEMS: u8 = b'u';
const MEMOIZE: u8 = 0x94;
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';

/// The most items between a mark and the opcode that takes them.
const BATCH: usize = 1000;

/// The place of a value in the memo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept(u32);

pub struct Pickle<'w> {
    out: &'w mut dyn Write,
    kept: u32,
    /// Each entry of a trace looks up a dozen.
    texts: HashMap<String, Kept, RandomState>,
}

impl<'w> Pickle<'w> {
    pub fn new(out: &'w mut dyn Write) -> io::Result<Pickle<'w>> {
        out.write_all(&[PROTO, 4])?;
        Ok(Pickle {
            out,
            kept: 0,
            texts: HashMap::default(),
        })
    }

    pub fn finish(self) -> io::Result<()> {
        self.out.write_all(&[STOP])
    }

    /// Remembers the value that was written last.
    pub fn keep(&mut self) -> io::Result<Kept> {
        self.out.write_all(&[MEMOIZE])?;
        self.kept += 1;
        Ok(Kept(self.kept - 1))
    }

    /// Writes a value again.
    pub fn again(&mut self, Kept(number): Kept) -> io::Result<()> {
        match u8::try_from(number) {
            Ok(short) => self.out.write_all(&[BINGET, short]),
            Err(_) => {
                self.out.write_all(&[LONG_BINGET])?;
                self.out.write_all(&number.to_le_bytes())
            }
        }
    }

    /// A text that is used once.
    pub fn text_once(&mut self, text: &str) -> io::Result<()> {
        match u8::try_from(text.len()) {
            Ok(short) => self.out.write_all(&[SHORT_BINUNICODE, short])?,
            Err(_) => {
                let length = u32::try_from(text.len()).map_err(io::Error::other)?;
                self.out.write_all(&[BINUNICODE])?;
                self.out.write_all(&length.to_le_bytes())?;
            }
        }
        self.out.write_all(text.as_bytes())
    }

    /// A text that is used often.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(&kept) = self.texts.get(text) {
            return self.again(kept);
        }
        self.text_once(text)?;
        let kept = self.keep()?;
        self.texts.insert(text.to_owned(), kept);
        Ok(())
    }

    /// A number of at most 2^63 - 1: MemoryViz cannot compute with larger ones, as a nonsensical request may have.
    pub fn integer(&mut self, value: u64) -> io::Result<()> {
        let value = value.min(i64::MAX as u64);
        // The code of a long integer is followed by its length: as few bytes as hold the number and its sign.
        let (code, length) = match value {
            0..=0xff => (BININT1, 1),
            0x100..=0xffff => (BININT2, 2),
            0x1_0000..=0x7fff_ffff => (BININT, 4),
            _ => (LONG1, (65 - value.leading_zeros()).div_ceil(8)),
        };
        self.out.write_all(&[code])?;
        if code == LONG1 {
            self.out.write_all(&[length as u8])?;
        }
        self.out.write_all(&value.to_le_bytes()[..length as usize])
    }

    /// A dictionary of at most a few hundred entries, which `fill` writes: keys and values in turn.
    pub fn dictionary(&mut self, fill: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.out.write_all(&[EMPTY_DICT, MARK])?;
        fill(self)?;
        self.out.write_all(&[SETITEMS])
    }

    // Entries of a dictionary: a key and a value.

    pub fn number_at(&mut self, key: &str, value: u64) -> io::Result<()> {
        self.text(key)?;
        self.integer(value)
    }

    pub fn text_at(&mut self, key: &str, value: &str) -> io::Result<()> {
        self.text(key)?;
        self.text(value)
    }

    pub fn boolean_at(&mut self, key: &str, value: bool) -> io::Result<()> {
        self.text(key)?;
        self.out.write_all(&[if value { NEWTRUE } else { NEWFALSE }])
    }

    /// Every pool is the same.
    pub fn no_pool_at(&mut self, key: &str) -> io::Result<()> {
        self.number_at(key, 0)?;
        self.integer(0)?;
        self.out.write_all(&[TUPLE2])
    }

    /// A dictionary whose entries are too large to be collected behind a mark; see `entry`.
    pub fn open_dictionary(&mut self) -> io::Result<()> {
        self.out.write_all(&[EMPTY_DICT])
    }

    /// Writes one entry into the dictionary that was written last.
    pub fn entry(&mut self, key: &str, value: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.text(key)?;
        value(self)?;
        self.out.write_all(&[SETITEM])
    }

    /// A list that `fill` writes with `List::item`.
    pub fn list(&mut self, fill: impl FnOnce(&mut List<'_, 'w>) -> io::Result<()>) -> io::Result<()> {
        self.out.write_all(&[EMPTY_LIST])?;
        let mut list = List { pickle: self, batch: 0 };
        fill(&mut list)?;
        list.close_batch()
    }

    /// A list of lists: `each` writes the list with this number.
    pub fn lists(
        &mut self,
        count: usize,
        mut each: impl FnMut(usize, &mut List<'_, 'w>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.write_all(&[EMPTY_LIST])?;
        for number in 0..count {
            self.list(|list| each(number, list))?;
            self.out.write_all(&[APPEND])?;
        }
        Ok(())
    }
}

/// A list that is being written.
pub struct List<'p, 'w> {
    pickle: &'p mut Pickle<'w>,
    batch: usize,
}

impl<'w> List<'_, 'w> {
    pub fn item(&mut self, write: impl FnOnce(&mut Pickle<'w>) -> io::Result<()>) -> io::Result<()> {
        if self.batch == 0 {
            self.pickle.out.write_all(&[MARK])?;
        }
        write(self.pickle)?;
        self.batch += 1;
        match self.batch {
            BATCH => self.close_batch(),
            _ => Ok(()),
        }
    }

    /// An item that is a dictionary.
    pub fn dictionary(&mut self, fill: impl FnOnce(&mut Pickle<'w>) -> io::Result<()>) -> io::Result<()> {
        self.item(|pickle| pickle.dictionary(fill))
    }

    fn close_batch(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.batch) > 0 {
            self.pickle.out.write_all(&[APPENDS])?;
        }
        Ok(())
    }
}
