//! What a job or another user leaves beside a journal, and who may read what is made from a journal.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use support::left_out;

use super::{journal, look, run};

#[test]
fn what_is_made_from_a_journal_grants_no_more_than_the_journal() {
    for most in [0o600, 0o640, 0o644] {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = journal(folder.path(), 200);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(most)).unwrap();
        let out = folder.path().join("out");
        let place = out.to_str().unwrap();
        let export = ["--to", "csv", "-o", place];
        for (command, arguments) in [("report", &export[2..]), ("export", &export)] {
            run(command, &path, arguments, command);
            let mode = out.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode & !most, 0, "{command} of {most:o}: {mode:o}");
            std::fs::remove_file(&out).unwrap();
        }
    }
}

#[test]
fn a_file_beside_a_journal_is_its_users_and_no_link() {
    const STACKS: &str = "vramshim-stacks\t1\t4000\nP\t1\tforged.py\t1\tforged\nT\t1\tpython\t1\n";
    const TENSORS: &str = "vramshim-pytorch\t1\t4000\t2.12.0\n";
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = journal(folder.path(), 500);
    for (ending, text) in [("stacks", STACKS), ("tensors", TENSORS)] {
        let beside = path.with_extension(ending);
        let elsewhere = folder.path().join("elsewhere");
        let _ = std::fs::remove_file(&beside);
        std::fs::write(&elsewhere, text).unwrap();
        symlink(&elsewhere, &beside).unwrap();
        let is_told = |words: &str| {
            let seen = look(&path, &["--leaks"], ending);
            let all = seen.text + &seen.said;
            assert!(all.contains(words) && all.contains(ending), "{ending}: {words}: {all}");
            assert!(!all.contains("forged"), "{all}");
        };
        is_told("not a plain file");
        std::fs::remove_file(&beside).unwrap();
        std::fs::write(&beside, text).unwrap();
        if chown(&beside, Some(65533), None).is_err() {
            return left_out("root's right to give files away");
        }
        is_told("another user");
        // Together with its journal it is that user's.
        chown(&path, Some(65533), None).unwrap();
        let seen = look(&path, &["--leaks"], ending);
        assert!(!(seen.text + &seen.said).contains("another user"), "{ending}");
        chown(&path, Some(0), None).unwrap();
        std::fs::remove_file(&beside).unwrap();
    }
}
