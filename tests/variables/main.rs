//! Tables that stand in more than one place. The program prints the table of environment variables in several forms, and
//! docs/variables.md holds one of them. The README repeats the table of what a policy changes.

use std::process::Command;

use serde_json::Value;

const BEGIN: &str = "<!-- variables: begin -->\n";
const END: &str = "<!-- variables: end -->";

fn printed(arguments: &[&str]) -> String {
    let output = Command::new(support::program()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_page_of_variables_holds_the_table_that_the_program_prints() {
    let page = support::root().join("docs/variables.md");
    let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    let (_, rest) = text.split_once(BEGIN).expect("the line that begins the table");
    let (table, _) = rest.split_once(END).expect("the line that ends the table");
    assert_eq!(
        table,
        printed(&["variables", "--markdown"]),
        "put the output of `vramshim variables --markdown` between the two lines in docs/variables.md"
    );
}

/// The rows of the first table below a heading.
fn table_below<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    let (_, rest) = text.split_once(heading).unwrap_or_else(|| panic!("no {heading}"));
    let rows = rest.lines().skip_while(|line| !line.starts_with('|'));
    rows.take_while(|line| line.starts_with('|')).collect()
}

#[test]
fn the_readme_has_the_table_of_what_a_policy_changes() {
    let heading = "\n## What a policy changes of the driver's behaviour\n";
    let page = |name: &str| std::fs::read_to_string(support::root().join(name)).expect("a page");
    let (readme, strategies) = (page("README.md"), page("docs/strategies.md"));
    let wanted = table_below(&strategies, heading);
    assert!(wanted.len() > 2, "{wanted:?}");
    assert_eq!(
        table_below(&readme, heading),
        wanted,
        "copy the table of docs/strategies.md to the README"
    );
}

#[test]
fn every_form_lists_every_variable() {
    let listed: Value = serde_json::from_str(&printed(&["variables", "--json"])).unwrap();
    let names: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert!(
        names.contains(&"VRAMSHIM_STRATEGY") && names.contains(&"FLAGS_free_idle_chunk"),
        "{names:?}"
    );
    for form in [&["variables"][..], &["variables", "--markdown"], &["run", "--help"]] {
        let text = printed(form);
        for name in &names {
            assert!(text.contains(name), "{form:?} leaves out {name}");
        }
    }
}
