//! The HTML file: the page's frame, its style, its scripts, and the data in one block.
//!
//! Names in a journal come from the job and may be hostile. They reach the file only inside the block of JSON, where no
//! `<` stands, and the scripts show them as text. The content security policy lets the browser run only the scripts
//! with the digests in it, and load nothing.

use std::io::{self, Write};

use sha2::{Digest, Sha256};

use super::data::Report;

const FRAME: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
/// In the order in which they run. They share one scope.
const SCRIPTS: [&str; 12] = [
    include_str!("page/base.js"),
    include_str!("page/data.js"),
    include_str!("page/state.js"),
    include_str!("page/strip.js"),
    include_str!("page/timeline.js"),
    include_str!("page/holders.js"),
    include_str!("page/flame.js"),
    include_str!("page/space.js"),
    include_str!("page/ranks.js"),
    include_str!("page/events.js"),
    include_str!("page/about.js"),
    include_str!("page/start.js"),
];

/// Writes the page.
pub fn write(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let script = format!("\"use strict\";\n(() => {{\n{}}})();\n", SCRIPTS.concat());
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; img-src data:; base-uri 'none'; form-action 'none'",
        digest(&script),
        digest(STYLE)
    );
    let data = for_html(&serde_json::to_string(report)?);
    // Each mark stands once in the frame, in this order.
    let mut rest = FRAME;
    for (mark, text) in [
        ("{{policy}}", policy.as_str()),
        ("{{style}}", STYLE),
        ("{{data}}", &data),
        ("{{script}}", &script),
    ] {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        out.write_all(before.as_bytes())?;
        out.write_all(text.as_bytes())?;
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

/// JSON that ends no script block: `<`, `>` and `&` stand only in strings, where an escape sequence can take their place.
fn for_html(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => text.push_str(&format!("\\u{:04x}", u32::from(character))),
            character => text.push(character),
        }
    }
    text
}

/// The digest of an inline script or style, as a content security policy names it.
fn digest(text: &str) -> String {
    format!("sha256-{}", base64(&Sha256::digest(text.as_bytes())))
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .enumerate()
            .fold(0u32, |word, (place, &byte)| word | u32::from(byte) << (16 - 8 * place));
        for place in 0..4 {
            match place <= group.len() {
                true => text.push(char::from(LETTERS[(word >> (18 - 6 * place) & 63) as usize])),
                false => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_known_texts() {
        assert_eq!(base64(b""), "");
        assert_eq!(base64(b"f"), "Zg==");
        assert_eq!(base64(b"fo"), "Zm8=");
        assert_eq!(base64(b"foo"), "Zm9v");
        assert_eq!(base64(&[0xfb, 0xff, 0xfe, 0x00]), "+//+AA==");
    }

    #[test]
    fn the_digest_is_that_of_the_standard() {
        // From the specification of content security policies.
        assert_eq!(
            digest("alert('Hello, world.');"),
            "sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng="
        );
    }

    #[test]
    fn json_cannot_end_its_block() {
        let json = for_html("\"</script><!--&\u{2028}\"");
        assert_eq!(json, "\"\\u003c/script\\u003e\\u003c!--\\u0026\\u2028\"");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), "</script><!--&\u{2028}");
    }

    #[test]
    fn each_mark_stands_once_and_in_order() {
        let places: Vec<usize> = ["{{policy}}", "{{style}}", "{{data}}", "{{script}}"]
            .iter()
            .map(|mark| {
                assert_eq!(FRAME.matches(mark).count(), 1, "{mark}");
                FRAME.find(mark).unwrap()
            })
            .collect();
        assert!(places.is_sorted());
        assert_eq!(FRAME.matches("{{").count(), 4);
    }
}
