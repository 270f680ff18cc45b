//! Jobs over a quota layer (`tests/support/layer`) that stands between the library and the driver, in both forms and
//! with the habits that existing layers have. Every job runs under every strategy. At every checkpoint the layer's
//! book, the library's ledger and the simulator's table agree to the byte.

mod words;

use serde_json::{Value, json};
use support::layer::{FORMS, Form, Habits, assert_book_is_true, assert_books_agree};
use support::member::{Member, member_client};
use support::{
    AUTO_GROWTH, Fields, Finished, GIB, Job, MIB, NAIVE_BEST_FIT_OF_ALL, PASSTHROUGH, STRATEGIES, Strategy, THREE,
    assert_agree, assert_fields, assert_journal_agrees, client,
};

const WELL_BEHAVED: Habits = &[];
const IN_ONE_PIECE: Habits = &[("LAYER_CONTIGUOUS", "1")];
/// The layer refuses to map a granule that is mapped already.
const MAPPED_ONCE: Habits = &[("LAYER_VMM", "once")];
/// Virtual memory management is missing, or the device reports it and the calls fail.
const WITHOUT_VMM: [Habits; 3] = [
    &[("LAYER_VMM", "0")],
    &[("LAYER_VMM", "broken")],
    &[("LAYER_VMM", "broken-map")],
];
const HABITS: [Habits; 10] = [
    WELL_BEHAVED,
    WITHOUT_VMM[0],
    WITHOUT_VMM[1],
    WITHOUT_VMM[2],
    MAPPED_ONCE,
    IN_ONE_PIECE,
    &[("LAYER_POOLS", "0")],
    &[("LAYER_DEFAULT", "1")],
    &[("LAYER_SLOW", "200us"), ("LAYER_FORGETFUL", "1")],
    &[
        ("LAYER_VMM", "0"),
        ("LAYER_POOLS", "0"),
        ("LAYER_CONTIGUOUS", "1"),
        ("LAYER_SLOW", "200us"),
        ("LAYER_FORGETFUL", "1"),
    ],
];

/// Each item with each form of the layer.
fn over_both<A: Copy>(each: &[A]) -> Vec<(Form, A)> {
    FORMS
        .into_iter()
        .flat_map(|form| each.iter().map(move |one| (form, *one)))
        .collect()
}

/// Each item with each form of the layer and each strategy.
fn under_all<A: Copy>(each: &[A]) -> Vec<(Form, A, Strategy)> {
    let with = |(form, one)| THREE.map(|strategy| (form, one, strategy));
    over_both(each).into_iter().flat_map(with).collect()
}

/// Runs `tests/support/clients/quota.c` with a limit of 1 GiB. The client reaches the driver in the way that layers of
/// this form support.
fn quota(form: Form, habits: Habits, arguments: &[&str]) -> Job {
    let path = match form {
        Form::Preloaded | Form::PreloadedWithoutVmm => client("support/clients/quota.c", "quota-dlopen", &["-DDLOPEN"]),
        Form::Replacing => client("support/clients/quota.c", "quota-linked", &["libcuda.so.1"]),
    };
    Job::new(path).sim("2GiB", 1).over(form, "1GiB", habits).args(arguments)
}

/// Checks every checkpoint and the journal of a job that exited with 0. Returns the output of `inspect`.
fn check(finished: &Finished, strategy: Strategy, context: &str) -> Value {
    let lines = finished.json();
    let checkpoints: Vec<&Value> = lines.iter().filter(|line| line.get("own").is_some()).collect();
    assert!(checkpoints.len() > 1, "{context}: checkpoints");
    for (number, checkpoint) in checkpoints.iter().enumerate() {
        let context = format!("{context}, checkpoint {number}");
        assert_agree(checkpoint, strategy, &context);
        assert_book_is_true(checkpoint, &context);
        assert_books_agree(checkpoint, &context);
    }
    let job = finished.inspect();
    let ended = (
        &job["ended"],
        &job["exit_status"],
        &job["anomalies"],
        &job["events_lost"],
    );
    assert_eq!(
        ended,
        (&"exit".into(), &0.into(), &0.into(), &0.into()),
        "{context}: {job}"
    );
    assert_eq!(job["strategy"], strategy.name, "{context}");
    assert_journal_agrees(&job, checkpoints[checkpoints.len() - 1], context);
    job
}

