//! The names of folders in the library's messages.

use support::assert_says;

use super::job;

#[test]
fn a_folder_s_name_is_shown_so_that_a_shell_takes_it_and_no_terminal_obeys_it() {
    for (name, told) in [("sp ace", "sp ace'"), ("e\x1b[31mred\n", "e\\x1b[31mred\\n'")] {
        let folder = tempfile::tempdir().unwrap();
        let finished = job("larger").env("VRAMSHIM_DIR", folder.path().join(name)).run();
        let stderr = &finished.stderr;
        let line = stderr
            .lines()
            .find(|line| line.contains("see: vramshim why "))
            .expect(stderr);
        assert!(line.ends_with(told), "{stderr}");
        assert!(!stderr.contains('\x1b'), "{stderr}");
    }
}

#[test]
fn a_journal_that_was_renamed_is_told_when_memory_runs_out() {
    let finished = job("renamed").run();
    let stderr = &finished.stderr;
    assert_says(stderr, "the journal was renamed or removed while the job ran: /");
    assert!(!stderr.contains("see: vramshim why"), "{stderr}");
}
