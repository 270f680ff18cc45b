//! `vramshim doctor --book`: what it says of a layer's book, road by road, and its exit codes.

use serde_json::Value;
use support::layer::{FORMS, Form, Habits};
use support::{AUTO_GROWTH, Job, MIB, NAIVE_BEST_FIT_OF_ALL, PASSTHROUGH, Strategy, THREE, program};

use super::{bad_driver, report::Report};

fn book() -> Job {
    Job::new(program())
        .alone()
        .args(["doctor", "--book", "--json"])
        .sim("4GiB", 1)
}

/// The page, and the exit code.
fn page(job: Job) -> (Value, Option<i32>) {
    let finished = job.run();
    let page: Value =
        serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {}", finished.stderr));
    assert_eq!(page["agrees"] == true, finished.status.code() == Some(0), "{page:#}");
    (page, finished.status.code())
}

/// The roads of device 0 on which the books do not agree, each with its verdict.
fn apart(page: &Value) -> Vec<String> {
    let roads = page["devices"][0]["roads"].as_array().expect("roads");
    assert_eq!(roads.len(), 7, "{page:#}");
    let word = |road: &Value| {
        let verdict = &road["verdict"];
        let (taken, given_back) = (verdict["taken"].as_str(), verdict["given_back"].as_str());
        let outcome = match (verdict["outcome"].as_str(), taken, given_back) {
            (_, Some("counted"), Some("all")) | (Some("no_such_road"), ..) => return None,
            (_, Some(taken), Some("all")) => taken.to_owned(),
            (_, Some("counted"), Some(given_back)) => format!("{given_back} given back"),
            other => panic!("{other:?}"),
        };
        Some(format!("{}: {outcome}", road["function"].as_str().expect("a name")))
    };
    roads.iter().filter_map(word).collect()
}

#[test]
fn the_books_agree_without_a_layer_and_over_one_that_counts_all() {
    for strategy in THREE {
        let (alone, code) = page(book().strategy(strategy));
        assert_eq!((code, &alone["layer"]), (Some(0), &Value::Null), "{alone:#}");
        for form in FORMS {
            let (over, code) = page(book().strategy(strategy).over(form, "2GiB", &[]));
            assert_eq!(code, Some(0), "{form:?} {}: {over:#}", strategy.name);
            assert!(
                over["layer"].as_str().is_some_and(|path| path.contains(".so")),
                "{form:?}: {over:#}"
            );
            assert_eq!(over["devices"][0]["total"], 2048 * MIB);
        }
    }
}

#[test]
fn each_drift_is_named_by_its_road() {
    let table: [(Habits, &[&str]); 7] = [
        (&[("LAYER_VMM", "uncounted")], &["cuMemCreate: not_counted"]),
        (
            &[("LAYER_VMM", "uncounted"), ("LAYER_FIGURE", "driver")],
            &["cuMemCreate: not_refused"],
        ),
        (&[("LAYER_ARRAYS", "uncounted")], &["cuArrayCreate: not_counted"]),
        (&[("LAYER_FREES", "listed")], &["cuMemAllocFromPoolAsync: not_counted"]),
        (&[("LAYER_BOOK", "twice")], &["cuMemAllocPitch: counted_twice"]),
        (
            &[("LAYER_BOOK", "keeps")],
            &[
                "cuMemAllocAsync: not_all given back",
                "cuMemAllocFromPoolAsync: not_all given back",
            ],
        ),
        // These do not have the road at all.
        (&[("LAYER_VMM", "0"), ("LAYER_POOLS", "0")], &[]),
    ];
    for ((habits, expected), strategy) in table.into_iter().zip(THREE.into_iter().cycle()) {
        // What a policy takes and keeps is on both books.
        for form in FORMS {
            let (told, code) = page(book().strategy(strategy).over(form, "1GiB", habits));
            assert_eq!(apart(&told), expected, "{form:?} {habits:?}: {told:#}");
            assert_eq!(
                code,
                Some(if expected.is_empty() { 0 } else { 3 }),
                "{form:?} {habits:?}"
            );
        }
    }
}

/// nvshare tells the same free memory whatever was taken. So its book is not known, and no road is called uncounted.
#[test]
fn a_book_that_the_layer_does_not_show_is_told() {
    for form in FORMS {
        let layered = |job: Job| job.over(form, "1GiB", &[("LAYER_LINEAR", "managed")]);
        let (told, code) = page(layered(book()));
        let roads = told["devices"][0]["roads"].as_array().expect("roads");
        assert!(
            roads.iter().all(|road| road["verdict"]["outcome"] == "not_shown"),
            "{form:?}: {told:#}"
        );
        assert_eq!(code, Some(3), "{form:?}");
    }
}

#[test]
fn two_totals_of_one_device_are_told() {
    let (told, code) = page(book().over(Form::Preloaded, "1GiB", &[("LAYER_TOTAL", "device")]));
    let device = &told["devices"][0];
    assert_eq!(
        (code, &device["total"], &device["device_total"]),
        (Some(0), &(1024 * MIB).into(), &(4096 * MIB).into())
    );
}

/// A limit of the library's own stands not between the layer's answers and the comparison.
#[test]
fn a_limit_of_the_library_changes_nothing() {
    let job = book()
        .over(Form::Preloaded, "1GiB", &[])
        .env("VRAMSHIM_MEMORY_LIMIT", "64MiB");
    assert_eq!(page(job).1, Some(0));
}

#[test]
fn a_driver_that_hangs_ends_it() {
    let job = book().args(["--timeout", "2s"]);
    let finished = job.env("LD_LIBRARY_PATH", bad_driver("-DHANGS")).run();
    assert_eq!(finished.status.code(), Some(4), "{}", finished.stderr);
}

/// `scripts/layers` compares the forecast with what jobs do.
#[test]
fn the_forecast_says_what_a_strategy_will_do() {
    let uncounted: Habits = &[("LAYER_VMM", "uncounted")];
    let over = |form: Form, habits: Habits, strategy: Strategy| {
        let job = Job::new(program()).alone().args(["doctor", "--json"]).sim("4GiB", 1);
        Report::run(job.strategy(strategy).over(form, "1GiB", habits))
    };
    for (form, habits, instead) in [
        (Form::Preloaded, &[][..], Value::Null),
        (Form::Preloaded, uncounted, "chunks".into()),
        (Form::Replacing, uncounted, "chunks".into()),
        (Form::PreloadedWithoutVmm, &[], "chunks".into()),
        (Form::Preloaded, &[("LAYER_VMM", "0")], "chunks".into()),
        (Form::Preloaded, &[("LAYER_VMM", "once")], "map_once".into()),
    ] {
        let told = over(form, habits, AUTO_GROWTH);
        assert_eq!(told.page["forecast"][0]["instead"], instead, "{form:?} {habits:?}");
    }
    over(Form::Preloaded, uncounted, AUTO_GROWTH).has("strategy", "warning", "its limit would not hold");
    over(Form::Preloaded, uncounted, PASSTHROUGH).nothing_worse_than_notes();
    let naive = over(Form::Preloaded, uncounted, NAIVE_BEST_FIT_OF_ALL);
    assert_eq!(naive.page["forecast"][0]["instead"], Value::Null);
}