/// The bytes of linear memory in the library's ledger.
fn linear(checkpoint: &Value, kind: &str) -> u64 {
    let rows = checkpoint["account"]["totals"].list();
    let row = rows.iter().find(|row| row["class"] == "linear");
    row.map_or(0, |row| row[kind]["current"].number())
}

/// Checks the answers about free memory that follow a checkpoint. The free bytes are those that the layer would still
/// give plus those that are free inside the policy's segments.
fn assert_information_agrees(lines: &[Value], context: &str) {
    let mut compared = 0;
    for pair in lines.windows(2).filter(|pair| pair[1].get("information").is_some()) {
        let told = &pair[1]["information"];
        let left = GIB - pair[0]["layer"]["used"][0].number();
        let inside = linear(&pair[0], "reserved") - linear(&pair[0], "allocated");
        assert_eq!(told["free"], left + inside, "free, {context}");
        assert_eq!(told["total"], GIB, "total, {context}");
        compared += 1;
    }
    assert!(compared > 4, "{context}: {compared} answers");
}

#[test]
fn every_kind_of_memory_agrees_over_every_habit() {
    for (form, habits, strategy) in under_all(&HABITS) {
        let context = format!("{form:?} {habits:?} {}", strategy.name);
        let finished = quota(form, habits, &["book", "1", "250"]).strategy(strategy).run().ok();
        check(&finished, strategy, &context);
        assert_information_agrees(&finished.json(), &context);
    }
}

#[test]
fn the_layers_limit_is_out_of_memory_and_no_other_error() {
    for (form, habits, strategy) in under_all(&HABITS) {
        let context = format!("{form:?} {habits:?} {}", strategy.name);
        let finished = quota(form, habits, &["limit"]).strategy(strategy).run().ok();
        let job = check(&finished, strategy, &context);
        let served = finished.stdout.lines().filter(|line| line.ends_with(" served"));
        let served: Vec<u64> = served.filter_map(|line| line.split(' ').nth(1)?.parse().ok()).collect();
        let has = |name: &str| habits.iter().any(|(habit, _)| *habit == name);
        let kinds = 5 - usize::from(has("LAYER_VMM") && habits != MAPPED_ONCE) - usize::from(has("LAYER_POOLS"));
        assert_eq!(served.len(), kinds, "{context}:\n{served:?}");
        // 1 GiB holds 21 blocks of 48 MiB. Rounding by the policy may cost one block.
        assert!(
            served.iter().all(|count| (20..=21).contains(count)),
            "{context}: {served:?}"
        );
        let failed = job["failed"].list();
        let full = failed.iter().filter(|one| one["code"] == 2).count();
        assert_eq!(full, kinds, "{context}: {failed:?}");
    }
}

/// The layer, the ledger and NVML report the same used bytes. cuMemGetInfo counts free memory of the policy as free.
fn assert_one_truth(stdout: &str, context: &str) {
    let line = stdout.lines().find(|line| line.starts_with("books: ")).expect(context);
    let numbers: Vec<u64> = line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    let [layer, ledger, management, information, inside] = numbers[..] else {
        panic!("{context}: {line}");
    };
    assert!(layer > 0, "{context}: {line}");
    assert_eq!(
        [ledger, management, information + inside],
        [layer; 3],
        "{context}: {line}"
    );
}

