//! What the tools say of an imported journal: no process, no end, and what most likely made the requests.

use std::path::PathBuf;
use std::process::Command;

use support::training::{self, Plan};
use tempfile::TempDir;

use super::{import_as, run};
use support::{Fields, Printed, Runs, assert_says};

fn log() -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (log, journal) = (folder.path().join("log.csv"), folder.path().join("log.vraj"));
    let rows = "Thread,Time,Action,Pointer,Size,Stream\n\
                1,12:00:00.001000,allocate,0x700000000000,31457280,0\n\
                1,12:00:00.002000,allocate,0x700004000000,31457280,0\n\
                1,12:00:00.003000,allocate failure,0x0,4294967296,0\n";
    std::fs::write(&log, rows).unwrap();
    import_as(&log, &journal).ok();
    (folder, log, journal)
}

#[test]
fn an_imported_journal_claims_neither_a_process_nor_an_end() {
    let (_folder, _, journal) = log();
    let journal = journal.to_str().unwrap();
    let Printed { text: why, code, .. } = run("why", &[journal]);
    assert_eq!(code, Some(10), "{why}");
    assert_says(&why, "Imported trace, log, started ");
    let page = run("inspect", &[journal]).text;
    let view = run("inspect", &[journal, "--top", "size"]).text;
    for page in [&why, &page, &view] {
        for wrong in ["exit 0", "rocess 0", "--pid=host"] {
            assert!(!page.contains(wrong), "{wrong}\n{page}");
        }
    }
}

/// The same answers and stacks as by `import`, and no file is left. What lies beside the trace is another job's.
#[test]
fn a_trace_is_read_as_the_journal_that_import_makes_of_it() {
    let (folder, log, _) = log();
    let [job, pickle] = ["job.vraj", "trace.pickle"].map(|name| folder.path().join(name));
    training::write(&job, &Plan::default()).unwrap();
    let [from, to] = [&job, &pickle].map(|path| path.to_str().unwrap());
    run("export", &[from, "--to", "torch-snapshot", "-o", to]).ok();
    let (apart, temporary) = (folder.path().join("apart"), folder.path().join("temporary"));
    let _ = [&apart, &temporary].map(|folder| std::fs::create_dir(folder).unwrap());
    for trace in [log, pickle] {
        let journal = apart.join(trace.with_extension("vraj").file_name().unwrap());
        import_as(&trace, &journal).ok();
        std::fs::write(trace.with_extension("tensors"), "not this trace's").unwrap();
        for arguments in [
            &["why", "--json"][..],
            &["inspect", "--json", "--top", "stack"],
            &["report", "--json"],
        ] {
            let [read, imported] = [&trace, &journal].map(|path| {
                let mut command = Command::new(support::program());
                command.env("TMPDIR", &temporary).args(arguments).arg(path);
                let Printed { text, code, .. } = command.printed();
                (text.replace(path.to_str().unwrap(), "PATH"), code)
            });
            assert_eq!(read, imported, "{arguments:?}");
        }
    }
    assert_eq!(std::fs::read_dir(temporary).unwrap().count(), 0);
}

#[test]
fn a_log_ends_before_its_file_was_changed() {
    const DAY_S: u64 = 86_400;
    let folder = tempfile::tempdir().unwrap();
    let (log, journal) = (folder.path().join("log.csv"), folder.path().join("log.vraj"));
    let midnight = 20_000 * DAY_S;
    // When it begins, when it ends, when the file was changed, and the day of its first row.
    for (from, to, changed, day) in [
        ("12:00:00.5", "12:00:01.5", midnight + DAY_S / 2 + 2, 20_000),
        ("23:55:00.5", "23:59:59.5", midnight, 19_999),
        ("23:55:00.5", "00:05:00.5", midnight + 301, 19_999),
    ] {
        let rows = format!(
            "Thread,Time,Action,Pointer,Size,Stream\n1,{from},allocate,0x1000,512,0\n1,{to},free,0x1000,512,0\n"
        );
        std::fs::write(&log, rows).unwrap();
        let file = std::fs::File::options().write(true).open(&log).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(changed))
            .unwrap();
        let arguments = [log.to_str().unwrap(), "--force", "-o", journal.to_str().unwrap()];
        run("import", &arguments).ok();
        let page = run("inspect", &[journal.to_str().unwrap(), "--json"]).json();
        let said = &page["jobs"][0]["why"]["text"];
        assert_says(&said.text(), "The size of the device is not known");
        let start_s = page["jobs"][0]["start_time_ns"].number() / 1_000_000_000;
        assert_eq!(start_s / DAY_S, day, "{from} to {to}");
    }
}

#[test]
fn an_exported_log_counts_its_own_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, out) = (folder.path().join("job.vraj"), folder.path().join("log.csv"));
    // The job has marks and segments, which a log has not.
    training::write(&journal, &Plan::default()).unwrap();
    let arguments = [&journal, &out].map(|path| path.to_str().unwrap());
    let output = run("export", &[arguments[0], "--to", "csv", "-o", arguments[1], "--json"]);
    let page = output.json();
    let rows = std::fs::read_to_string(&out).unwrap().lines().count() as u64 - 1;
    assert_eq!(page["events"], rows);
}

/// A log that was cut inside its last number still has a row that can be read.
#[test]
fn a_log_that_was_cut_inside_a_number_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (log, journal) = (folder.path().join("log.csv"), folder.path().join("log.vraj"));
    let whole = "Thread,Time,Action,Pointer,Size,Stream\n\
                 1,12:00:00.001000,allocate,0x6e1edec00000,512,0\n\
                 1,12:00:00.002000,allocate,0x6e1edec01000,512,0\n\
                 1,12:00:00.003000,free,0x6e1edec00000,512,0\n";
    for (end, cut) in [
        ("1,12:00:00.004000,free,0x6e1edec01000,5", "line 5: 5 of 6 columns"),
        ("1,12:00:00.004000,allocate failure,0x0,5", "line 5: 5 of 6 columns"),
        ("1,12:00:00.004000,free,0x6e1edec01000,512,0", ""),
        // Such a row in the middle is what the program wrote.
        ("1,12:00:00.004000,free,0x6e1edec01000,5\n", ""),
    ] {
        std::fs::write(&log, format!("{whole}{end}")).unwrap();
        let said = import_as(&log, &journal).ok().said;
        let told = format!("{cut}: the row is cut short; what comes before is imported");
        let (events, is_told) = match cut {
            "" => ("4 events", !said.contains("cut short")),
            _ => ("3 events", said.contains(&told)),
        };
        assert!(is_told, "{end}: {said}");
        assert_says(&said, events);
    }
}
