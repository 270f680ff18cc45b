//! The HTML file: the page's frame, its style, its scripts, and the data in one block.
//!
//! Names in a journal come from the job and may be hostile. They reach the file only inside the block of JSON, where no
//! `<` stands, and the scripts show them as text. The content security policy lets the browser run only the scripts
//! with the digests in it, and load nothing.

use std::io::{self, Read, Write};
use std::path::Path;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use journal::reader::plain;
use sha2::{Digest, Sha256};

use super::data::Report;

const FRAME: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
/// In the order in which they run. They share one scope.
const SCRIPTS: [&str; 13] = [
    include_str!("page/base.js"),
    include_str!("page/data.js"),
    include_str!("page/state.js"),
    include_str!("page/strip.js"),
    include_str!("page/timeline.js"),
    include_str!("page/holders.js"),
    include_str!("page/flame.js"),
    include_str!("page/space.js"),
    include_str!("page/ranks.js"),
    include_str!("page/replay.js"),
    include_str!("page/events.js"),
    include_str!("page/about.js"),
    include_str!("page/start.js"),
];

fn script() -> String {
    format!("\"use strict\";\n(() => {{\n{}}})();\n", SCRIPTS.concat())
}

fn policy() -> String {
    format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; img-src data:; base-uri 'none'; form-action 'none'",
        digest(&script()),
        digest(STYLE)
    )
}

/// How much of a file tells whether it is a report, in bytes.
const HEAD: u64 = 4096;

/// Whether the file is a report that `write` made, of this or an earlier version.
pub fn is_report(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    let Some(file) = plain::open(path)? else {
        return Ok(false);
    };
    file.take(HEAD).read_to_end(&mut head)?;
    let head = String::from_utf8_lossy(&head);
    Ok(head.starts_with("<!doctype html>") && head.contains("<title>GPU memory</title>"))
}

pub fn write(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let (script, policy) = (script(), policy());
    let data = for_html(&serde_json::to_string(report)?);
    let page = FRAME.replace("{{policy}}", &policy).replace("{{style}}", STYLE);
    let page = page.replace("{{script}}", &script);
    let (before, after) = page.split_once("{{data}}").unwrap_or((&page, ""));
    [before, &data, after]
        .iter()
        .try_for_each(|part| out.write_all(part.as_bytes()))
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
    format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(text.as_bytes())))
}
