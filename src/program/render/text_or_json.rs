//! A page that is shown as text, or as JSON: headings, lines and tables on the one side, figures on the other.

use std::fmt::Display;

use serde_json::{Map, Value};

use super::format::strong;
use super::table::table;

#[derive(Default)]
pub struct Page {
    pub text: String,
    json: Map<String, Value>,
}

impl Page {
    /// A heading, below an empty line unless it is the first.
    pub fn heading(&mut self, text: impl Display) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.line(strong(&text.to_string()));
    }

    pub fn line(&mut self, text: impl Display) {
        self.text += &format!("{text}\n");
    }

    /// A table, with titles as `render::table` takes them.
    pub fn table(&mut self, titles: &str, rows: Vec<Vec<String>>) {
        self.text += &table(titles, rows);
    }

    pub fn json(&mut self, name: &str, value: impl Into<Value>) {
        self.json.insert(name.to_owned(), value.into());
    }

    pub fn into_json(self) -> Value {
        Value::Object(self.json)
    }
}
