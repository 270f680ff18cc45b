//! A page that is shown as text, or as JSON: headings, lines and tables on the one side, figures on the other.

use std::io::{self, Write};

use serde_json::{Map, Value};

use super::format::strong;
use super::table::table;

enum Part {
    Heading(String),
    Line(String),
    Table(String, Vec<Vec<String>>),
}

#[derive(Default)]
pub struct Page {
    parts: Vec<Part>,
    json: Map<String, Value>,
}

impl Page {
    pub fn heading(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Heading(text.into()));
    }

    pub fn line(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Line(text.into()));
    }

    /// A table, with titles as `render::table` takes them.
    pub fn table(&mut self, titles: impl Into<String>, rows: Vec<Vec<String>>) {
        self.parts.push(Part::Table(titles.into(), rows));
    }

    pub fn json(&mut self, name: &str, value: impl Into<Value>) {
        self.json.insert(name.to_owned(), value.into());
    }

    /// Whether the page has no text.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub fn into_json(self) -> Value {
        Value::Object(self.json)
    }

    pub fn write(self, out: &mut impl Write, bold: bool) -> io::Result<()> {
        let mut is_first = true;
        for part in self.parts {
            match part {
                Part::Heading(text) => {
                    if !is_first {
                        writeln!(out)?;
                    }
                    writeln!(out, "{}", strong(&text, bold))?;
                }
                Part::Line(text) => writeln!(out, "{text}")?,
                Part::Table(titles, rows) => table(out, &titles, rows)?,
            }
            is_first = false;
        }
        Ok(())
    }
}
