//! The options of `vramshim report`, and the commands that its page names.

use std::process::Command;

use support::Runs;
use tempfile::TempDir;

use super::{browser, job, vramshim};

/// Each command of the page is typed into a shell as it stands there, in an empty folder.
#[test]
fn the_commands_of_the_page_work_as_they_are_typed() {
    let Some(mut browser) = browser() else { return };
    let folder = TempDir::new().unwrap();
    // A name that a shell would take apart.
    let odd = folder.path().join("it's a $HOME");
    std::fs::create_dir(&odd).unwrap();
    let truth = job::write(&odd, 0).unwrap();
    let file = folder.path().join("report.html");
    let arguments = [truth.path.to_str().unwrap(), "-o", file.to_str().unwrap()];
    vramshim(&arguments, folder.path()).ok();
    browser.look(1280, 900, "light");
    browser.open(&file);
    let commands = browser.value("[...document.querySelectorAll('.commands code')].map((code) => code.textContent)");
    let commands: Vec<String> = serde_json::from_value(commands).unwrap();
    assert_eq!(commands.len(), 9, "{commands:?}");
    let (program, others) = (support::program(), std::env::var("PATH").unwrap());
    let path = format!("{}:{others}", program.parent().unwrap().display());
    for command in &commands {
        let empty = TempDir::new().unwrap();
        let output = Command::new("sh")
            .args(["-c", command])
            .current_dir(empty.path())
            .env("PATH", &path)
            .printed();
        // `why` answers with the verdict: 14 is free memory that cannot be used.
        let expected = if command.contains(" why ") { 14 } else { 0 };
        assert_eq!(output.code, Some(expected), "{command}: {}", output.said);
        let written: Vec<u64> = (std::fs::read_dir(empty.path()).unwrap().flatten())
            .map(|entry| entry.metadata().unwrap().len())
            .collect();
        if command.contains(" export ") {
            assert!(!written.is_empty() && !written.contains(&0), "{command}: {written:?}");
        } else {
            assert!(written.is_empty() && !output.text.is_empty(), "{command}");
        }
        if command.ends_with("--json") {
            output.json();
        }
    }
}

#[test]
fn another_run_to_compare_with_is_in_the_panel_of_changes() {
    let Some(mut browser) = browser() else { return };
    let folder = TempDir::new().unwrap();
    let (new, old) = (folder.path().join("new"), folder.path().join("old"));
    std::fs::create_dir(&new).unwrap();
    std::fs::create_dir(&old).unwrap();
    let new = job::write(&new, 0).unwrap();
    // Rank 2 has half of the activations.
    let old = job::write_started(&old, 2, job::STARTED_S - 86_400).unwrap();
    let file = folder.path().join("report.html");
    let arguments = [&new.path, &old.path, &file].map(|path| path.to_str().unwrap());
    let compare = |other| vramshim(&[arguments[0], "--against", other, "-o", arguments[2]], folder.path());
    compare(arguments[1]).ok();
    browser.look(1280, 900, "light");
    browser.open(&file);
    // The activations differ.
    browser.assert_shows("#changes", &["peak of the other run", "model.py:31 forward"]);
    let chosen = browser.value("document.querySelector('#changes select').value");
    assert_eq!(chosen, "against");
    assert_eq!(compare("nowhere.vraj").code, Some(1));
}
