//! The findings of all checks, and their report as text. As JSON they are printed as they are.

use serde::Serialize;

use crate::render::format::{columns, in_style, many, printable, wrapped};
use crate::render::text_or_json::Page;

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
    /// The name, and what makes it bold and coloured on a terminal.
    fn name_and_style(self) -> (&'static str, &'static str) {
        match self {
            Severity::Ok => ("ok", "1;32"),
            Severity::Note => ("note", "1"),
            Severity::Warning => ("warning", "1;33"),
            Severity::Problem => ("problem", "1;31"),
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

    /// Shows severity, check and description of each finding, and the verdict below.
    pub fn show(&self, page: &mut Page) {
        let room = columns().unwrap_or(usize::MAX);
        let longest = |text: fn(&Finding) -> &str| self.list.iter().map(|one| text(one).len()).max().unwrap_or(0);
        let severities = longest(|one| one.severity.name_and_style().0);
        let checks = longest(|one| one.check);
        for Finding {
            check,
            severity,
            found,
            place,
            advice,
        } in &self.list
        {
            let (name, style) = severity.name_and_style();
            let mut text = format!(
                " {name:<severities$}  {check:<checks$}  {}",
                printable(found, MOST_CHARACTERS)
            );
            if !place.is_empty() {
                text += &format!(" [{}]", printable(place, MOST_CHARACTERS));
            }
            if !advice.is_empty() {
                let indent = severities + checks + 5;
                text += &format!("\n{:indent$}-> {}", "", printable(advice, MOST_CHARACTERS));
            }
            page.line(wrapped(&text, room).replacen(name, &in_style(name, style), 1));
        }
        let number = |severity| self.list.iter().filter(|one| one.severity == severity).count() as u64;
        match (number(Severity::Problem), number(Severity::Warning)) {
            (0, 0) => page.line("\nNothing stands in a job's way."),
            (problems, warnings) => {
                let [problems, warnings] = [many(problems, "problem"), many(warnings, "warning")];
                page.line(format!("\n{problems}, {warnings}."));
            }
        }
    }
}
