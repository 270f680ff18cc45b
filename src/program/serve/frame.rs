//! What the pages with lists have in common: the frame of the page, tables, and text of a job that is no markup. These pages
//! have no script.

use base::text::printable;
use journal::reader::State;

const FRAME: &str = include_str!("list.html");
pub const STYLE: &str = include_str!("list.css");

/// The most characters of a text of a job.
const LONGEST: usize = 80;

/// A page with this title, and a body that is markup.
pub fn page(title: &str, body: &str) -> String {
    let mut page = String::new();
    let mut rest = FRAME;
    // No mark is looked for in what came for another one: a text of a job may look like a mark.
    while let Some((before, after)) = rest.split_once("{{") {
        let (mark, behind) = after.split_once("}}").unwrap_or((after, ""));
        page += before;
        page += &match mark {
            "title" => escaped(title),
            "style" => STYLE.to_owned(),
            _ => body.to_owned(),
        };
        rest = behind;
    }
    page + rest
}

/// A table that can be scrolled, also with the keyboard. A title that begins with a blank is one of numbers.
pub fn table(caption: &str, titles: &[&str], rows: &str) -> String {
    let titles: String = (titles.iter())
        .map(|title| match title.strip_prefix(' ') {
            Some(title) => format!("<th scope=\"col\" class=\"number\">{title}</th>"),
            None => format!("<th scope=\"col\">{title}</th>"),
        })
        .collect();
    let caption = escaped(caption);
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\"><table><caption>{caption}</caption>\
         <thead><tr>{titles}</tr></thead>{rows}</table></div>"
    )
}

/// The links to the pages of a process. `up` leads from this page to the list.
pub fn links(up: &str, name: &str, state: State) -> String {
    let name = escaped(name);
    let live = match state {
        State::Running => format!(" <a href=\"{up}live/{name}\">Live</a>"),
        _ => String::new(),
    };
    format!("<a href=\"{up}report/{name}\">Report</a>{live}")
}

/// A number of processes in words.
pub fn processes(count: usize) -> String {
    match count {
        1 => "1 process".to_owned(),
        several => format!("{several} processes"),
    }
}

/// The cell with the number of failures.
pub fn failures(count: u64) -> String {
    let bad = if count > 0 { " bad" } else { "" };
    format!("<td class=\"number{bad}\">{count}</td>")
}

/// A text of a job, cut and without markup.
pub fn text(text: &str) -> String {
    escaped(&printable(text, LONGEST))
}

/// Text that is no markup, in an element or in an attribute.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            character => safe.push(character),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_markup() {
        assert_eq!(escaped("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
    }

    #[test]
    fn a_body_that_looks_like_a_mark_is_none() {
        assert!(page("{{body}}", "<p>{{title}}</p>").contains("<h1>{{body}}</h1>"));
        assert_eq!(page("t", "<p>{{title}}</p>").matches("{{title}}").count(), 1);
    }
}
