//! Habits that act beside the job's requests: a watcher of NVML, a scheduler, and managed memory in place of linear memory.

use serde_json::Value;
use support::layer::{FORMS, Habits, assert_book_is_true, assert_books_agree};
use support::{AUTO_GROWTH, Fields, MIB, NAIVE_BEST_FIT_OF_ALL, THREE};

use super::{GIB, check, linear, quota};

/// HAMi-core's and vgpu-manager's watchers ask NVML in a thread of their own, through the process's functions. nvshare's
/// scheduler lets calls sleep. Neither may change a book or stop the job.
#[test]
fn a_watcher_and_a_scheduler_change_no_book() {
    const WATCHED: Habits = &[("LAYER_WATCHER", "50us")];
    const SCHEDULED: Habits = &[("LAYER_SCHEDULER", "200us")];
    for (habits, figure) in [(WATCHED, "rounds"), (SCHEDULED, "waits")] {
        for form in FORMS {
            for strategy in THREE {
                let context = format!("{form:?} {habits:?} {}", strategy.name);
                let finished = quota(form, habits, &["book", "1", "150"]).strategy(strategy).run().ok();
                check(&finished, strategy, &context);
                let lines = finished.json();
                let last = lines
                    .iter()
                    .rev()
                    .find(|line| line.get("layer").is_some())
                    .expect("a layer");
                assert!(last["layer"][figure].as_u64() > Some(0), "{context}: {}", last["layer"]);
            }
        }
    }
}

/// The layer refuses to map a handle again, and sees that auto_growth tries.
#[test]
fn a_handle_that_cannot_be_mapped_again_costs_no_request() {
    for form in FORMS {
        let finished = quota(form, &[("LAYER_VMM", "once")], &["scattered"]);
        let finished = finished.strategy(AUTO_GROWTH).run().ok();
        check(&finished, AUTO_GROWTH, &format!("{form:?}"));
        let lines = finished.json();
        let tried = |line: &&Value| line["layer"]["second_mappings"].as_u64() > Some(0);
        assert!(lines.iter().any(|line| tried(&line)), "{form:?}: no second mapping");
        assert!(!finished.stdout.contains("out of memory"), "{form:?}");
    }
}

fn served(stdout: &str, kind: &str) -> u64 {
    let line = stdout.lines().find(|line| line.starts_with(kind)).expect(kind);
    line.split(' ').nth(1).and_then(|word| word.parse().ok()).expect(line)
}

/// nvshare answers cuMemAlloc with managed memory. The quota on it holds under each strategy; without a quota the job gets
/// more than the device has, as over the layer alone.
#[test]
fn managed_memory_in_place_of_linear_memory_keeps_the_layers_limit() {
    for form in FORMS {
        for (value, least, most) in [("managed", 20, 21), ("beyond", 64, 64)] {
            for strategy in [None, Some(NAIVE_BEST_FIT_OF_ALL), Some(AUTO_GROWTH)] {
                let job = quota(form, &[], &["limit"]).env("LAYER_LINEAR", value);
                let context = format!("{form:?} {value} {:?}", strategy.map(|strategy| strategy.name));
                let finished = match strategy {
                    Some(strategy) => job.strategy(strategy).run().ok(),
                    None => job.alone().run().ok(),
                };
                let got = served(&finished.stdout, "linear:");
                assert!((least..=most).contains(&got), "{context}: {got} blocks of 48 MiB");
                for line in finished.json().iter().filter(|line| line.get("layer").is_some()) {
                    let used = line["layer"]["used"][0].number();
                    assert!(value == "beyond" || used <= GIB, "{context}: {}", used / MIB);
                    if strategy.is_some() {
                        assert_eq!(used, linear(line, "reserved"), "{context}");
                    }
                }
            }
        }
    }
}

/// nvshare tells the same free memory whatever was taken (its `hook.c`). A job that believes it would run out of memory. Over
/// a layer without a quota the figure may not fall to nothing: what is beyond it is served.
#[test]
fn free_memory_is_what_the_layer_still_gives() {
    const BLOCK: u64 = 48 * MIB;
    for form in FORMS {
        for value in ["managed", "beyond"] {
            for strategy in [NAIVE_BEST_FIT_OF_ALL, AUTO_GROWTH] {
                let job = quota(form, &[], &["forecast"]).env("LAYER_LINEAR", value);
                let finished = job.strategy(strategy).run().ok();
                let lines = finished.json();
                let rounds: Vec<&Value> = lines.iter().filter_map(|line| line.get("forecast")).collect();
                assert_eq!(rounds.len(), 3);
                for (number, round) in rounds.into_iter().enumerate() {
                    let context = format!("{form:?} {value} {}, round {number}: {round}", strategy.name);
                    let [told, got, then_told] = ["told", "got", "then_told"].map(|name| round[name].number());
                    assert_eq!(round["refused"] == 1, value == "managed", "{context}");
                    match value {
                        "managed" => assert!(told < got + 2 * BLOCK && then_told < 2 * BLOCK, "{context}"),
                        _ => assert!(then_told >= GIB, "{context}"),
                    }
                    // Not less either, up to the rounding of a policy.
                    assert!(told + 2 * BLOCK > got.min(GIB / 2), "{context}");
                }
            }
        }
    }
}

/// The book of the other tests' layer is right while a watcher and a scheduler run over it alone.
#[test]
fn the_layer_alone_keeps_its_book_beside_its_threads() {
    const BOTH: Habits = &[("LAYER_WATCHER", "50us"), ("LAYER_SCHEDULER", "200us")];
    for form in FORMS {
        let lines = quota(form, BOTH, &["book", "2", "100"]).alone().run().ok().json();
        for line in lines.iter().filter(|line| line.get("own").is_some()) {
            assert_book_is_true(line, &format!("{form:?}"));
        }
        let with = quota(form, BOTH, &["book", "2", "100"])
            .strategy(AUTO_GROWTH)
            .run()
            .ok();
        for line in with.json().iter().filter(|line| line.get("own").is_some()) {
            assert_books_agree(line, &format!("{form:?}"));
        }
    }
}
