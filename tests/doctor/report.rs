//! The report of `vramshim doctor --json`, and assertions about its findings.

use serde_json::Value;

use support::{Fields, Finished, Job};

pub struct Report {
    pub page: Value,
    pub code: Option<i32>,
}

impl Report {
    /// Reads the report and checks that the exit code belongs to the worst finding.
    pub fn of(finished: &Finished) -> Report {
        let page: Value =
            serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {}", finished.stderr));
        let code = finished.status.code();
        let severities = ["ok", "note", "warning", "problem"];
        let rank = |severity: &Value| severities.iter().position(|name| severity == name);
        let ranks = page["findings"].list().iter();
        let ranks = ranks.map(|finding| rank(&finding["severity"]).expect("a severity"));
        let worst = ranks.max();
        assert_eq!(rank(&page["worst"]), worst, "{page}");
        assert_eq!(code, worst.map(|worst| [0, 0, 3, 4][worst]), "{page}");
        Report { page, code }
    }

    pub fn run(job: Job) -> Report {
        Self::of(&job.run())
    }

    pub fn all(&self, check: &str) -> Vec<&Value> {
        let findings = self.page["findings"].list().iter();
        findings.filter(|finding| finding["check"] == check).collect()
    }

    /// The finding of this check whose text includes `words`.
    pub fn find(&self, check: &str, words: &str) -> &Value {
        let mut all = self.all(check).into_iter();
        let found = all.find(|finding| finding["found"].text().contains(words));
        found.unwrap_or_else(|| panic!("no {check} with {words:?}: {:#}", self.page["findings"]))
    }

    /// Checks that this finding has this severity, and that a warning or problem has advice.
    pub fn has(&self, check: &str, severity: &str, words: &str) -> &Report {
        let finding = self.find(check, words);
        assert_eq!(finding["severity"], severity, "{finding}");
        let needs_advice = matches!(severity, "warning" | "problem");
        assert!(!needs_advice || !finding["advice"].text().is_empty(), "{finding}");
        self
    }

    pub fn nothing_worse_than_notes(&self) -> &Report {
        assert_eq!(self.code, Some(0), "{:#}", self.page["findings"]);
        self
    }
}
