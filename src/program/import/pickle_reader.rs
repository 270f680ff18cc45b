//! Reads a pickle of plain values: numbers, texts, lists and dictionaries.
//!
//! A snapshot may come from any user, and a pickle is a program for a stack machine. A reader of all pickles can be made to
//! take memory without end: by integers of a million bytes, places in the memo that skip billions, or lists that name
//! each other again and again. So this reader knows plain values alone, and keeps a value that is named often once. It
//! visits each opcode once, calls itself never, and stops at bounds that grow with the file. The opcodes are those of
//! Python's `Lib/pickletools.py`.

use std::collections::HashMap;
use std::rc::Rc;

use super::plain_file::Wrong;

/// A small file may have this many of whatever is bounded.
const FREE: usize = 1 << 18;
/// Beyond that, so many bytes of the file for each list or dictionary. PyTorch writes 17 bytes for the shortest frame, and
/// more for events and blocks.
const BYTES_OF_CONTAINER: usize = 8;
/// The same for values that wait on the stack or are in the memo.
const BYTES_OF_PLACE: usize = 4;
/// Containers that are open at once. A snapshot has seven: page, traces, trace, event, frames, frame, and a field.
const MOST_MARKS: usize = 256;
/// The longest integer; addresses take nine bytes.
const MOST_INTEGER_BYTES: usize = 16;

/// A value. Texts, lists and dictionaries are in `Pickle`, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Nothing,
    Boolean(bool),
    Number(u64),
    Negative(i64),
    Text(u32),
    /// A list, a tuple or a set.
    List(u32),
    Dictionary(u32),
    /// A float, bytes, or an integer of more than 64 bits.
    Other,
}

#[derive(Debug)]
pub struct Pickle {
    pub root: Value,
    texts: Vec<Rc<str>>,
    lists: Vec<Vec<Value>>,
    dictionaries: Vec<Vec<(Value, Value)>>,
}

impl Pickle {
    pub fn read(bytes: &[u8]) -> Result<Pickle, Wrong> {
        let mut machine = Machine {
            bytes,
            at: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            memoized: 0,
            numbers: HashMap::new(),
            page: Pickle {
                root: Value::Nothing,
                texts: Vec::new(),
                lists: Vec::new(),
                dictionaries: Vec::new(),
            },
        };
        loop {
            let at = machine.at;
            if machine.step().map_err(|problem| format!("byte {at}: {problem}"))? {
                return Ok(machine.page);
            }
        }
    }

    pub fn text(&self, number: u32) -> &Rc<str> {
        &self.texts[number as usize]
    }

    pub fn list(&self, number: u32) -> &[Value] {
        &self.lists[number as usize]
    }

    /// The keys and values of a dictionary, in the order in which they were set.
    pub fn entries(&self, number: u32) -> &[(Value, Value)] {
        &self.dictionaries[number as usize]
    }

    /// A value in words, for a message.
    pub fn told(&self, value: Value) -> String {
        match value {
            Value::Nothing => "None".to_owned(),
            Value::Boolean(value) => value.to_string(),
            Value::Number(number) => number.to_string(),
            Value::Negative(number) => number.to_string(),
            Value::Text(number) => format!("the text {:?}", base::text::printable(self.text(number), 40)),
            Value::List(_) => "a list".to_owned(),
            Value::Dictionary(_) => "a dictionary".to_owned(),
            Value::Other => "a float, bytes, or an integer of more than 64 bits".to_owned(),
        }
    }
}

struct Machine<'i> {
    bytes: &'i [u8],
    at: usize,
    stack: Vec<Value>,
    /// Heights of the stack at the marks.
    marks: Vec<usize>,
    memo: Vec<Option<Value>>,
    memoized: usize,
    /// The numbers of texts.
    numbers: HashMap<Rc<str>, u32>,
    page: Pickle,
}

const CUT: &str = "the file ends in the middle of a value: copy it again";
const SO_MANY: &str = "no snapshot of this size has so many";
const EMPTY_STACK: &str = "takes a value that is not there";

