//! Jobs over a quota layer (`tests/support/layer`) that stands between the library and the driver, in both forms and
//! with the habits that existing layers have. Every job runs under every strategy. At every checkpoint the layer's
//! book, the library's ledger and the simulator's table agree to the byte.

mod words;

use serde_json::{Value, json};
use support::layer::{FORMS, Form, Habits, assert_book_is_true, assert_books_agree};
use support::member::{Host, Member, member_client};
use support::{
    AUTO_GROWTH, Fields, Finished, GIB, Job, MIB, NAIVE_BEST_FIT_OF_ALL, PASSTHROUGH, STRATEGIES, Strategy, THREE,
    assert_agree, assert_fields, assert_journal_agrees, client,
};

const WELL_BEHAVED: Habits = &[];
const IN_ONE_PIECE: Habits = &[("LAYER_CONTIGUOUS", "1")];
/// `scripts/layers` compares jobs over each habit alone with the layer alone.
const MANY_HABITS: Habits = &[
    ("LAYER_VMM", "0"),
    ("LAYER_POOLS", "0"),
    ("LAYER_CONTIGUOUS", "1"),
    ("LAYER_SLOW", "200us"),
    ("LAYER_FORGETFUL", "1"),
];

/// Each item with each form of the layer.
fn over_both<A: Copy>(each: &[A]) -> Vec<(Form, A)> {
    let with = |form| each.iter().map(move |one| (form, *one));
    FORMS.into_iter().flat_map(with).collect()
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
    let checkpoints = support::checkpoints(&lines);
    assert!(checkpoints.len() > 1, "{context}: checkpoints");
    for (number, checkpoint) in checkpoints.iter().enumerate() {
        let context = format!("{context}, checkpoint {number}");
        assert_agree(checkpoint, strategy, &context);
        assert_book_is_true(checkpoint, &context);
        assert_books_agree(checkpoint, &context);
    }
    let job = finished.inspect();
    let expected =
        json!({"ended": "exit", "exit_status": 0, "anomalies": 0, "events_lost": 0, "strategy": strategy.name});
    assert_fields(&job, expected, context);
    assert_journal_agrees(&job, checkpoints[checkpoints.len() - 1], context);
    job
}

/// Checks the answers about free memory that follow a checkpoint. The free bytes are those that the layer would still
/// give plus those that are free inside the policy's segments.
fn assert_information_agrees(lines: &[Value], context: &str) {
    let answers = lines.windows(2).filter(|pair| pair[1].get("information").is_some());
    assert!(answers.clone().count() > 4, "{context}");
    for pair in answers {
        let rows = pair[0]["account"]["totals"].list().iter();
        let linear = rows.filter(|row| row["class"] == "linear");
        let inside = linear.map(|row| row["reserved"]["current"].number() - row["allocated"]["current"].number());
        let free = GIB - pair[0]["layer"]["used"][0].number() + inside.sum::<u64>();
        assert_fields(&pair[1]["information"], json!({"free": free, "total": GIB}), context);
    }
}

/// What a layer lacks is reported once.
#[test]
fn every_kind_of_memory_agrees_also_in_the_journal() {
    for (form, (habits, strategy)) in over_both(
        &[WELL_BEHAVED, MANY_HABITS]
            .map(|habits| THREE.map(|one| (habits, one)))
            .concat(),
    ) {
        let context = format!("{form:?} {habits:?} {}", strategy.name);
        let finished = quota(form, habits, &["book", "1", "250"]).strategy(strategy).run().ok();
        check(&finished, strategy, &context);
        assert_information_agrees(&finished.json(), &context);
        let said = finished.said().into_iter();
        let warnings: Vec<_> = said.filter(|(severity, _)| "WE".contains(*severity)).collect();
        let lacks = strategy.name == "auto_growth" && habits != WELL_BEHAVED;
        assert_eq!(warnings.len(), usize::from(lacks), "{context}: {warnings:?}");
        for (_, words) in warnings {
            assert!(words.starts_with("auto_growth grows in chunks"), "{context}: {words}");
        }
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
    let others = [ledger, management, information + inside];
    assert_eq!(others, [layer; 3], "{context}: {line}");
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
        // If the device has pages, the job runs without a policy too.
        assert_eq!(mixed(form, WELL_BEHAVED, PASSTHROUGH, seed).0, "served");
        let (said, _) = mixed(form, IN_ONE_PIECE, PASSTHROUGH, seed);
        let numbers: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
        assert!(said.starts_with("out of memory: ") && numbers.len() == 3, "{said}");
        assert!(numbers[2] > 4 * numbers[0], "scattered, not used up: {said}");
        for strategy in [NAIVE_BEST_FIT_OF_ALL, AUTO_GROWTH] {
            let (said, job) = mixed(form, IN_ONE_PIECE, strategy, seed);
            assert_eq!(said, "served", "{form:?} {} {seed}", strategy.name);
            assert_eq!(job["failed_calls"], 0, "{form:?} {} {seed}", strategy.name);
        }
    }
}

