//! `--between A..B`: what was allocated between two moments and still lives at the second, and what came and went.

use serde_json::{Value, json};

use super::growth::{devices, series};
use super::no_such_moment;
use super::study::Study;
use super::when::Window;
use crate::analysis::growth::values;
use crate::analysis::holdings::{Held, Series};
use crate::analysis::job::LoadError;
use crate::failure::Failure;
use crate::render::format::{count, difference, duration, printable, size};
use crate::render::page::Page;

/// A group between two moments.
struct Change {
    name: String,
    before: u64,
    after: u64,
    /// Allocations and bytes that came in between.
    came: (u64, u64),
    count_before: u64,
    count_after: u64,
}

impl Change {
    fn grown(&self) -> i64 {
        crate::analysis::measurements::minus(self.after, self.before)
    }

    /// The bytes that were freed in between.
    fn went(&self) -> u64 {
        self.before.saturating_add(self.came.1).saturating_sub(self.after)
    }
}

/// Returns the failure if there is no such time: a moment does not exist, or the first is not before the second.
pub fn show(page: &mut Page, study: &Study, window: &Window, top: usize) -> Result<Option<Failure>, LoadError> {
    let (from, to) = match (study.find(&window.0), study.find(&window.1)) {
        (Ok(from), Ok(to)) => (from, to),
        (Err(why), _) | (_, Err(why)) => {
            page.line(format!("There is no such moment: {why}"));
            page.json("between", json!({ "missing": why }));
            return Ok(Some(no_such_moment(why)));
        }
    };
    if from >= to {
        page.line("The first moment is not before the second.");
        page.json(
            "between",
            json!({ "missing": "the first moment is not before the second" }),
        );
        return Ok(Some(Failure::refused(
            "--between: the first moment is not before the second",
        )));
    }
    // A record of the moment itself belongs to the time before it; at the start there is none.
    let is_start = window.0 == super::when::When::Start;
    let moments = if is_start { vec![to] } else { vec![from, to] };
    let series = series(study, moments.clone())?;
    let mut changes: Vec<Change> = series
        .iter()
        .filter(|series| series.group.device >= 0)
        .map(|series| change(study, series, moments.len()))
        .collect();
    changes.sort_by_key(|change| std::cmp::Reverse((change.grown(), change.came.1)));
    let mut ordinals: Vec<i16> = (series.iter())
        .map(|series| series.group.device)
        .filter(|&device| device >= 0)
        .collect();
    ordinals.sort_unstable();
    ordinals.dedup();
    let sum = |of: fn(&Change) -> u64| changes.iter().map(of).fold(0, u64::saturating_add);
    let (came, went) = (sum(|change| change.came.1), sum(Change::went));
    let end_ns = to.time_ns.min(study.ended_ns());
    page.heading(format!(
        "Between {} and {}: {} came in {} allocations, {} went; {} before, {} after",
        duration(if is_start { 0 } else { from.time_ns }),
        duration(end_ns),
        size(came),
        count(sum(|change| change.came.0)),
        size(went),
        size(sum(|change| change.before)),
        size(sum(|change| change.after)),
    ));
    if ordinals.len() > 1 {
        page.line(format!("These are sums of {}", devices(&ordinals)));
    }
    let row = |change: &Change| {
        vec![
            difference(change.grown()),
            size(change.after),
            count(change.count_after),
            size(change.came.1),
            count(change.came.0),
            size(change.went()),
            change.name.clone(),
        ]
    };
    let titles = ["change", "live after", "count", "came", "count", "went", "holder"];
    let stayed: Vec<_> = changes
        .iter()
        .filter(|change| change.grown() > 0)
        .take(top)
        .map(row)
        .collect();
    if !stayed.is_empty() {
        page.heading("More than before");
        page.table(&titles, &[0, 1, 2, 3, 4, 5], stayed);
    }
    let mut passing: Vec<&Change> = changes
        .iter()
        .filter(|change| change.grown() <= 0 && (change.came.0 > 0 || change.went() > 0))
        .collect();
    passing.sort_by_key(|change| std::cmp::Reverse(change.came.1.max(change.went())));
    let passing: Vec<_> = passing.into_iter().take(top).map(row).collect();
    if !passing.is_empty() {
        page.heading("Came and went");
        page.table(&titles, &[0, 1, 2, 3, 4, 5], passing);
    }
    let told = changes.iter().map(|change| {
        json!({
            "name": change.name,
            "before": change.before,
            "after": change.after,
            "count_before": change.count_before,
            "count_after": change.count_after,
            "came": change.came.1,
            "came_count": change.came.0,
            "went": change.went(),
        })
    });
    page.json(
        "between",
        json!({
            "from_ns": if is_start { 0 } else { from.time_ns },
            "to_ns": end_ns,
            "devices": ordinals,
            "came": came,
            "went": went,
            "before": sum(|change| change.before),
            "after": sum(|change| change.after),
            "holders": told.collect::<Value>(),
        }),
    );
    Ok(None)
}

fn change(study: &Study, series: &Series, moments: usize) -> Change {
    let at = |moment: usize| {
        let known = series.changes.iter().rev().find(|(from, _)| *from <= moment);
        known.map_or(Held::default(), |&(_, held)| held)
    };
    let values = values(series, moments);
    let (before, first) = match moments {
        1 => ((0, 0), Held::default()),
        _ => (values[0], at(0)),
    };
    let after = values[moments - 1];
    let last = at(moments - 1);
    Change {
        name: printable(&study.labels.group(&series.group), 160),
        before: before.0,
        after: after.0,
        came: (last.ever_count - first.ever_count, last.ever_bytes - first.ever_bytes),
        count_before: before.1,
        count_after: after.1,
    }
}
