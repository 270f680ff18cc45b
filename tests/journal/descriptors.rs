//! A job that closes the journal's descriptors, or opens its file, keeps its journal.

use super::*;

pub fn closer(folder: &Path) {
    let journal = create(folder, 1 << 30);
    let foreign = std::fs::File::create(folder.join("foreign")).unwrap();
    // Closes or replaces every descriptor above the standard streams, as a daemon might do.
    for fd in 3..130 {
        let foreign = std::os::fd::AsRawFd::as_raw_fd(&foreign);
        if fd != foreign {
            // SAFETY: `dup2` touches no memory. That it replaces descriptors of the journal is what is tested.
            unsafe { libc::dup2(foreign, fd) };
        }
    }
    for number in 1..=50_000 {
        assert_eq!(journal.write(event(number)), Outcome::Written);
    }
    assert_eq!(
        foreign.metadata().unwrap().len(),
        0,
        "another file was grown instead of the journal"
    );
    say("done");
    wait_for_the_test();
}

#[test]
fn a_job_that_closes_every_descriptor_keeps_its_journal() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start("closer", folder.path());
    let mut told = said(&mut child);
    assert_eq!(told.next().unwrap(), "done");
    let journal = open(&journals(folder.path())[0]);
    assert_eq!(numbers(&journal).0, (1..=50_000).collect::<Vec<_>>());
    assert_eq!(journal.state(), State::Running, "locked again");
    finish(child);
}

pub fn own_reader(folder: &Path) {
    create(folder, 1 << 20).write(event(1));
    assert!(!std::fs::read(&journals(folder)[0]).unwrap().is_empty());
    say("done");
    wait_for_the_test();
}

/// A process that closes any descriptor of a file loses its record locks on the file.
#[test]
fn a_job_that_reads_its_own_journal_is_not_taken_for_dead() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start("own_reader", folder.path());
    let mut told = said(&mut child);
    assert_eq!(told.next().unwrap(), "done");
    let path = &journals(folder.path())[0];
    assert_eq!(open(path).state(), State::Running);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(open(path).state(), State::Killed);
}
