//! The programs in `examples` run as their head comments say, and the commands of the recipes as they stand there.

mod recipes;

use support::{Job, STRATEGIES, client};

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
