//! ARCHITECTURE.md draws which part of the sources imports which. These tests compare the drawing with the code. An
//! import without an arrow fails, and so does an arrow without an import.

mod imports;
mod opens;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use imports::{crate_folders, files_of};

/// For each part of the drawing, or each file, those that it imports.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// The lines `part -> part part` of the block that begins with ```` ```map ````.
fn drawn() -> Arrows {
    let page = std::fs::read_to_string(support::root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let block = page
        .split("```map\n")
        .nth(1)
        .expect("a block ```map in ARCHITECTURE.md");
    let block = block.split("```").next().unwrap_or_default();
    let mut arrows = Arrows::new();
    for line in block.lines().filter(|line| !line.trim().is_empty()) {
        let (part, imported) = line.split_once("->").expect("an arrow in each line of the map");
        let imported = imported.split_whitespace().map(str::to_owned).collect();
        let before = arrows.insert(part.trim().to_owned(), imported);
        assert!(before.is_none(), "the map draws {part} twice");
    }
    arrows
}

/// The part of the drawing that a file belongs to: the longest part with which the file's path begins.
fn part_of<'a>(parts: &'a Arrows, file: &str) -> &'a str {
    let holds = |part: &&String| {
        file == part.as_str()
            || file
                .strip_prefix(part.as_str())
                .is_some_and(|rest| rest.starts_with('/'))
    };
    let longest = parts.keys().filter(holds).max_by_key(|part| part.len());
    longest.unwrap_or_else(|| panic!("{file} belongs to no part of the map in ARCHITECTURE.md"))
}

/// The files of the sources and their imports, which are read once.
fn all_files() -> Arrows {
    static ALL: LazyLock<Arrows> = LazyLock::new(|| {
        let crates = crate_folders(support::root());
        assert!(crates.len() >= 7, "the crates of src: {crates:?}");
        files_of(&crates)
    });
    ALL.clone()
}

/// An import from the `mod.rs` above a file needs no arrow, because that `mod.rs` serves its whole folder.
#[test]
fn every_import_is_drawn_and_every_arrow_is_needed() {
    let parts = drawn();
    let mut needed: Arrows = parts.keys().map(|part| (part.clone(), BTreeSet::new())).collect();
    let mut undrawn = Vec::new();
    for (path, imports) in all_files() {
        let from = part_of(&parts, &path);
        for target in imports.iter().filter(|target| !is_above(target, &path)) {
            let to = part_of(&parts, target);
            if from == to {
                continue;
            }
            if !parts[from].contains(to) {
                undrawn.push(format!("{path} imports {target}: the map has no arrow {from} -> {to}"));
            }
            needed.get_mut(from).unwrap().insert(to.to_owned());
        }
    }
    assert!(undrawn.is_empty(), "{}", undrawn.join("\n"));
    assert_eq!(
        parts, needed,
        "left: arrows that ARCHITECTURE.md draws; right: arrows that the code needs"
    );
}

#[test]
fn no_arrow_of_the_map_leads_back() {
    assert_eq!(circle_in(&drawn()), None, "parts that import each other");
}

/// An import from the `mod.rs` above a file makes no circle, because that `mod.rs` serves its whole folder.
#[test]
fn no_files_import_each_other_in_a_circle() {
    let mut arrows = all_files();
    for (path, targets) in &mut arrows {
        targets.retain(|target| !is_above(target, path));
    }
    assert_eq!(circle_in(&arrows), None, "files that import each other");
}

#[test]
fn what_has_one_place_is_not_called_elsewhere() {
    let library = ["base/", "config/", "journal/writer", "policy/", "preload/", "quota/"];
    let rules: [(&str, &[&str], &[&str], &str); 3] = [
        // The macros say from which line a message comes, and spare the loader ten pointers for each.
        (
            "tracing::",
            &[""],
            &["base/say.rs", "preload/log.rs"],
            "the macros of base::say",
        ),
        // The folder stream of std ends the process if the job has closed its descriptor.
        ("read_dir(", &library, &[], "base::file::names_in"),
        (
            "geteuid()",
            &[""],
            &["base/identity.rs"],
            "base::identity::effective_user",
        ),
    ];
    for path in all_files().into_keys() {
        let text = std::fs::read_to_string(support::root().join("src").join(&path)).expect("a source");
        for (call, parts, may, instead) in rules {
            let is_bound = parts.iter().any(|part| path.starts_with(part)) && !may.contains(&&*path);
            assert!(!is_bound || !text.contains(call), "{path} calls {call}: use {instead}");
        }
    }
}

