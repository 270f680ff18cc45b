//! What a new user does first: README's example, a notebook, and trainers that log what the library counted.

use std::path::Path;
use std::process::Command;

use support::{Fields, Printed, Runs, assert_says, left_out, library, program, root, vramshim_with};

use super::{environment, path, python};

/// Runs a script in a folder under `vramshim run --sim`, with the program in `PATH`.
fn in_folder(folder: &Path, python: &Path, memory: &str, arguments: &[&str]) -> Printed {
    let path = std::env::var("PATH").unwrap();
    Command::new(program())
        .args(["run", "--sim", memory, "--library"])
        .arg(library())
        .arg("--")
        .arg(python)
        .args(arguments)
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", program().parent().unwrap().display()))
        .printed()
}

#[test]
fn the_example_of_the_readme_names_the_guilty_line() {
    let (folder, job) = (tempfile::tempdir().unwrap(), root().join("examples/leak.py"));
    let died = in_folder(folder.path(), &python(), "24GiB", &[job.to_str().unwrap()]);
    assert_says(&died.said, "torch.OutOfMemoryError");
    let told = Command::new(program()).arg("why").current_dir(folder.path()).printed();
    assert_eq!(told.code, Some(12), "{}", told.text);
    // Of several snapshots the steps are told, of one that is not known.
    let ways = [
        "came again and again and stayed",
        "Next\n  Run once with --torch record",
    ];
    assert!(ways.iter().any(|way| told.text.contains(way)), "{}", told.text);
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (_, holder) = readme.split_once("examples/leak.py:").expect("README's holder");
    let line: String = holder.chars().take_while(char::is_ascii_digit).collect();
    let (_, holders) = told.text.split_once("Holders at the failure").unwrap();
    let first = holders.lines().nth(2).unwrap();
    assert_says(first, &format!("examples/leak.py:{line} <module>"));
    let code = std::fs::read_to_string(job).unwrap();
    let guilty = code.lines().nth(line.parse::<usize>().unwrap() - 1);
    assert_says(guilty.unwrap(), "losses =");
}

/// The environment of `scripts/ci/setup trainers`; `None`, with a word, if it is not there.
fn trainers() -> Option<std::path::PathBuf> {
    let python = environment().with_file_name("trainers").join("bin/python");
    if !python.exists() {
        left_out("a notebook and trainers that log: scripts/ci/setup trainers fetches them");
    }
    python.exists().then_some(python)
}

#[test]
fn trainers_log_peak_cache_and_verdict_with_the_loggers_they_have() {
    let Some(python) = trainers() else { return };
    let wheel = std::fs::read_to_string(root().join("scripts/packaging/wheel.py")).unwrap();
    let mut texts = wheel.split("\"\"\"");
    let points = texts.find(|text| text.contains("callbacks_factory")).unwrap();
    for kind in ["lightning", "own", "transformers", "own_of_transformers", "accelerate"] {
        let folder = tempfile::tempdir().unwrap();
        let installed = folder.path().join("vramshim-0.dist-info");
        std::fs::create_dir(&installed).unwrap();
        std::fs::write(installed.join("entry_points.txt"), points).unwrap();
        let done = in_folder(folder.path(), &python, "8GiB", &[&path("watched.py"), kind]);
        assert!(done.code == Some(0), "{kind}: {}\n{}", done.text, done.said);
        assert_says(&done.text, &format!("passed {kind}"));
        assert_says(&done.said, "vramshim: Verdict: larger than the device");
        // A logger that fails is told of once.
        let told = done.said.matches("no more figures are logged").count();
        assert_eq!(told, usize::from(kind.starts_with("own")), "{kind}: {}", done.said);
        let page = vramshim_with(&["report", "--json"], [folder.path().join("vramshim-watched")]).json();
        let marks = page["processes"][0]["marks"].list();
        let epochs = marks.iter().filter(|mark| mark["text"] == "epoch 0").count();
        assert_eq!(epochs > 0, ["lightning", "own"].contains(&kind), "{kind}: {marks:?}");
    }
}

#[test]
fn a_notebook_shows_the_report_of_its_kernel() {
    let Some(python) = trainers() else { return };
    let folder = tempfile::tempdir().unwrap();
    let done = in_folder(folder.path(), &python, "8GiB", &[&path("notebook.py")]);
    assert!(done.code == Some(0), "{}\n{}", done.text, done.said);
}