/// Clients that reach the driver in other ways: linked, through `cuGetProcAddress`, through the runtime. They use two
/// devices, destroy contexts that hold memory, and free blocks in other threads.
#[test]
fn every_way_to_the_driver_leads_through_the_layer() {
    let roads = [
        ("exercise", "linked", "libcuda.so.1", &["3", "240", "1"][..]),
        ("exercise", "proc", "-DPROC", &["4", "240", "1"]),
        ("contend", "contend", "libcuda.so.1", &["4", "1500", "7", "1"]),
        ("runtime", "runtime13", "libcudart.so.13", &["5", "300"]),
    ];
    let roads = roads.map(|(source, name, flag, arguments)| {
        (client(&format!("support/clients/{source}.c"), name, &[flag]), arguments)
    });
    for (form, strategy) in over_both(&STRATEGIES) {
        for (path, arguments) in &roads {
            let context = format!("{} over {form:?}, {strategy:?}", path.display());
            let job = Job::new(path).over(form, "3GiB", WELL_BEHAVED).strategy(strategy);
            check(&job.args(*arguments).run().ok(), strategy, &context);
        }
    }
}

/// The layer is preloaded before the library, so that the layer's `dlsym` comes first. The library sees the calls that
/// the layer forwards. A strategy passes every request through: the layer would not see what a policy reserves.
#[test]
fn the_layer_may_come_before_the_library() {
    for (name, flag) in [
        ("quota-linked", "libcuda.so.1"),
        ("quota-dlopen", "-DDLOPEN"),
        ("quota-proc", "-DPROC"),
    ] {
        let path = client("support/clients/quota.c", name, &[flag]);
        for strategy in THREE {
            let context = format!("{name} {}", strategy.name);
            let job = Job::new(&path).sim("2GiB", 1).under("1GiB", WELL_BEHAVED);
            let finished = job.strategy(strategy).args(["book", "1", "250"]).run().ok();
            let told = finished.stderr.contains("passes every request through");
            assert_eq!(told, strategy.name != "passthrough", "{context}: {}", finished.stderr);
            let lines = finished.json();
            let checkpoints = support::checkpoints(&lines);
            for checkpoint in &checkpoints {
                assert_agree(checkpoint, PASSTHROUGH, &context);
                assert_book_is_true(checkpoint, &context);
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
            // Over a limit a share is reserved only if it is set.
            let job = job.env("FLAGS_fraction_of_gpu_memory_to_use", "0.92");
            check(&job.strategy(strategy).args([scene]).run().ok(), strategy, &context);
        }
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

/// Some layers do not see what `cuMemCreate` makes, or show it and refuse none of it. No strategy may get more there than a
/// job without the library.
#[test]
fn no_strategy_gets_more_than_a_layer_that_does_not_count_mapped_memory_allows() {
    const UNCOUNTED: Habits = &[("LAYER_VMM", "uncounted")];
    const SHOWN: Habits = &[("LAYER_VMM", "uncounted"), ("LAYER_FIGURE", "driver")];
    let layers = [
        (Form::Preloaded, UNCOUNTED),
        (Form::Replacing, UNCOUNTED),
        (Form::Preloaded, SHOWN),
        (Form::Replacing, SHOWN),
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

/// The layer has a limit for all processes of a container. What one holds live is all that the other lacks.
#[test]
fn a_second_process_gets_what_it_has_without_the_library() {
    let second = |strategy: Option<Strategy>| {
        let host = Host::new("4GiB");
        let start = || {
            let job = host.job().over(Form::Preloaded, "1GiB", WELL_BEHAVED);
            let job = job.env("LAYER_SHARED", host.folder.path().join("book"));
            Member::start(match strategy {
                Some(strategy) => job.strategy(strategy),
                None => job.alone(),
            })
        };
        let [mut one, mut two] = [(); 2].map(|()| start());
        let first = (0..20).filter(|_| one.allocate(10 * MIB) == 0).count();
        let granted = (0..40).take_while(|_| two.allocate(100 * MIB) == 0).count();
        let _ = [one, two].map(Member::end);
        (first, granted)
    };
    assert_eq!(second(None), (20, 8));
    for strategy in THREE {
        assert_eq!(second(Some(strategy)), (20, 8), "{}", strategy.name);
    }
}

/// TGS refuses with 1. Frameworks free their caches if memory ran out, and for no other reason.
#[test]
fn a_refusal_is_out_of_memory_whatever_code_the_layer_has() {
    let refusals: [Habits; 2] = [&[("LAYER_REFUSAL", "1")], &[("LAYER_REFUSAL", "-1")]];
    for (habits, strategy) in refusals
        .into_iter()
        .flat_map(|one| THREE.map(|strategy| (one, strategy)))
    {
        let job = Job::new(member_client()).sim("4GiB", 1).strategy(strategy);
        let mut member = Member::start(job.over(Form::Preloaded, "1GiB", habits));
        let told = (member.allocate(2 * GIB), member.allocate(GIB / 2));
        assert_eq!(told, (2, 0), "{habits:?} {}", strategy.name);
        member.end();
    }
}

/// A layer may keep a function to itself that it exports, and wait for itself if another calls that.
#[test]
fn the_next_function_is_what_the_layers_dlsym_hands_out() {
    for strategy in THREE {
        let job = quota(Form::Preloaded, &[("LAYER_EXPORTS", "more")], &["frees"]);
        let finished = job.strategy(strategy).run().ok();
        check(&finished, strategy, strategy.name);
    }
}
