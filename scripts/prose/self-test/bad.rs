//! Nobody reads
//! this.

/// Word word word word word word word word word word word word word word word word word word word word
/// word word word word word word word word word word word.
///
/// Good: `nobody`.
///
///     nobody in code
fn a<'a>(b: &'a str) -> char {
    let _ = "// nobody in a string";
    let _ = r#"a "quoted" // nobody"#;
    let _ = ('"', '\'', '\u{e9}', 'é'); // Somebody after characters.
    // Word word word word word word word word word word word word word word word word word word word word

    // word word word word word word word word word word word word word word word word word word word word: two comments.
    b.len(); // Word word word word word word word word word word word word word word word word
    b.len(); // word word word word word word word word word word word word word word word word: two comments.
    /* Outer /* inner */ whoever */
    'x'
}
//// name         nobody, in columns