/// Runs `quota mixed`. Returns its last line and the output of `inspect`.
fn mixed(form: Form, habits: Habits, strategy: Strategy, seed: &str) -> (String, Value) {
    let context = format!("mixed {seed}, {form:?} {habits:?} {}", strategy.name);
    let job = quota(form, habits, &["mixed", seed, "4000"]).sim("1GiB", 1);
    let finished = job.strategy(strategy).run().ok();
    let job = check(&finished, strategy, &context);
    assert_one_truth(&finished.stdout, &context);
    let said = finished.stdout.lines().find(|line| !line.starts_with('{'));
    (said.expect("its end").to_owned(), job)
}

/// Each request needs one piece of the device's memory, and the job asks for many small and some large blocks. The
/// job never holds more than 55% of the memory.
#[test]
fn mixed_sizes_over_memory_in_one_piece_need_a_policy() {
    for (form, seed) in over_both(&["1", "2", "3"]) {
        let (said, _) = mixed(form, IN_ONE_PIECE, PASSTHROUGH, seed);
        let numbers: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
        assert!(said.starts_with("out of memory: ") && numbers.len() == 3, "{said}");
        assert!(numbers[2] > 4 * numbers[0], "scattered, not used up: {said}");
        for strategy in [NAIVE_BEST_FIT_OF_ALL, AUTO_GROWTH] {
            let (said, job) = mixed(form, IN_ONE_PIECE, strategy, seed);
            assert_eq!(said, "served", "{form:?} {} {seed}", strategy.name);
            assert_eq!(job["failures"], 0, "{form:?} {} {seed}", strategy.name);
        }
    }
}

/// The control of `mixed_sizes_over_memory_in_one_piece_need_a_policy`. If the device has pages, the job runs without a
/// policy too.
#[test]
fn mixed_sizes_run_over_pages_under_every_strategy() {
    for (form, strategy) in over_both(&THREE) {
        let (said, _) = mixed(form, WELL_BEHAVED, strategy, "1");
        assert_eq!(said, "served", "{form:?} {}", strategy.name);
    }
}

#[test]
fn missing_virtual_memory_management_is_reported_once() {
    for (form, habits) in over_both(&WITHOUT_VMM) {
        let finished = quota(form, habits, &["book", "2", "250"])
            .strategy(AUTO_GROWTH)
            .run()
            .ok();
        let said = finished.said();
        let warnings: Vec<_> = said.iter().filter(|(severity, _)| "WE".contains(*severity)).collect();
        let of_chunks = |words: &str| words.starts_with("auto_growth grows in chunks");
        assert!(
            warnings.len() == 1 && of_chunks(&warnings[0].1),
            "{form:?} {habits:?}: {warnings:?}"
        );
    }
}

/// Clients that reach the driver in other ways: linked, through `cuGetProcAddress`, through the runtime. They use two
/// devices, destroy contexts that hold memory, and free blocks in other threads.
#[test]
fn every_way_to_the_driver_leads_through_the_layer() {
    let roads = [
        (
            client("support/clients/exercise.c", "linked", &["libcuda.so.1"]),
            vec!["3", "240", "1"],
        ),
        (
            client("support/clients/exercise.c", "proc", &["-DPROC"]),
            vec!["4", "240", "1"],
        ),
        (
            client("support/clients/contend.c", "contend", &["libcuda.so.1"]),
            vec!["4", "1500", "7", "1"],
        ),
        (
            client("support/clients/runtime.c", "runtime13", &["libcudart.so.13"]),
            vec!["5", "300"],
        ),
    ];
    for (form, strategy) in over_both(&STRATEGIES) {
        for (path, arguments) in &roads {
            let context = format!("{} over {form:?}, {strategy:?}", path.display());
            let job = Job::new(path).over(form, "3GiB", WELL_BEHAVED).strategy(strategy);
            check(&job.args(arguments).run().ok(), strategy, &context);
        }
    }
}

