//! The findings of all checks, and their report as a table or as JSON.

use std::io::{self, Write};

use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::render::format::{many, printable, styled};

/// The longest text shown of a finding, in characters. A long path or a loader's message fits.
const MOST_CHARACTERS: usize = 1000;

/// The severity of a finding, in order from harmless to severe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Ok,
    /// Worth knowing; no action is needed.
    Note,
    /// The job runs, but not as intended, or not all of its memory is seen.
    Warning,
    /// The job fails, or the library has no effect in it.
    Problem,
}

impl Severity {
    fn name_and_color(self) -> (&'static str, Color) {
        match self {
            Severity::Ok => ("ok", Color::Green),
            Severity::Note => ("note", Color::Reset),
            Severity::Warning => ("warning", Color::Yellow),
            Severity::Problem => ("problem", Color::Red),
        }
    }

    /// The exit code if this is the worst severity. Codes 1 and 2 stand for the program's own failures and refusals.
    pub fn exit_code(self) -> u8 {
        match self {
            Severity::Ok | Severity::Note => 0,
            Severity::Warning => 3,
            Severity::Problem => 4,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Finding {
    /// The name of the check; one word that scripts can rely on.
    pub check: &'static str,
    pub severity: Severity,
    pub found: String,
    /// The file, variable or process that the finding is about; empty if `found` names it.
    #[serde(rename = "where")]
    pub place: String,
    /// What to do; empty if no action is needed.
    pub advice: String,
}

impl Finding {
    pub fn advise(&mut self, advice: impl Into<String>) -> &mut Finding {
        self.advice = advice.into();
        self
    }

    /// What the finding is about, in place of what the check names.
    pub fn at(&mut self, place: impl Into<String>) -> &mut Finding {
        self.place = place.into();
        self
    }

    /// Names another check than the one that found it.
    pub fn of(&mut self, check: &'static str) -> &mut Finding {
        self.check = check;
        self
    }
}

/// All findings, in the order of the checks.
#[derive(Default)]
pub struct Findings {
    pub list: Vec<Finding>,
    check: &'static str,
    place: String,
}

impl Findings {
    /// The next findings are of this check.
    pub fn begin(&mut self, check: &'static str) {
        (self.check, self.place) = (check, String::new());
    }

    /// The next findings of this check are about this place.
    pub fn look_at(&mut self, place: impl Into<String>) {
        self.place = place.into();
    }

    pub fn ok(&mut self, found: impl Into<String>) -> &mut Finding {
        self.tell(Severity::Ok, found)
    }

    pub fn note(&mut self, found: impl Into<String>) -> &mut Finding {
        self.tell(Severity::Note, found)
    }

    pub fn warning(&mut self, found: impl Into<String>) -> &mut Finding {
        self.tell(Severity::Warning, found)
    }

    pub fn problem(&mut self, found: impl Into<String>) -> &mut Finding {
        self.tell(Severity::Problem, found)
    }

    pub fn tell(&mut self, severity: Severity, found: impl Into<String>) -> &mut Finding {
        self.list.push_mut(Finding {
            check: self.check,
            severity,
            found: found.into(),
            place: self.place.clone(),
            advice: String::new(),
        })
    }

    pub fn worst(&self) -> Severity {
        let worst = self.list.iter().map(|finding| finding.severity).max();
        worst.unwrap_or(Severity::Ok)
    }
}

/// Writes a row for each finding, with severity, check and description, and the verdict below.
pub fn table(findings: &Findings) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    if !styled() {
        table.force_no_tty();
    }
    for finding in &findings.list {
        let (name, color) = finding.severity.name_and_color();
        let severity = Cell::new(name).add_attribute(Attribute::Bold).fg(color);
        table.add_row([severity, Cell::new(finding.check), Cell::new(description(finding))]);
    }
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    writeln!(out, "\n{}", verdict(findings))?;
    out.flush()
}

fn description(finding: &Finding) -> String {
    let mut text = printable(&finding.found, MOST_CHARACTERS);
    if !finding.place.is_empty() {
        text += &format!(" [{}]", printable(&finding.place, MOST_CHARACTERS));
    }
    if !finding.advice.is_empty() {
        text += &format!("\n-> {}", printable(&finding.advice, MOST_CHARACTERS));
    }
    text
}

fn verdict(findings: &Findings) -> String {
    let counted = [(Severity::Problem, "problem"), (Severity::Warning, "warning")].map(|(severity, name)| {
        let found = findings.list.iter().filter(|finding| finding.severity == severity);
        (found.count() as u64, name)
    });
    let counted = counted.into_iter().filter(|(number, _)| *number > 0);
    let counted: Vec<String> = counted.map(|(number, name)| many(number, name)).collect();
    match counted.is_empty() {
        true => "Nothing stands in a job's way.".into(),
        false => format!("{}.", counted.join(", ")),
    }
}