impl<'i> Machine<'i> {
    fn take(&mut self, count: usize) -> Result<&'i [u8], Wrong> {
        let end = self
            .at
            .checked_add(count)
            .filter(|&end| end <= self.bytes.len())
            .ok_or(CUT)?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// A number of so many bytes, without a sign.
    fn number(&mut self, count: usize) -> Result<u64, Wrong> {
        let bytes = self.take(count)?.iter().rev();
        Ok(bytes.fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    /// What a length of so many bytes says that follows.
    fn counted(&mut self, count: usize) -> Result<&'i [u8], Wrong> {
        let length = self.number(count)?;
        self.take(usize::try_from(length).map_err(|_| CUT)?)
    }

    /// How many of something a file of this size may have.
    fn most(&self, bytes_of_one: usize) -> usize {
        FREE + self.bytes.len() / bytes_of_one
    }

    fn push(&mut self, value: Value) -> Result<(), Wrong> {
        let most = self.most(BYTES_OF_PLACE);
        if self.stack.len() >= most {
            return Err(format!("more than {most} values wait for their list: {SO_MANY}"));
        }
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, Wrong> {
        let value = self.top()?;
        self.stack.pop();
        Ok(value)
    }

    fn top(&self) -> Result<Value, Wrong> {
        let fence = self.marks.last().copied().unwrap_or(0);
        match self.stack.last() {
            Some(&value) if self.stack.len() > fence => Ok(value),
            _ => Err(EMPTY_STACK.into()),
        }
    }

    /// Where the values after the latest mark begin. Removes the mark.
    fn mark(&mut self) -> Result<usize, Wrong> {
        self.marks.pop().ok_or("takes a mark that is not there".into())
    }

    /// Where the latest `count` values begin.
    fn latest(&self, count: usize) -> Result<usize, Wrong> {
        let fence = self.marks.last().copied().unwrap_or(0);
        let start = self.stack.len().checked_sub(count).filter(|&start| start >= fence);
        start.ok_or(EMPTY_STACK.into())
    }

    fn integer(&mut self, number: i128) -> Result<(), Wrong> {
        let value = match (u64::try_from(number), i64::try_from(number)) {
            (Ok(number), _) => Value::Number(number),
            (_, Ok(number)) => Value::Negative(number),
            _ => Value::Other,
        };
        self.push(value)
    }

    /// LONG1 and LONG4: an integer with a sign, the lowest byte first.
    fn long(&mut self, name: &'static str, bytes_of_length: usize) -> Result<(), Wrong> {
        let count = self.number(bytes_of_length)?;
        if count > MOST_INTEGER_BYTES as u64 {
            return Err(format!(
                "{name} is an integer of {count} bytes: PyTorch writes none of more than {MOST_INTEGER_BYTES}"
            ));
        }
        let bytes = self.take(count as usize)?;
        let sign = -i128::from(bytes.last().is_some_and(|&byte| byte >= 0x80));
        let bytes = bytes.iter().rev();
        self.integer(bytes.fold(sign, |number, &byte| number << 8 | i128::from(byte)))
    }

    fn text(&mut self, bytes: &[u8]) -> Result<(), Wrong> {
        let text = std::str::from_utf8(bytes).map_err(|_| "a text that is no UTF-8")?;
        let number = match self.numbers.get(text) {
            Some(&known) => known,
            None => {
                let next = u32::try_from(self.page.texts.len()).map_err(|_| "too many texts")?;
                let text: Rc<str> = text.into();
                self.page.texts.push(text.clone());
                self.numbers.insert(text, next);
                next
            }
        };
        self.push(Value::Text(number))
    }

    /// Checks that one more list or dictionary is within the bound.
    fn room(&self) -> Result<(), Wrong> {
        let most = self.most(BYTES_OF_CONTAINER);
        if self.page.lists.len() + self.page.dictionaries.len() >= most.min(u32::MAX as usize) {
            return Err(format!("more than {most} lists and dictionaries: {SO_MANY}"));
        }
        Ok(())
    }

    fn list_from(&mut self, start: usize) -> Result<(), Wrong> {
        self.room()?;
        let items = self.stack.split_off(start);
        self.page.lists.push(items);
        self.push(Value::List(self.page.lists.len() as u32 - 1))
    }

    fn dictionary_from(&mut self, start: usize) -> Result<(), Wrong> {
        self.room()?;
        self.page.dictionaries.push(Vec::new());
        let made = Value::Dictionary(self.page.dictionaries.len() as u32 - 1);
        self.set(made, start)?;
        self.push(made)
    }

    /// Sets the entries from `start` on, each a key and a value.
    fn set(&mut self, target: Value, start: usize) -> Result<(), Wrong> {
        let Value::Dictionary(number) = target else {
            return Err("sets an entry of what is no dictionary".into());
        };
        let (pairs, rest) = self.stack[start..].as_chunks::<2>();
        if !rest.is_empty() {
            return Err("sets a key without a value".into());
        }
        let entries = &mut self.page.dictionaries[number as usize];
        entries.extend(pairs.iter().map(|&[key, value]| (key, value)));
        self.stack.truncate(start);
        Ok(())
    }

    /// The value below `start`, which the values from `start` on are added to.
    fn below(&self, start: usize) -> Result<Value, Wrong> {
        let fence = self.marks.last().copied().unwrap_or(0);
        let place = start.checked_sub(1).filter(|&place| place >= fence);
        place.map(|place| self.stack[place]).ok_or(EMPTY_STACK.into())
    }

    fn append(&mut self, start: usize) -> Result<(), Wrong> {
        let Value::List(number) = self.below(start)? else {
            return Err("appends to what is no list".into());
        };
        self.page.lists[number as usize].extend_from_slice(&self.stack[start..]);
        self.stack.truncate(start);
        Ok(())
    }

    fn set_below(&mut self, start: usize) -> Result<(), Wrong> {
        let target = self.below(start)?;
        self.set(target, start)
    }

    fn memoize(&mut self, place: u64) -> Result<(), Wrong> {
        let value = self.top()?;
        let most = self.most(BYTES_OF_PLACE);
        let place = usize::try_from(place).ok().filter(|&place| place < most);
        let place = place.ok_or_else(|| format!("keeps a value at a place beyond {most}: {SO_MANY}"))?;
        if place >= self.memo.len() {
            self.memo.resize(place + 1, None);
        }
        self.memoized += usize::from(self.memo[place].is_none());
        self.memo[place] = Some(value);
        Ok(())
    }

    fn recall(&mut self, place: u64) -> Result<(), Wrong> {
        let found = usize::try_from(place).ok().and_then(|place| *self.memo.get(place)?);
        self.push(found.ok_or_else(|| format!("names place {place} of the memo, where no value is kept"))?)
    }

    /// Carries out one opcode; true at the end.
    fn step(&mut self) -> Result<bool, Wrong> {
        let code = self.take(1)?[0];
        match code {
            b'.' => {
                self.page.root = self.pop()?;
                if self.at != self.bytes.len() {
                    return Err("ends the pickle, but more bytes follow".into());
                }
                return Ok(true);
            }
            0x80 => match self.number(1)? {
                2..=5 => Ok(()),
                protocol => Err(format!("protocol {protocol} is not known: 2 to 5 are")),
            },
            // The length of what follows. The pieces are whole without it.
            0x95 => self.number(8).map(drop),
            b'N' => self.push(Value::Nothing),
            0x88 => self.push(Value::Boolean(true)),
            0x89 => self.push(Value::Boolean(false)),
            b'K' => self.number(1).and_then(|number| self.integer(number.into())),
            b'M' => self.number(2).and_then(|number| self.integer(number.into())),
            b'J' => self
                .number(4)
                .and_then(|number| self.integer((number as u32 as i32).into())),
            0x8a => self.long("LONG1", 1),
            0x8b => self.long("LONG4", 4),
            b'G' => self.take(8).and_then(|_| self.push(Value::Other)),
            0x8c | b'U' => self.counted(1).and_then(|bytes| self.text(bytes)),
            b'X' | b'T' => self.counted(4).and_then(|bytes| self.text(bytes)),
            0x8d => self.counted(8).and_then(|bytes| self.text(bytes)),
            b'C' => self.counted(1).and_then(|_| self.push(Value::Other)),
            b'B' => self.counted(4).and_then(|_| self.push(Value::Other)),
            0x8e | 0x96 => self.counted(8).and_then(|_| self.push(Value::Other)),
            b']' | b')' | 0x8f => self.list_from(self.stack.len()),
            b'}' => self.dictionary_from(self.stack.len()),
            b'l' | b't' | 0x91 => self.mark().and_then(|start| self.list_from(start)),
            b'd' => self.mark().and_then(|start| self.dictionary_from(start)),
            0x85..=0x87 => self
                .latest(usize::from(code - 0x84))
                .and_then(|start| self.list_from(start)),
            b'a' => self.latest(1).and_then(|start| self.append(start)),
            b'e' | 0x90 => self.mark().and_then(|start| self.append(start)),
            b's' => self.latest(2).and_then(|start| self.set_below(start)),
            b'u' => self.mark().and_then(|start| self.set_below(start)),
            b'(' if self.marks.len() < MOST_MARKS => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'(' => Err(format!("is nested more than {MOST_MARKS} deep: a snapshot is not")),
            b'0' if self.marks.last() == Some(&self.stack.len()) => self.mark().map(drop),
            b'0' => self.pop().map(drop),
            b'1' => self.mark().map(|start| self.stack.truncate(start)),
            b'2' => self.top().and_then(|value| self.push(value)),
            b'q' => self.number(1).and_then(|place| self.memoize(place)),
            b'r' => self.number(4).and_then(|place| self.memoize(place)),
            0x94 => self.memoize(self.memoized as u64),
            b'h' => self.number(1).and_then(|place| self.recall(place)),
            b'j' => self.number(4).and_then(|place| self.recall(place)),
            code => Err(format!(
                "{code:#04x} is no opcode of plain values, and a snapshot has these alone"
            )),
        }
        .map(|()| false)
    }
}

#[cfg(test)]
mod tests;