/// The layer is preloaded before the library, so that the layer's `dlsym` comes first. The library sees the calls that
/// the layer forwards.
#[test]
fn the_layer_may_come_before_the_library() {
    let scenes: [&[&str]; 2] = [&["book", "1", "250"], &["limit"]];
    let linked = client("support/clients/quota.c", "quota-linked", &["libcuda.so.1"]);
    let dlopen = client("support/clients/quota.c", "quota-dlopen", &["-DDLOPEN"]);
    let proc = client("support/clients/quota.c", "quota-proc", &["-DPROC"]);
    for (path, strategy) in [linked, dlopen, proc]
        .iter()
        .flat_map(|path| THREE.map(|strategy| (path, strategy)))
    {
        for scene in scenes {
            let context = format!("{} {scene:?} {}", path.display(), strategy.name);
            let job = Job::new(path).sim("2GiB", 1).under("1GiB", WELL_BEHAVED).args(scene);
            let finished = job.strategy(strategy).run().ok();
            // The layer would not see what a policy reserves.
            let told = finished.stderr.contains("passes every request through");
            assert_eq!(
                told,
                strategy.name != PASSTHROUGH.name,
                "{context}: {}",
                finished.stderr
            );
            let lines = finished.json();
            let checkpoints: Vec<&Value> = lines.iter().filter(|line| line.get("own").is_some()).collect();
            for checkpoint in &checkpoints {
                assert_agree(checkpoint, PASSTHROUGH, &context);
                // A layer in front of the library counts what the job asked for.
                let requested: u64 = checkpoint["own"]
                    .list()
                    .iter()
                    .filter(|row| row["device"] == 0 && row["class"] != "address_range" && row["class"] != "pitched")
                    .map(|row| row["requested"].number())
                    .sum();
                let used = checkpoint["layer"]["used"][0].number();
                assert!(used >= requested && used <= GIB, "{context}: {used} {requested}");
                let taken = checkpoint["truth"]["totals"].list().iter();
                let taken: u64 = taken
                    .filter(|row| row["device"] == 0 && row["class"] == "linear")
                    .map(|row| row["reserved"].number())
                    .sum();
                assert!(taken <= used, "{context}: {taken} taken, {used} counted");
            }
            let job = finished.inspect();
            assert_fields(&job, json!({"anomalies": 0, "events_lost": 0}), &context);
            assert_journal_agrees(&job, checkpoints[checkpoints.len() - 1], &context);
        }
    }
}

/// The layer's limit is reached most of the time, while the device has free memory.
#[test]
fn a_full_share_leaves_the_account_right() {
    let path = client("support/clients/exercise.c", "linked", &["libcuda.so.1"]);
    for (form, strategy) in over_both(&STRATEGIES) {
        let context = format!("{form:?} {strategy:?}");
        let job = Job::new(&path).over(form, "10MiB", WELL_BEHAVED).strategy(strategy);
        let job = check(&job.args(["11", "3000", "1"]).run().ok(), strategy, &context);
        let failed = job["failed"].list();
        let full = failed.iter().filter(|one| one["code"] == 2).count();
        assert!(full > 4, "{context}: the limit was reached for only {full} APIs");
    }
}

/// Free memory of a policy counts against the layer's limit. The library gives it back if another request needs memory,
/// or if the job calls `vramshim_trim`.
#[test]
fn free_memory_of_a_policy_blocks_no_other_request() {
    let path = client("support/clients/growth.c", "growth", &["-DDLOPEN"]);
    for (form, strategy) in over_both(&THREE) {
        for (scene, keeps) in [("others", true), ("trim", false)] {
            if keeps && strategy.name == "passthrough" {
                continue;
            }
            let context = format!("{scene}, {form:?} {strategy:?}");
            let job = Job::new(&path).sim("4GiB", 1).over(form, "1GiB", WELL_BEHAVED);
            check(&job.strategy(strategy).args([scene]).run().ok(), strategy, &context);
        }
    }
}

