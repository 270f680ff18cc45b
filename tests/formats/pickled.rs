//! Reads a pickle as PyTorch's MemoryViz does: these opcodes and no other.

use std::collections::BTreeMap;
use std::rc::Rc;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Integer(i64),
    Float(f64),
    Boolean(bool),
    Text(Rc<str>),
    Tuple(Vec<Value>),
    List(Rc<std::cell::RefCell<Vec<Value>>>),
    Dictionary(Rc<std::cell::RefCell<BTreeMap<String, Value>>>),
}

impl Value {
    pub fn integer(&self) -> u64 {
        match self {
            Value::Integer(number) => u64::try_from(*number).unwrap_or_else(|_| panic!("{number}")),
            other => panic!("no integer: {other:?}"),
        }
    }

    pub fn text(&self) -> String {
        match self {
            Value::Text(text) => text.to_string(),
            other => panic!("no text: {other:?}"),
        }
    }

    pub fn list(&self) -> Vec<Value> {
        match self {
            Value::List(list) => list.borrow().clone(),
            other => panic!("no list: {other:?}"),
        }
    }

    pub fn at(&self, key: &str) -> Value {
        self.get(key).unwrap_or_else(|| panic!("no {key} in {self:?}"))
    }

    pub fn get(&self, key: &str) -> Option<Value> {
        match self {
            Value::Dictionary(entries) => entries.borrow().get(key).cloned(),
            other => panic!("no dictionary: {other:?}"),
        }
    }

    pub fn keys(&self) -> Vec<String> {
        match self {
            Value::Dictionary(entries) => entries.borrow().keys().cloned().collect(),
            other => panic!("no dictionary: {other:?}"),
        }
    }

    /// Whether both are the same list in memory.
    #[cfg(feature = "frameworks")]
    pub fn is_same_list(&self, other: &Value) -> bool {
        matches!((self, other), (Value::List(one), Value::List(two)) if Rc::ptr_eq(one, two))
    }
}

struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn take(&mut self, count: usize) -> &'b [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn number(&mut self, count: usize) -> u64 {
        let bytes = self.take(count).iter().rev();
        bytes.fold(0, |number, &byte| number << 8 | u64::from(byte))
    }
}

fn set(target: &Value, key: Value, value: Value) {
    match target {
        Value::Dictionary(entries) => drop(entries.borrow_mut().insert(key.text(), value)),
        other => panic!("no dictionary: {other:?}"),
    }
}

/// The value of a pickle. Panics at an opcode that MemoryViz does not know, and at a batch of more than 1,000 entries.
pub fn read(pickle: &[u8]) -> Value {
    let mut bytes = Bytes(pickle);
    let (mut stack, mut marks, mut memo) = (Vec::<Value>::new(), Vec::new(), Vec::<Value>::new());
    loop {
        match bytes.take(1)[0] {
            0x80 => assert!((2..=4).contains(&bytes.number(1)), "the protocol"),
            b'.' => {
                assert!(bytes.0.is_empty() && stack.len() == 1 && marks.is_empty());
                return stack.remove(0);
            }
            b'(' => marks.push(stack.len()),
            b'K' => stack.push(Value::Integer(bytes.number(1) as i64)),
            b'M' => stack.push(Value::Integer(bytes.number(2) as i64)),
            b'J' => stack.push(Value::Integer(i64::from(bytes.number(4) as i32))),
            0x8a => {
                let count = bytes.number(1) as usize;
                assert!(
                    (1..=8).contains(&count),
                    "MemoryViz computes with numbers of 8 bytes at most"
                );
                let number = bytes.number(count) as i64;
                stack.push(Value::Integer(number << (64 - 8 * count) >> (64 - 8 * count)));
            }
            b'G' => {
                let bits = bytes.take(8).try_into().unwrap();
                stack.push(Value::Float(f64::from_be_bytes(bits)));
            }
            0x95 => drop(bytes.take(8)),
            b'N' => stack.push(Value::Text("None".into())),
            0x88 => stack.push(Value::Boolean(true)),
            0x89 => stack.push(Value::Boolean(false)),
            code @ (0x8c | b'X') => {
                let count = bytes.number(if code == b'X' { 4 } else { 1 }) as usize;
                let text = std::str::from_utf8(bytes.take(count)).expect("UTF-8");
                stack.push(Value::Text(text.into()));
            }
            b']' => stack.push(Value::List(Rc::default())),
            b'}' => stack.push(Value::Dictionary(Rc::default())),
            0x86 => {
                let pair = stack.split_off(stack.len() - 2);
                stack.push(Value::Tuple(pair));
            }
            b'a' => {
                let value = stack.pop().unwrap();
                match stack.last() {
                    Some(Value::List(list)) => list.borrow_mut().push(value),
                    other => panic!("no list: {other:?}"),
                }
            }
            b'e' => {
                let values = stack.split_off(marks.pop().unwrap());
                assert!(values.len() <= 1000, "JavaScript passes a batch as arguments");
                match stack.last() {
                    Some(Value::List(list)) => list.borrow_mut().extend(values),
                    other => panic!("no list: {other:?}"),
                }
            }
            b's' => {
                let (value, key) = (stack.pop().unwrap(), stack.pop().unwrap());
                set(stack.last().unwrap(), key, value);
            }
            b'u' => {
                let entries = stack.split_off(marks.pop().unwrap());
                for entry in entries.chunks(2) {
                    set(stack.last().unwrap(), entry[0].clone(), entry[1].clone());
                }
            }
            0x94 => memo.push(stack.last().unwrap().clone()),
            b'h' => stack.push(memo[bytes.number(1) as usize].clone()),
            b'j' => stack.push(memo[bytes.number(4) as usize].clone()),
            code => panic!("MemoryViz does not know the opcode {code:#x}"),
        }
    }
}
