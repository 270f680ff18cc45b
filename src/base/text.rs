//! Text from files and names of files, as a message or a table may show it.
//!
//! A file's name can have any byte but `/` and NUL, and who may place a file chooses its name. An escape sequence in it
//! must not reach the terminal, and a line feed must not make a second line of a message.

use std::path::Path;

/// The longest name of a file that is shown, in characters: as long as the kernel lets a path be (PATH_MAX).
const LONGEST_NAME: usize = 4096;

/// Whether a terminal acts on this character, or shows nothing of it: control characters, those that end a line or change
/// the direction of writing, and what Unicode calls default ignorable (`Default_Ignorable_Code_Point` in
/// DerivedCoreProperties.txt), with the empty pattern of Braille.
pub fn is_hidden(c: char) -> bool {
    let is_ignorable = matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}');
    let is_format = matches!(c, '\u{2028}'..='\u{2029}' | '\u{2800}' | '\u{fff9}'..='\u{fffb}');
    c.is_control() || is_ignorable || is_format
}

/// Text on one line: white space is a blank, other characters that are hidden are replaced, and the text is cut to `most`
/// characters.
pub fn printable(text: &str, most: usize) -> String {
    let shown = |c: char| match c {
        '\t' | '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}' => ' ',
        c if is_hidden(c) => '\u{fffd}',
        c => c,
    };
    let mut short: String = text.chars().take(most).map(shown).collect();
    if text.chars().nth(most).is_some() {
        short.push_str("...");
    }
    short
}

/// A number with commas between groups of three digits.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things, such as "1 event" or "2,621 events".
pub fn many(number: u64, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        number => format!("{} {thing}s", count(number)),
    }
}

/// A number of events and a verb, such as "1 event was" or "2,621 events were".
pub fn events_were(number: u64) -> String {
    format!("{} {}", many(number, "event"), if number == 1 { "was" } else { "were" })
}

/// The name of a file for people, so that it can be pasted into a shell: quoted if it has blanks or other letters that a
/// shell does not take for themselves. Bytes that cannot be shown are `\n` or `\x1b` in `$'...'` of bash.
pub fn shown(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = printable(&text, LONGEST_NAME);
    if path.to_str() == Some(plain.as_str()) {
        if plain.chars().all(is_plain) {
            return plain;
        }
        return format!("'{}'", plain.replace('\'', "'\\''"));
    }
    let mut quoted = String::from("$'");
    for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        for letter in chunk.valid().chars().take(LONGEST_NAME) {
            match letter {
                '\n' => quoted.push_str("\\n"),
                '\t' => quoted.push_str("\\t"),
                '\\' => quoted.push_str("\\\\"),
                '\'' => quoted.push_str("\\'"),
                letter if printable(letter.encode_utf8(&mut [0; 4]), 1).starts_with(letter) => quoted.push(letter),
                letter => bytes(&mut quoted, letter.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        bytes(&mut quoted, chunk.invalid());
    }
    quoted.push('\'');
    quoted
}

/// Whether a shell takes this letter for itself, wherever it stands.
fn is_plain(letter: char) -> bool {
    letter.is_alphanumeric() || "/._-+,:@%=".contains(letter)
}

fn bytes(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        text.push_str(&format!("\\x{byte:02x}"));
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[31mb", 80), "a\u{fffd}[31mb");
        assert_eq!(printable("abcdef", 3), "abc...");
        assert_eq!(printable("python -c\nimport torch\r\n", 80), "python -c import torch  ");
        assert_eq!(
            printable("a\u{202e}b\u{9b}31m\u{200b}\u{feff}", 80),
            "a\u{fffd}b\u{fffd}31m\u{fffd}\u{fffd}"
        );
    }

    #[test]
    fn a_name_that_cannot_be_shown_is_quoted() {
        assert_eq!(shown(Path::new("/a_b/é-1.vraj")), "/a_b/é-1.vraj");
        assert_eq!(shown(Path::new("/a b/it's $HOME")), "'/a b/it'\\''s $HOME'");
        assert_eq!(shown(Path::new("a\x1b[2J\nb'\\.vraj")), "$'a\\x1b[2J\\nb\\'\\\\.vraj'");
        assert_eq!(shown(Path::new("a\u{202e}b")), "$'a\\xe2\\x80\\xaeb'");
        assert_eq!(shown(Path::new(OsStr::from_bytes(b"a\xff"))), "$'a\\xff'");
    }
}
