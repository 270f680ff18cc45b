//! The findings of all checks, and their report as a table or as JSON.

use std::io::{self, Write};

use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::escaped;
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
    fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Problem => "problem",
        }
    }

    fn color(self) -> Option<Color> {
        match self {
            Severity::Ok => Some(Color::Green),
            Severity::Note => None,
            Severity::Warning => Some(Color::Yellow),
            Severity::Problem => Some(Color::Red),
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

/// All findings, in the order of the checks.
#[derive(Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    pub fn ok(&mut self, check: &'static str, found: impl Into<String>, place: impl Into<String>) {
        self.add(check, Severity::Ok, found, "", place);
    }

    pub fn note(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
        place: impl Into<String>,
    ) {
        self.add(check, Severity::Note, found, advice, place);
    }

    pub fn warning(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
        place: impl Into<String>,
    ) {
        self.add(check, Severity::Warning, found, advice, place);
    }

    pub fn problem(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
        place: impl Into<String>,
    ) {
        self.add(check, Severity::Problem, found, advice, place);
    }

    /// Adds a finding. `place` and `advice` may be empty.
    pub fn add(
        &mut self,
        check: &'static str,
        severity: Severity,
        found: impl Into<String>,
        advice: impl Into<String>,
        place: impl Into<String>,
    ) {
        self.0.push(Finding {
            check,
            severity,
            found: found.into(),
            place: place.into(),
            advice: advice.into(),
        });
    }

    pub fn worst(&self) -> Severity {
        let severities = self.0.iter().map(|finding| finding.severity);
        severities.max().unwrap_or(Severity::Ok)
    }
}

/// Writes a row for each finding, with severity, check and description, and the verdict below.
pub fn table(findings: &Findings) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let styled = styled();
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    if !styled {
        table.force_no_tty();
    }
    for finding in &findings.0 {
        let mut severity = Cell::new(finding.severity.name());
        if styled {
            severity = severity.add_attribute(Attribute::Bold);
            if let Some(color) = finding.severity.color() {
                severity = severity.fg(color);
            }
        }
        table.add_row(vec![
            severity,
            Cell::new(finding.check),
            Cell::new(description(finding)),
        ]);
    }
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    writeln!(out)?;
    writeln!(out, "{}", verdict(findings))?;
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
    let count = |severity| findings.0.iter().filter(|finding| finding.severity == severity).count();
    let number = |number: usize, what: &str| many(number as u64, what);
    match (count(Severity::Problem), count(Severity::Warning)) {
        (0, 0) => "Nothing stands in a job's way.".into(),
        (0, warnings) => format!("{}, no problems.", number(warnings, "warning")),
        (problems, 0) => format!("{}.", number(problems, "problem")),
        (problems, warnings) => format!("{}, {}.", number(problems, "problem"), number(warnings, "warning")),
    }
}

/// The report as JSON: the findings, the worst severity, and the figures behind the findings.
#[derive(Serialize)]
pub struct Page<'a, D: Serialize, F: Serialize, T: Serialize> {
    pub findings: &'a [Finding],
    pub worst: Severity,
    /// What the driver answered; `null` if it could not be asked.
    pub driver: D,
    /// What the strategy will do on each device; empty under passthrough.
    pub forecast: F,
    /// What the command did; `null` if no command was run.
    pub trial: T,
}

pub fn json(page: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    escaped::pretty(&mut out, page)?;
    out.flush()
}
