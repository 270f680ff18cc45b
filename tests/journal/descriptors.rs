//! A job that closes the journal's descriptors, and opens its file, keeps its journal.

use support::Job;
use support::member::Member;

use super::*;

/// The job. It runs in a folder of its own, which gets the journal.
#[test]
#[ignore = "a process that another test starts"]
fn closer() {
    let folder = std::env::current_dir().unwrap();
    let journal = create(&folder, 1 << 30);
    let foreign = std::fs::File::create("foreign").unwrap();
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
    let grown = foreign.metadata().unwrap().len();
    assert_eq!(grown, 0, "another file was grown instead of the journal");
    // A process that closes any descriptor of a file loses its record locks on the file.
    assert!(!std::fs::read(journal.path()).unwrap().is_empty());
    println!("\ndone");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_job_that_closes_every_descriptor_and_reads_its_journal_keeps_it() {
    let own = std::env::current_exe().unwrap();
    let arguments = ["--exact", "journal::descriptors::closer", "--ignored", "--nocapture"];
    let mut job = Member::start(Job::new(own).alone().args(arguments));
    job.wait();
    let path = journals_in(job.folder.path()).remove(0);
    let journal = open(&path);
    assert_eq!(numbers(&journal).0, (1..=50_000).collect::<Vec<_>>());
    assert_eq!(journal.state(), State::Running, "locked again");
    job.child.kill().and_then(|()| job.child.wait()).unwrap();
    assert_eq!(open(&path).state(), State::Killed);
}
