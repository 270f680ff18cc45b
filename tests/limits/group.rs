//! Limits that several processes share, and accounts that limit nothing.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use journal::format::Event;
use journal::reader::Journal;
use support::member::{Host, Member};
use support::{GIB, Runs, program};

/// Another member gives back what it holds at any moment, also between a refusal and its explanation.
#[test]
fn a_refusal_is_recorded_with_the_figures_that_it_was_made_with() {
    const LIMIT: u64 = 16 * GIB;
    const ASKED: u64 = 8 * GIB;
    const REFUSED: usize = 50;
    let host = Host::new("24GiB");
    let folder = tempfile::tempdir().unwrap();
    let mut holder = Member::start(host.member("16GiB"));
    let mut asker = Member::start(host.member("16GiB").env("VRAMSHIM_DIR", folder.path()));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                let answer = holder.ask(&format!("a {}", 12 * GIB));
                if let Some(block) = answer.strip_prefix("0 ") {
                    holder.ask(&format!("f {block}"));
                }
            }
        });
        // How often the two meet is up to the system, so what counts is how many requests were refused.
        let mut refused = 0;
        for _ in 0..100_000 {
            let answer = asker.ask(&format!("a {ASKED}"));
            match answer.strip_prefix("0 ") {
                Some(block) => drop(asker.ask(&format!("f {block}"))),
                None => refused += 1,
            }
            if refused == REFUSED {
                break;
            }
        }
        over.store(true, Relaxed);
    });
    asker.end();
    let mut files = std::fs::read_dir(folder.path())
        .unwrap()
        .flatten()
        .map(|file| file.path());
    let path = files.find(|path| path.extension().is_some_and(|end| end == "vraj"));
    let journal = Journal::open(&path.expect("a journal")).unwrap();
    let used: Vec<u64> = journal
        .records()
        .filter_map(|record| match record.unwrap().event {
            Event::Limit(state) => Some(state.used),
            _ => None,
        })
        .collect();
    assert!(
        used.len() >= REFUSED,
        "{} of {REFUSED} requests were refused",
        used.len()
    );
    let wrong: Vec<&u64> = used.iter().filter(|&&used| used + ASKED <= LIMIT).collect();
    assert!(wrong.is_empty(), "{} of {}: {wrong:?}", wrong.len(), used.len());
}

#[test]
fn accounts_without_a_limit_are_remarked_on() {
    for (arguments, is_said) in [(&[][..], true), (&["--limit", "1GiB"], false), (&["--quiet"], false)] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(program());
        command
            .args(["run", "--sim", "1GiB", "--accounts", "accounts"])
            .args(arguments);
        command
            .args(["--", "true"])
            .current_dir(folder.path())
            .env_remove("VRAMSHIM_MEMORY_LIMIT");
        let said = command.printed().ok().said;
        assert_eq!(
            said.contains("--accounts without a limit"),
            is_said,
            "{arguments:?}: {said}"
        );
    }
}