/// Whether `target` is the `mod.rs` or `lib.rs` of a folder that `path` lies in, or the module file that `path` is below.
fn is_above(target: &str, path: &str) -> bool {
    let folder = target
        .strip_suffix("/mod.rs")
        .or_else(|| target.strip_suffix("/lib.rs"))
        .or_else(|| target.strip_suffix(".rs"))
        .unwrap_or(target);
    path != target && path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// The nodes of a circle if there is one. The first node is repeated at the end.
fn circle_in(arrows: &Arrows) -> Option<Vec<String>> {
    fn visit(node: &str, arrows: &Arrows, done: &mut BTreeSet<String>, path: &mut Vec<String>) -> Option<Vec<String>> {
        if let Some(start) = path.iter().position(|one| one == node) {
            let mut circle = path[start..].to_vec();
            circle.push(node.to_owned());
            return Some(circle);
        }
        if done.contains(node) {
            return None;
        }
        path.push(node.to_owned());
        for target in arrows.get(node).into_iter().flatten() {
            if let Some(circle) = visit(target, arrows, done, path) {
                return Some(circle);
            }
        }
        path.pop();
        done.insert(node.to_owned());
        None
    }
    let mut done = BTreeSet::new();
    arrows
        .keys()
        .find_map(|node| visit(node, arrows, &mut done, &mut Vec::new()))
}

/// All tuned numbers of `auto_growth` stand in one table, at most twelve of them.
#[test]
fn every_number_of_auto_growth_is_in_its_table() {
    let folder = support::root().join("src/policy/auto_growth");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a source");
    let tuned = read("tuned.rs");
    let constants = tuned.lines().filter(|line| line.starts_with("pub const")).count();
    assert!((1..=12).contains(&constants), "{constants} constants in tuned.rs");
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut found = Vec::new();
    for file in std::fs::read_dir(&folder).expect("a folder") {
        let name = file.expect("a file").file_name().to_string_lossy().into_owned();
        if name == "tuned.rs" {
            continue;
        }
        for line in read(&name).lines() {
            let code = line.split("//").next().unwrap_or_default().replace("<< ", "<<_");
            let mut numbers = code
                .split(|letter| !is_word(letter))
                .filter_map(|word| word.parse::<u64>().ok());
            if numbers.any(|number| number > 2) {
                found.push(format!("{name}: {}", line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "numbers outside of tuned.rs: {found:#?}");
}

/// The ledger alone knows what is live. The other tables of allocations answer no question about that: they find what a free
/// belongs to in another format, or where a block was drawn.
#[test]
fn one_table_has_the_live_allocations() {
    const OTHERS: [&str; 4] = [
        // Lines of PyTorch's frees have an address alone.
        "program/analysis/tensor_records/merged.rs",
        // The numbers of requests.
        "program/replay/gathering.rs",
        // Other programs' files become records.
        "program/import/into_journal.rs",
        "program/import/live.rs",
    ];
    let is_table = |line: &str| {
        let is_map = ["HashMap<", "HashTable<", "BTreeMap<"]
            .iter()
            .any(|map| line.contains(map));
        line.contains("places: HashTable<")
            || is_map
                && !line.contains("Vec<")
                && ["Live", "Allocation", "Placed"].iter().any(|what| line.contains(what))
            || is_map && line.trim_start().starts_with("live:")
    };
    let all = all_files();
    let program = all
        .keys()
        .filter(|path| path.starts_with("program/") && !path.ends_with("tests.rs"));
    let with_table: BTreeSet<&str> = program
        .filter(|path| {
            let text = std::fs::read_to_string(support::root().join("src").join(path)).expect("a source");
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            code.lines().any(is_table)
        })
        .map(String::as_str)
        .collect();
    let allowed: BTreeSet<&str> = OTHERS.into_iter().chain(["program/analysis/ledger.rs"]).collect();
    assert_eq!(with_table, allowed);
}
