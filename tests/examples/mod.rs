//! The programs in `examples` run as their head comments say, and the commands of the recipes as they stand there.

mod recipes;

use std::process::Command;

use support::{Job, Runs, STRATEGIES, client};

#[test]
fn stats_reads_its_own_totals_under_each_strategy() {
    let program = client("../examples/stats.c", "stats", &[]);
    for strategy in STRATEGIES {
        let output = Job::new(&program).strategy(strategy).run().ok().stdout;
        assert!(output.contains("requested"), "{strategy:?}: {output}");
    }
}

#[test]
fn stats_says_that_the_library_is_missing() {
    let program = client("../examples/stats.c", "stats", &[]);
    let finished = Job::new(program).alone().run().ok();
    let said = format!("{}{}", finished.stdout, finished.stderr);
    assert!(said.contains("not loaded"), "{said}");
}

/// Checks the syntax only, because the example needs PyTorch. `tests/frameworks` runs the example.
#[test]
fn the_python_example_compiles() {
    let path = support::root().join("examples/pytorch_allocator.py");
    let output = Command::new("python3")
        .args(["-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())"])
        .arg(path)
        .printed();
    assert!(output.code == Some(0), "{}", output.said);
}
