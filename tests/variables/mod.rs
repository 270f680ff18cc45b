//! Completions for shells, and tables that stand in more than one place. The program prints the table of environment
//! variables in several forms, and docs/variables.md holds one of them.

use std::process::Command;
use support::{Printed, vramshim};

const BEGIN: &str = "<!-- variables: begin -->\n";
const END: &str = "<!-- variables: end -->";

fn printed(arguments: &[&str]) -> String {
    vramshim(arguments).ok().text
}

#[test]
fn the_page_of_variables_holds_the_table_that_the_program_prints() {
    let page = support::root().join("docs/variables.md");
    let text = std::fs::read_to_string(&page).expect("the page");
    let (_, rest) = text.split_once(BEGIN).expect("the line that begins the table");
    let (table, _) = rest.split_once(END).expect("the line that ends the table");
    assert_eq!(
        table,
        printed(&["variables", "--markdown"]),
        "put the output of `vramshim variables --markdown` between the two lines in docs/variables.md"
    );
}

#[test]
fn every_form_lists_every_variable() {
    let markdown = printed(&["variables", "--markdown"]);
    let rows = markdown.lines().filter_map(|line| line.strip_prefix("| `"));
    let names: Vec<&str> = rows.filter_map(|row| Some(row.split_once('`')?.0)).collect();
    assert!(
        names.contains(&"VRAMSHIM_STRATEGY") && names.contains(&"FLAGS_free_idle_chunk"),
        "{names:?}"
    );
    let man = man_pages();
    let page = std::fs::read_to_string(man.path().join("vramshim-run.1"))
        .unwrap()
        .replace("\\-", "-");
    for text in [printed(&["variables"]), page] {
        for name in &names {
            assert!(text.contains(name), "{text} leaves out {name}");
        }
    }
}

fn man_pages() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    printed(&["man", folder.path().to_str().unwrap()]);
    folder
}

/// The subcommands that `--help` lists, in their two groups.
fn groups() -> [Vec<String>; 2] {
    let help = printed(&["--help"]);
    ["Commands:\n", "More:\n"].map(|heading| {
        let (_, rest) = help
            .split_once(heading)
            .unwrap_or_else(|| panic!("no {heading} in {help}"));
        let lines = rest.lines().take_while(|line| !line.is_empty());
        let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        names
            .map(|line| line.split_whitespace().next().unwrap().to_owned())
            .collect()
    })
}

const MOST_OPTIONS: usize = 105;
const MOST_LINES: usize = 56;

#[test]
fn the_commands_are_few_enough_to_learn() {
    let [commands, more] = groups();
    assert_eq!(more, ["frames", "variables", "completions", "man"]);
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
    for command in commands.iter().chain(&more) {
        let help = printed(&[command, "--help"]);
        options += options_in(&help);
        if help.lines().count() > MOST_LINES {
            too_long.push(format!("{command}: {}", help.lines().count()));
        }
        assert!(
            man.path().join(format!("vramshim-{command}.1")).is_file(),
            "{command} has no man page"
        );
    }
    assert!(options <= MOST_OPTIONS, "{options} options");
    assert!(
        too_long.is_empty(),
        "lines of help: {too_long:?}; after_long_help stands in the man page alone"
    );
}

/// What the shell offers for the last word of a command line.
fn offered(words: &[&str]) -> Vec<String> {
    // bash calls the function with the program, the word, and the word before it.
    let script = "source /dev/stdin; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                  _vramshim \"$1\" \"${@: -1}\" \"${@: -2:1}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut child = Command::new("bash")
        .args(["-c", script, "bash"])
        .args(words)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("bash");
    let script = printed(&["completions", "bash"]);
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes()).unwrap();
    let words = Printed::from(child.wait_with_output().unwrap()).text;
    words.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_shell_completes_commands_options_and_values() {
    let mut commands = offered(&["vramshim", "re"]);
    commands.sort();
    assert_eq!(commands, ["reconcile", "replay", "report"]);
    assert_eq!(offered(&["vramshim", "top", "--in"]), ["--interval"]);
    let strategies = offered(&["vramshim", "run", "--strategy", ""]);
    assert!(
        strategies.contains(&"auto_growth".to_owned()) && strategies.len() > 2,
        "{strategies:?}"
    );
    assert!(offered(&["vramshim", "export", "--to", "pe"]).contains(&"perfetto".to_owned()));
    for shell in ["bash", "zsh", "fish"] {
        let script = printed(&["completions", shell]);
        assert!(script.contains("reconcile"), "{shell}");
        // The program calls these itself.
        assert!(
            !script.contains("ask-nvml") && !script.contains("doctor-probe"),
            "{shell}"
        );
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
