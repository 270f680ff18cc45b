//! The commands of README.md and docs/recipes.md run as they stand there, over the simulated GPU. A C program takes the place of the
//! programs that need a framework.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use support::{Runs, client, library, program, root, simulated};

const MEMORY: &str = "24GiB";
/// `stress` works for ten minutes in the page.
const SHORTER: (&str, &str) = ("--for 10m", "--for 2s --sim 2GiB --strategy passthrough");

/// The sections of a page with the commands of each.
fn sections(page: &str) -> Vec<(String, Vec<String>)> {
    let page = std::fs::read_to_string(root().join(page)).expect("the page");
    let sections = page.split("\n## ");
    let of_section = |section: &str| {
        let title = section.lines().next().unwrap().to_owned();
        let commands = section
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .map(|line| line.strip_prefix("$ ").unwrap_or(line))
            .filter(|line| line.starts_with("vramshim "))
            .map(str::to_owned);
        (title, commands.collect())
    };
    sections.map(of_section).collect()
}

/// Makes `name` a program in the folder `bin` that runs the C program, whatever its arguments.
fn stand_in(bin: &Path, name: &str, job: &Path) {
    let path = bin.join(name);
    std::fs::write(&path, format!("#!/bin/sh\nexec '{}'\n", job.display())).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn run(command: &str, folder: &Path, bin: &Path) -> (Option<i32>, String) {
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh")
        .args(["-c", &command.replace(SHORTER.0, SHORTER.1)])
        .current_dir(folder)
        .env("PATH", path)
        .env("LD_LIBRARY_PATH", simulated("libcuda.so.1").parent().unwrap())
        .env("VRAMSHIM_LIBRARY", library())
        .env("SIMGPU_MEMORY", MEMORY)
        .env("XDG_STATE_HOME", folder.join("state"))
        .printed();
    (output.code, output.text + &output.said)
}

#[test]
fn the_commands_of_the_recipes_run_as_they_stand_there() {
    // The folder of journals is named after the program, as after train.py.
    let job = client("support/clients/training.c", "train", &[]);
    let bin = tempfile::tempdir().unwrap();
    stand_in(bin.path(), "python", &job);
    stand_in(bin.path(), "torchrun", &job);
    std::os::unix::fs::symlink(program(), bin.path().join("vramshim")).unwrap();
    let recipes = [sections("README.md"), sections("docs/recipes.md")].concat();
    assert!(recipes.iter().filter(|(_, commands)| !commands.is_empty()).count() >= 10);
    for (title, commands) in recipes {
        let folder = tempfile::tempdir().unwrap();
        for command in commands {
            let (code, said) = run(&command, folder.path(), bin.path());
            let what = command.split(' ').nth(1).unwrap();
            // What is found is an answer: a verdict, a warning of doctor, books that differ.
            let is_answer = match what {
                "why" => matches!(code, Some(0 | 10..=20)),
                "doctor" => matches!(code, Some(0 | 3)),
                "reconcile" => matches!(code, Some(0 | 1)) && !said.contains("cannot be read"),
                _ => code == Some(0),
            };
            assert!(is_answer, "{title}: {command}: {code:?}\n{said}");
        }
    }
}
