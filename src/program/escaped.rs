//! Text on its way out, without the characters that a terminal acts on (`is_hidden`): escape sequences begin with ESC (0x1b),
//! or with one of the control characters from U+0080 to U+009F, which are two bytes in UTF-8.

use std::io::{self, Write};

use base::text::is_hidden;
use serde::Serialize;

/// Passes bytes on, with something else in place of hidden characters. Line feeds and tabs stay.
pub struct Escaped<W> {
    out: W,
    /// What stands for a character that is hidden.
    instead: fn(char) -> String,
    /// The begin of a character of several bytes.
    begun: Vec<u8>,
}

fn as_in_json(hidden: char) -> String {
    let mut units = [0; 2];
    let units = hidden.encode_utf16(&mut units).iter();
    units.map(|unit| format!("\\u{unit:04x}")).collect()
}

impl<W: Write> Escaped<W> {
    /// For text that goes to a terminal: U+FFFD, the replacement character.
    pub fn for_terminal(out: W) -> Escaped<W> {
        let (instead, begun) = (|_| "\u{fffd}".to_owned(), Vec::new());
        Escaped { out, instead, begun }
    }

    /// For JSON. Control characters stand in its texts alone, where an escape such as `\u001b` means the same.
    fn for_json(out: W) -> Escaped<W> {
        let (instead, begun) = (as_in_json, Vec::new());
        Escaped { out, instead, begun }
    }

    /// Takes a byte that is a control character, or one of a character of several bytes.
    fn take(&mut self, byte: u8) -> io::Result<()> {
        if !(0x80..=0xbf).contains(&byte) {
            // What was begun is no character.
            self.out.write_all(&self.begun)?;
            self.begun.clear();
        }
        self.begun.push(byte);
        let length = match self.begun[0] {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        if self.begun.len() < length {
            return Ok(());
        }
        match std::str::from_utf8(&self.begun)
            .ok()
            .and_then(|text| text.chars().next())
        {
            Some(letter) if is_hidden(letter) && !matches!(letter, '\n' | '\t') => {
                self.out.write_all((self.instead)(letter).as_bytes())?;
            }
            _ => self.out.write_all(&self.begun)?,
        }
        self.begun.clear();
        Ok(())
    }
}

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut from = 0;
        for (at, &byte) in bytes.iter().enumerate() {
            let is_plain = matches!(byte, 0x20..=0x7e | b'\n' | b'\t');
            if !is_plain || !self.begun.is_empty() {
                self.out.write_all(&bytes[from..at])?;
                from = at + 1;
                self.take(byte)?;
            }
        }
        self.out.write_all(&bytes[from..])?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes JSON on one line, without the line feed.
pub fn compact(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    Ok(serde_json::to_writer(Escaped::for_json(out), value)?)
}

/// Writes JSON on one line.
pub fn line(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    compact(out, value)?;
    out.write_all(b"\n")
}

/// Writes JSON with an indentation, for people.
pub fn pretty(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(Escaped::for_json(&mut *out), value)?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_no_control_characters_and_means_the_same() {
        let text: String = (0..0x180).filter_map(char::from_u32).collect::<String>() + "\u{202e}€\u{c2}\u{9b}";
        for write in [
            |out: &mut Vec<u8>, text: &String| line(out, text),
            |out: &mut Vec<u8>, text: &String| pretty(out, text),
        ] {
            let mut out = Vec::new();
            write(&mut out, &text).unwrap();
            assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
            let written = String::from_utf8(out).unwrap();
            assert!(!written.trim_end().chars().any(is_hidden), "{written:?}");
            assert!(written.contains("\\u001b") && written.contains("\\u007f") && written.contains("\\u009b"));
        }
    }

    #[test]
    fn a_terminal_gets_no_control_character_however_the_bytes_are_cut() {
        let text = "a\x1b[31mé\u{9b}31m\tb\r\n\u{a0}\x7f\u{80}c\u{202e}€\u{200b}";
        let expected = "a\u{fffd}[31mé\u{fffd}31m\tb\u{fffd}\n\u{a0}\u{fffd}\u{fffd}c\u{fffd}€\u{fffd}";
        for cut in 0..text.len() {
            let mut out = Escaped::for_terminal(Vec::new());
            out.write_all(&text.as_bytes()[..cut]).unwrap();
            out.write_all(&text.as_bytes()[cut..]).unwrap();
            assert_eq!(String::from_utf8(out.out).unwrap(), expected, "{cut}");
        }
    }
}
