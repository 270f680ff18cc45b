//! Text on its way out, without the bytes that a terminal acts on: escape sequences begin with ESC (0x1b), or with one of
//! the control characters from U+0080 to U+009F, which are two bytes in UTF-8.

use std::io::{self, Write};

use serde::Serialize;

/// What stands for a control character.
#[derive(Clone, Copy)]
enum Instead {
    /// `\u001b`, as in a text of JSON, where it means the same.
    JsonEscape,
    /// U+FFFD, the replacement character.
    Replacement,
}

/// Passes bytes on, with something else in place of control characters. Line feeds and tabs stay.
pub struct Escaped<W> {
    out: W,
    instead: Instead,
    /// Whether the last byte was 0xc2, with which the characters from U+0080 to U+00BF begin.
    after_c2: bool,
}

impl<W: Write> Escaped<W> {
    /// For text that goes to a terminal.
    pub fn for_terminal(out: W) -> Escaped<W> {
        Escaped {
            out,
            instead: Instead::Replacement,
            after_c2: false,
        }
    }

    /// For JSON. Control characters stand in its texts alone, where an escape means the same.
    fn for_json(out: W) -> Escaped<W> {
        Escaped {
            out,
            instead: Instead::JsonEscape,
            after_c2: false,
        }
    }

    fn put_instead(&mut self, control: u8) -> io::Result<()> {
        match self.instead {
            Instead::JsonEscape => write!(self.out, "\\u{control:04x}"),
            Instead::Replacement => self.out.write_all("\u{fffd}".as_bytes()),
        }
    }
}

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut from = 0;
        for (at, &byte) in bytes.iter().enumerate() {
            let was_after_c2 = std::mem::replace(&mut self.after_c2, byte == 0xc2);
            let is_control = if was_after_c2 {
                (0x80..=0x9f).contains(&byte)
            } else {
                byte < 0x20 && !matches!(byte, b'\n' | b'\t') || byte == 0x7f
            };
            if is_control || byte == 0xc2 || was_after_c2 {
                self.out.write_all(&bytes[from..at])?;
                from = at + 1;
                match (is_control, was_after_c2) {
                    (true, _) => self.put_instead(byte)?,
                    (false, true) => self.out.write_all(&[0xc2, byte])?,
                    // The byte waits for the next one.
                    (false, false) => {}
                }
                if was_after_c2 {
                    self.after_c2 = false;
                }
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
            assert!(!written.trim_end().chars().any(char::is_control), "{written:?}");
            assert!(written.contains("\\u001b") && written.contains("\\u007f") && written.contains("\\u009b"));
        }
    }

    #[test]
    fn a_terminal_gets_no_control_character_however_the_bytes_are_cut() {
        let text = "a\x1b[31mé\u{9b}31m\tb\r\n\u{a0}\x7f\u{80}c";
        let expected = "a\u{fffd}[31mé\u{fffd}31m\tb\u{fffd}\n\u{a0}\u{fffd}\u{fffd}c";
        for cut in 0..text.len() {
            let mut out = Escaped::for_terminal(Vec::new());
            out.write_all(&text.as_bytes()[..cut]).unwrap();
            out.write_all(&text.as_bytes()[cut..]).unwrap();
            assert_eq!(String::from_utf8(out.out).unwrap(), expected, "{cut}");
        }
    }
}
