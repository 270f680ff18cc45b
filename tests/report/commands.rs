//! The options of `vramshim report`, and the commands that its page names.

use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::{browser, job, vramshim};

/// Each command of the page is typed into a shell as it stands there, in an empty folder.
#[test]
fn the_commands_of_the_page_work_as_they_are_typed() {
    let Some(mut browser) = browser("the commands of the page") else {
        return;
    };
    let folder = TempDir::new().unwrap();
    // A name that a shell would take apart.
    let odd = folder.path().join("it's a $HOME");
    std::fs::create_dir(&odd).unwrap();
    let truth = job::write(&odd, 0).unwrap();
    let file = folder.path().join("report.html");
    let made = vramshim(
        &[truth.path.to_str().unwrap(), "-o", file.to_str().unwrap()],
        folder.path(),
    );
    assert!(made.status.success());
    browser.look(1280, 900, "light");
    browser.open(&file);
    let commands = browser.value("[...document.querySelectorAll('.commands code')].map((code) => code.textContent)");
    let commands: Vec<String> = serde_json::from_value(commands).unwrap();
    assert_eq!(commands.len(), 9, "{commands:?}");
    let program = support::program();
    let path = std::env::join_paths(
        [program.parent().unwrap().to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let path = path.unwrap();
    for command in &commands {
        let empty = TempDir::new().unwrap();
        let output = Command::new("sh")
            .args(["-c", command])
            .current_dir(empty.path())
            .env("PATH", &path)
            .output()
            .unwrap();
        // `why` answers with the verdict: 14 is free memory that cannot be used.
        let expected = if command.contains(" why ") { 14 } else { 0 };
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(expected), "{command}: {errors}");
        let written: Vec<u64> = (std::fs::read_dir(empty.path()).unwrap().flatten())
            .map(|entry| entry.metadata().unwrap().len())
            .collect();
        if command.contains(" export ") {
            assert!(!written.is_empty() && !written.contains(&0), "{command}: {written:?}");
        } else {
            assert!(written.is_empty() && !output.stdout.is_empty(), "{command}");
        }
        if command.ends_with("--json") {
            serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|error| panic!("{command}: {error}"));
        }
    }
    assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);
}

#[test]
fn another_run_to_compare_with_is_in_the_panel_of_changes() {
    let Some(mut browser) = browser("--against") else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let (new, old) = (folder.path().join("new"), folder.path().join("old"));
    std::fs::create_dir(&new).unwrap();
    std::fs::create_dir(&old).unwrap();
    let new = job::write(&new, 0).unwrap();
    // Rank 2 has half of the activations.
    let old = job::write_started(&old, 2, job::STARTED_S - 86_400).unwrap();
    let file = folder.path().join("report.html");
    let arguments = [&new.path, &old.path, &file].map(|path| path.to_str().unwrap());
    let made = vramshim(
        &[arguments[0], "--against", arguments[1], "-o", arguments[2]],
        folder.path(),
    );
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    browser.look(1280, 900, "light");
    browser.open(&file);
    // The activations differ.
    browser.assert_shows("#changes", &["peak of the other run", "model.py:31 forward"]);
    let chosen = browser.value("document.querySelector('#changes select').value");
    assert_eq!(chosen, "against");
    assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);
    let missing = vramshim(
        &[arguments[0], "--against", "nowhere.vraj", "-o", arguments[2]],
        folder.path(),
    );
    assert_eq!(missing.status.code(), Some(1));
}
