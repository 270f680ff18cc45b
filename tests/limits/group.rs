//! Limits that several processes share, and accounts that limit nothing.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use journal::format::Event;
use journal::reader::Journal;
use support::member::{Host, Member};
use support::{GIB, Runs, journals_in, program};

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
    let journal = Journal::open(&journals_in(folder.path())[0]).unwrap();
    let mut refused = 0;
    for record in journal.records() {
        if let Event::Limit(state) = record.unwrap().event {
            refused += 1;
            assert!(state.used + ASKED > LIMIT, "{state:?}");
        }
    }
    assert!(refused >= REFUSED, "{refused} of {REFUSED} requests were refused");
}

/// Each member keeps the limit that it brings, and is told if another member brought another one.
#[test]
fn a_member_that_brings_another_limit_is_told() {
    let host = Host::new("24GiB");
    let mut first = Member::start(host.member("16GiB"));
    assert_eq!(first.allocate(GIB), 0);
    for (limit, is_said) in [("16GiB", false), ("8GiB", true)] {
        let mut other = Member::start(host.member(limit));
        assert_eq!(other.allocate(GIB), 0);
        let said = other.end();
        let words = "is 8.00 GiB, and another member of its group brought 16.0 GiB";
        assert_eq!(said.contains(words), is_said, "{said}");
    }
}

#[test]
fn accounts_without_a_limit_are_remarked_on() {
    for (arguments, is_said) in [(&[][..], true), (&["--limit", "1GiB"], false), (&["--quiet"], false)] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(program());
        command.args(["run", "--sim", "1GiB", "--accounts", "accounts"]);
        command.args(arguments).args(["--", "true"]).current_dir(folder.path());
        let said = command.env_remove("VRAMSHIM_MEMORY_LIMIT").printed().ok().said;
        let told = said.contains("--accounts without a limit");
        assert_eq!(told, is_said, "{arguments:?}: {said}");
    }
}
