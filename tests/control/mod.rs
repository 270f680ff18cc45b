//! What a job asks and tells the library while it runs (`shim.h`), and what `vramshim ctl` does from outside.

mod ctl;
mod page;

use std::collections::BTreeSet;
use std::path::Path;

use journal::format::{Event, MarkKind, NoStack, Record};
use journal::reader::{Journal, Stacks};
use serde_json::Value;
use support::{AUTO_GROWTH, Fields, Job, STRATEGIES, THREE, client, inspect};

fn job(scene: &str) -> Job {
    Job::new(client("control/control.c", "control", &["libcuda.so.1"])).args([scene])
}

/// The functions in the stacks of a journal's records. A native frame that has no name yet counts, too.
pub fn functions(path: &Path) -> Vec<String> {
    let journal = Journal::open(path).unwrap();
    let Some(stacks) = Stacks::beside(path).unwrap() else {
        return Vec::new();
    };
    let numbers = journal
        .records()
        .filter_map(|record| NoStack::stack(record.unwrap().stack).ok());
    let found = numbers.filter_map(|number| stacks.get(number));
    found
        .flat_map(|stack| stack.frames.iter().map(|frame| frame.function.to_string()))
        .collect()
}

#[test]
fn figures_settings_and_their_errors_are_those_of_the_header() {
    for strategy in STRATEGIES {
        let finished = job("api").strategy(strategy).run().ok();
        let folder = finished.folder.path();
        // The frames of the call after the change, and not before.
        for (copy, has_none) in [("now.vraj", true), ("later.vraj", false)] {
            let found = functions(&folder.join(copy));
            assert_eq!(found.is_empty(), has_none, "{strategy:?} {copy}: {found:?}");
        }
        let [copy] = &inspect(&folder.join("now.vraj"))[..] else {
            panic!("one job");
        };
        assert_eq!(linear(copy), 1000, "{strategy:?}: {copy:#}");
        let mut files = std::fs::read_dir(folder).unwrap().flatten();
        let part = files.find(|one| one.file_name().to_string_lossy().ends_with(".part"));
        assert!(part.is_none(), "{part:?}");
    }
}

#[test]
fn totals_can_be_read_in_a_signal_handler() {
    for strategy in THREE {
        job("signals").strategy(strategy).run().ok();
    }
}

/// The events of a copy, in the order of their times: no free is there without its allocation, each of four threads holds
/// one block at most, and the copy ends with the moment of the call.
fn assert_consistent(path: &Path) {
    let journal = Journal::open(path).unwrap();
    assert_eq!(journal.header().damaged, Vec::<String>::new());
    let stacks = Stacks::beside(path).unwrap().expect("the texts of marks");
    let (mut live, mut marks, mut frees) = (BTreeSet::new(), 0, 0);
    for record in journal.records() {
        match record.unwrap().event {
            Event::Alloc(allocation) => {
                assert!(live.insert(allocation.address), "{:#x} is live", allocation.address);
                assert!(live.len() <= 4);
            }
            Event::Free { allocation, .. } => {
                frees += 1;
                let address = allocation.address;
                assert!(live.remove(&address), "{path:?}: {address:#x} was never allocated");
            }
            Event::Mark { text, kind } => {
                assert_eq!((stacks.text(text), kind), (Some("vramshim_dump"), MarkKind::Instant));
                marks += 1;
            }
            _ => {}
        }
    }
    let number: u64 = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    assert_eq!(marks, number + 1, "{}: a mark for each dump so far", path.display());
    assert!(frees > 0);
}

#[test]
fn a_dump_has_all_events_up_to_the_call_and_none_after_it() {
    for strategy in THREE {
        let job = job("dumps").strategy(strategy);
        let copies = job.folder().join("copies");
        std::fs::create_dir(&copies).unwrap();
        let finished = job.args([&copies]).run().ok();
        let copies = finished.folder.path().join("copies");
        for number in 0..5 {
            assert_consistent(&copies.join(format!("{number}.vraj")));
        }
    }
}

#[test]
fn a_dump_does_not_replace_the_journal_of_the_job() {
    for strategy in THREE {
        let finished = job("onto_itself").strategy(strategy).run().ok();
        assert_has_all(&finished.inspect(), 7000);
        let [journal] = &support::journals_in(&finished.folder.path().join("journals"))[..] else {
            panic!("one journal");
        };
        assert_ne!(functions(journal), Vec::<String>::new(), "the stacks are there");
        assert_eq!(marks(journal).len(), 1, "a dump that is refused makes no mark");
    }
}

/// The numbers of the texts of a journal's marks.
pub fn marks(path: &Path) -> Vec<u64> {
    let journal = Journal::open(path).unwrap();
    let text = |record: Result<Record, _>| match record.unwrap().event {
        Event::Mark { text, .. } => Some(text),
        _ => None,
    };
    journal.records().filter_map(text).collect()
}

pub fn assert_has_all(journal: &Value, requested: u64) {
    assert_eq!(
        (&journal["exit_status"], linear(journal)),
        (&0.into(), requested),
        "{journal:#}"
    );
}

/// The bytes of linear memory that a job requested and still has.
fn linear(job: &Value) -> u64 {
    let mut classes = job["devices"][0]["classes"].list().iter();
    let linear = classes.find(|row| row["class"] == "linear").expect("linear memory");
    linear["requested"]["current"].number()
}

fn with_package(argument: &str) -> Job {
    let script = support::root().join("tests/control/package.py");
    let argument = Path::new(argument);
    Job::new("python3")
        .args([script.as_path(), argument])
        .env("PYTHONPATH", support::root().join("src/python"))
}

#[test]
fn python_asks_and_tells_by_the_package() {
    for strategy in STRATEGIES {
        let job = with_package("now.vraj").strategy(strategy);
        let finished = job.env("VRAMSHIM_MEMORY_LIMIT", "1GiB").run().ok();
        assert!(finished.stdout.starts_with("passed"), "{}", finished.stdout);
        let path = finished.folder.path().join("now.vraj");
        assert!(functions(&path).contains(&"train".to_owned()), "{strategy:?}");
        let stacks = Stacks::beside(&path).unwrap().expect("the texts of marks");
        let texts = marks(&path).into_iter().filter_map(|text| stacks.text(text));
        assert_eq!(texts.collect::<Vec<_>>(), ["the middle", "vramshim_dump"]);
    }
}

#[test]
fn the_package_says_that_the_library_is_missing() {
    let finished = with_package("without").alone().run().ok();
    assert!(finished.stdout.starts_with("passed"), "{}", finished.stdout);
}

/// A pool that keeps its memory gives it back once idle release is turned on.
#[test]
fn idle_release_can_be_turned_on() {
    let child = ctl::Served::start(AUTO_GROWTH, &[]);
    let reserved = |child: &ctl::Served| child.figure("device.0.reserved");
    assert!(reserved(&child) >= 64 << 20);
    child.well(&["set", "idle_release", "20ms"]);
    child.until("the memory goes back", |child| reserved(child) < 64 << 20);
    child.end();
}