/// The limit is 5 GiB, and the device needs one piece of memory for each request. The job allocates 1, 2 and 1 GiB,
/// frees the 2 GiB and asks for 3 GiB.
#[test]
fn scattered_memory_is_put_side_by_side() {
    let path = client("support/clients/growth.c", "growth", &["-DDLOPEN"]);
    let table = [(PASSTHROUGH, "out of memory"), (AUTO_GROWTH, "served")];
    for (form, (strategy, answer)) in over_both(&table) {
        let context = format!("{form:?} {}", strategy.name);
        let job = Job::new(&path).sim("5GiB", 1).over(form, "5GiB", IN_ONE_PIECE);
        let finished = job.strategy(strategy).args(["textbook"]).run().ok();
        check(&finished, strategy, &context);
        assert!(
            finished.stdout.ends_with(&format!("asked for: {answer}\n")),
            "{context}"
        );
    }
}

/// Neither the ledger nor the layer has the address. The layer answers -1, and the driver would say that the argument is
/// wrong, which `cudaFree` passes on.
#[test]
fn a_free_of_nothing_is_an_invalid_argument_over_a_layer_with_own_results() {
    const LISTED: Habits = &[("LAYER_FREES", "listed")];
    let path = client("support/clients/runtime.c", "runtime13", &["libcudart.so.13"]);
    for (form, strategy) in over_both(&THREE) {
        let context = format!("{form:?} {}", strategy.name);
        let job = Job::new(&path).sim("2GiB", 2).over(form, "1GiB", LISTED);
        let finished = job.strategy(strategy).args(["5", "300"]).run().ok();
        assert_eq!(finished.inspect()["anomalies"], 0, "{context}");
    }
}

/// Some layers do not see what `cuMemCreate` makes. No strategy may get more there than a job without the library.
#[test]
fn no_strategy_gets_more_than_a_layer_that_does_not_count_mapped_memory_allows() {
    const UNCOUNTED: Habits = &[("LAYER_VMM", "uncounted")];
    let layers = [
        (Form::Preloaded, UNCOUNTED),
        (Form::Replacing, UNCOUNTED),
        (Form::PreloadedWithoutVmm, WELL_BEHAVED),
    ];
    for (form, habits) in layers {
        let granted = |job: Job| {
            let mut member = Member::start(job.sim("4GiB", 1).over(form, "1GiB", habits));
            let granted = (0..40).take_while(|_| member.allocate(100 * MIB) == 0).count();
            (granted, member.end())
        };
        let (alone, _) = granted(Job::new(member_client()).alone());
        assert_eq!(alone, 10, "{form:?}");
        for strategy in THREE {
            let (with, errors) = granted(Job::new(member_client()).strategy(strategy));
            let context = format!("{form:?} {}: {errors}", strategy.name);
            assert!((9..=alone).contains(&with), "{with} granted under {context}");
            let told = errors.contains("grows in chunks");
            assert_eq!(told, strategy.name == AUTO_GROWTH.name, "{context}");
        }
    }
}

/// Without the library the layer's book is right, and its habits do what their names say. The other tests of this file
/// rely on this.
#[test]
fn the_layer_alone_keeps_its_book() {
    for (form, habits) in over_both(&HABITS) {
        let scenes: &[&[&str]] = match habits {
            [] => &[&["limit"], &["book", "3", "200"]],
            _ => &[&["book", "3", "100"]],
        };
        for scene in scenes {
            let lines = quota(form, habits, scene).alone().run().ok().json();
            let checkpoints = lines.iter().filter(|line| line.get("own").is_some());
            for checkpoint in checkpoints {
                assert_book_is_true(checkpoint, &format!("{form:?} {habits:?} {scene:?}"));
            }
        }
    }
    let twice = |habits: Habits| {
        let job = quota(Form::Preloaded, habits, &["next"]).alone();
        job.run().ok().stdout
    };
    assert_eq!(twice(&[("LAYER_FORGETFUL", "1")]), "found, nothing\n");
    assert_eq!(twice(WELL_BEHAVED), "found, found\n");
}
