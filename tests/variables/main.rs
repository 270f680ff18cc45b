//! The table of environment variables: the program prints it in several forms, and docs/variables.md holds one of them.

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
