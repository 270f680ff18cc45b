//! Completions for shells, help that is short enough, and the environment variables, which the program prints and the man
//! page of `run` has.

use std::process::Command;
use support::{Runs, vramshim};

fn printed(arguments: &[&str]) -> String {
    vramshim(arguments).ok().text
}

#[test]
fn every_form_lists_every_variable() {
    let list = printed(&["variables"]);
    let names = list
        .split("\n\n")
        .filter_map(|paragraph| paragraph.split_whitespace().next());
    let names: Vec<&str> = names.collect();
    for known in ["VRAMSHIM_STRATEGY", "FLAGS_free_idle_chunk"] {
        assert!(names.contains(&known), "{names:?}");
    }
    let man = man_pages();
    let page = std::fs::read_to_string(man.path().join("vramshim-run.1"));
    let page = page.unwrap().replace("\\-", "-");
    let missing = names.iter().find(|name| !page.contains(**name));
    assert_eq!(missing, None, "{page}");
}

/// What the program prints for a terminal of 80 columns.
fn narrow(arguments: &[&str]) -> String {
    let mut program = Command::new(support::program());
    program.args(arguments).env("COLUMNS", "80").printed().text
}

#[test]
fn without_arguments_the_program_says_how_to_begin() {
    let said = narrow(&["--help"]);
    assert!(said.lines().count() <= MOST_LINES, "{said}");
    let first = vramshim(&[]);
    assert_eq!((first.code, first.text.as_str()), (Some(2), ""));
    for command in ["vramshim run -- python train.py", "vramshim why", "vramshim report"] {
        assert!(first.said.contains(command) && said.contains(command), "{}", first.said);
    }
}

fn man_pages() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    printed(&["man", folder.path().to_str().unwrap()]);
    folder
}

/// The subcommands that `--help` lists.
fn commands() -> Vec<String> {
    let help = printed(&["--help"]);
    let (_, rest) = help.split_once("Commands:\n").expect("commands");
    let lines = rest.lines().take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .collect()
}

const MOST_OPTIONS: usize = 105;
/// The most lines of a help text at 80 columns; that of `run` has ten more.
const MOST_LINES: usize = 50;

#[test]
fn the_commands_are_few_enough_to_learn() {
    let commands = commands();
    assert_eq!(commands.len(), 16);
    let (man, mut options) = (man_pages(), 0);
    let mut too_long = Vec::new();
    let options_in = |help: &str| {
        let is_option = |line: &&str| {
            let option = line.trim_start();
            (2..=6).contains(&(line.len() - option.len())) && option.starts_with('-') && !option.contains("--help")
        };
        help.lines().filter(is_option).count()
    };
    for question in ["stats", "trim", "dump", "set"] {
        options += options_in(&printed(&["ctl", "1", question, "--help"]));
    }
    for command in &commands {
        let help = narrow(&[command, "--help"]);
        options += options_in(&help);
        let is_ragged = |line: &&str| line.chars().count() > 80 || line.contains("docs/");
        assert_eq!(help.lines().find(is_ragged), None, "{command}");
        if help.lines().count() > MOST_LINES + if command == "run" { 10 } else { 0 } {
            too_long.push(format!("{command}: {}", help.lines().count()));
        }
        let page = man.path().join(format!("vramshim-{command}.1"));
        assert!(page.is_file(), "{command} has no man page");
    }
    assert!(options <= MOST_OPTIONS, "{options} options");
    // What is after_long_help stands in the man page alone.
    assert!(too_long.is_empty(), "lines of help: {too_long:?}");
}

#[test]
fn a_shell_completes_commands_options_and_values() {
    for shell in ["bash", "zsh", "fish"] {
        let script = printed(&["completions", shell]);
        let words = ["reconcile", "interval", "auto_growth", "perfetto"];
        assert!(words.iter().all(|word| script.contains(word)), "{shell}");
        // The program calls these itself.
        let internal = ["ask-nvml", "doctor-probe"];
        assert!(internal.iter().all(|command| !script.contains(command)), "{shell}");
        if support::in_path(shell) {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), &script).unwrap();
            let checked = Command::new(shell).arg("-n").arg(file.path()).status().unwrap();
            assert!(checked.success(), "{shell} finds an error in the script");
        } else {
            support::left_out(&format!("{shell} does not check its script: it is not installed"));
        }
    }
    assert_eq!(vramshim(&["completions", "tcsh"]).code, Some(2));
}
