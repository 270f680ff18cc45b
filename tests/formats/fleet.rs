//! `vramshim export --to parquet --partition` of a thousand journals, and the questions of `docs/fleet.sql`.

use std::path::{Path, PathBuf};

use journal::format::Device;
use journal::writer::About;
use serde_json::json;
use support::made::{self, Made};
use support::{Fields, GIB, MIB, assert_fields, assert_says};

use crate::formats::run;

const JOBS: u32 = 100;
const RANKS: u32 = 10;
/// The job with one rank that has twice the memory of the others.
const ODD: (u32, u32) = (37, 3);
/// Jobs that fail within two minutes on machines of their own, under one version of the driver.
const TOGETHER: [u32; 3] = [50, 51, 52];
/// A job that fails alone, hours before.
const ALONE: u32 = 90;

fn write(folder: &Path, job: u32, rank: u32) {
    let is_together = TOGETHER.contains(&job);
    let (began_s, driver) = match is_together {
        true => (200_000 + u64::from(job), "570.1"),
        false => (u64::from(job) * 600, "560.2"),
    };
    let device = Device {
        total_memory: 80 * GIB,
        uuid: [job as u8 + 1; 16],
        ..made::device(0)
    };
    // Process ids that no system gives.
    let pid = 1 << 30 | job << 8 | rank;
    let about = About {
        strategy: "auto_growth".into(),
        host: format!("node{job}"),
        job: format!("job {job}"),
        command_line: b"python\0train.py\0--token=hidden".to_vec(),
        environment: format!("RANK={rank}\0").into_bytes(),
        software: format!("driver={driver}\0framework=PyTorch 2.12\0").into_bytes(),
        ..made::about(pid, began_s)
    };
    let mut journal = Made::about(folder, &about, &[device]).unwrap();
    let bytes = if (job, rank) == ODD { 8 * GIB } else { 4 * GIB };
    // Each job wastes a MiB more in each process than the job before.
    journal.alloc_within(0, bytes, bytes + u64::from(job) * MIB).unwrap();
    let fails = (is_together || job == ALONE) && rank == 0;
    if fails {
        journal.fail(100 * GIB).unwrap();
    }
    journal.end(Some(i32::from(fails))).unwrap();
}

fn journals(folder: &Path, jobs: std::ops::Range<u32>) -> PathBuf {
    let journals = folder.join("journals");
    std::fs::create_dir(&journals).unwrap();
    for job in jobs {
        for rank in 0..RANKS {
            write(&journals, job, rank);
        }
    }
    journals
}

fn fleet(folder: &Path) -> PathBuf {
    let journals = journals(folder, 0..JOBS);
    std::fs::write(journals.join("damaged.vraj"), b"no journal").unwrap();
    let out = folder.join("fleet");
    let [from, to] = [&journals, &out].map(|path| path.to_str().unwrap());
    let arguments = [from, "--to", "parquet", "--partition", "-o", to, "--json"];
    let written = run("export", &arguments);
    assert_eq!(written.code, Some(1), "{}", written.said);
    assert_says(&written.said, "damaged.vraj");
    let told = written.json();
    assert_fields(&told, json!({"processes": 1000, "failures": 4, "files": 1004}), "");
    assert_eq!(told["left_out"].list().len(), 1, "{told}");
    // A second time would mix two states of the same journals.
    assert_eq!(run("export", &arguments).code, Some(2));
    out
}

#[test]
fn a_fleet_lies_in_folders_of_jobs_and_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let out = fleet(folder.path());
    let of_odd = out.join("devices/job=job%2037/rank=3");
    let file = std::fs::read_dir(&of_odd).unwrap().next().unwrap().unwrap().path();
    let bytes = std::fs::read(file).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    let has = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
    assert!(has(b"train.py") && !has(b"hidden"), "a secret of a command line");
    assert!(!out.join("failures/job=job%2037").exists());
    assert!(out.join("failures/job=job%2090/rank=0").is_dir());
}

#[cfg(feature = "frameworks")]
mod answers {
    use std::process::Command;

    use serde_json::Value;
    use support::{Runs, root};

    use super::*;
    use crate::formats::readers::python_of;

    const TOO_LARGE: &str = "larger_than_device";

    fn ask(engine: &str, fleet: &Path) -> Value {
        let [script, questions] = ["tests/formats/fleet.py", "docs/fleet.sql"].map(|path| root().join(path));
        let mut command = Command::new(python_of("formats"));
        command.arg(script).arg(engine).arg(fleet).arg(questions);
        command.printed().ok().json()
    }

    fn check(engine: &str, answers: &Value) {
        let of_verdict = json!({"verdict": TOO_LARGE, "failures": 4, "fatal_failures": 4, "jobs": 4});
        let together =
            json!({"machines": 3, "jobs": 3, "same_driver": "570.1", "same_job": null, "same_verdict": TOO_LARGE});
        for (question, count, first) in [
            ("odd_rank_out", 1, json!({"job": "job 37", "rank": 3, "ratio": 2.0})),
            (
                "waste_by_job",
                JOBS as usize,
                json!({"job": "job 99", "wasted_bytes": 99 * 10 * MIB}),
            ),
            ("failures_by_verdict", 1, of_verdict),
            // All jobs but the four that failed.
            ("fits_a_smaller_card", JOBS as usize - 4, json!({})),
            ("failures_together", 1, together),
        ] {
            let rows = answers[question].list();
            assert_eq!(rows.len(), count, "{engine}: {rows:?}");
            for (name, wanted) in first.as_object().unwrap() {
                let is_so =
                    rows[0][name] == *wanted || rows[0][name].as_f64().is_some_and(|is| wanted.as_f64() == Some(is));
                assert!(is_so, "{engine}: {question}: {}", rows[0]);
            }
        }
        // The odd one needs 9.8 GiB.
        let card = |job: &str| {
            let mut fits = answers["fits_a_smaller_card"].list().iter();
            fits.find(|row| row["job"] == job).map(|row| row["card_gib"].clone())
        };
        let cards = (card("job 0"), card("job 37"));
        assert_eq!(cards, (Some(json!(8)), Some(json!(12))), "{engine}");
    }

    #[test]
    fn without_failures_the_questions_have_answers_too() {
        let folder = tempfile::tempdir().unwrap();
        let (journals, out) = (journals(folder.path(), 37..38), folder.path().join("out"));
        let arguments = [journals.to_str().unwrap(), "--to", "parquet", "--partition", "-o"];
        run("export", &[&arguments[..], &[out.to_str().unwrap()]].concat()).ok();
        let answers = ask("duckdb", &out);
        let rows = |name: &str| answers[name].list().len();
        assert_eq!((rows("odd_rank_out"), rows("fits_a_smaller_card")), (1, 1));
        assert_eq!((rows("failures_by_verdict"), rows("failures_together")), (0, 0));
    }

    #[test]
    fn duckdb_and_spark_answer_the_questions_alike() {
        let folder = tempfile::tempdir().unwrap();
        let out = fleet(folder.path());
        for engine in ["duckdb", "spark"] {
            check(engine, &ask(engine, &out));
        }
    }
}

#[test]
fn a_process_has_one_file_and_processes_of_one_name_keep_theirs() {
    let folder = tempfile::tempdir().unwrap();
    let begin = |name: &str, job: &str| {
        let about = About {
            host: "pod".into(),
            job: job.into(),
            ..made::about(7, 0)
        };
        let path = folder.path().join(name);
        std::fs::create_dir(&path).unwrap();
        let mut journal = Made::about(&path, &about, &[]).unwrap();
        journal.alloc(0, MIB, 0).unwrap();
        journal.fail(4 << 40).unwrap();
        journal.end(Some(1)).unwrap()
    };
    // Two containers: the names of the jobs differ, and lead to one name of a folder.
    let long = "é".repeat(25);
    let journals = [begin("one", &format!("{long}1")), begin("two", &format!("{long}2"))];
    let copy = folder.path().join("copy.vraj");
    std::fs::copy(&journals[0], &copy).unwrap();
    let out = folder.path().join("fleet");
    let paths = [&journals[0], &journals[1], &copy, &out].map(|path| path.to_str().unwrap());
    let arguments = [
        &["--to", "parquet", "--partition", "--json"],
        &paths[..3],
        &["-o", paths[3]],
    ]
    .concat();
    for more in [&[][..], &["--force"]] {
        let output = run("export", &[&arguments, more].concat()).ok();
        assert_says(&output.said, "copy.vraj: left out");
        assert_fields(&output.json(), json!({"files": 4, "processes": 2}), "");
        let files = walk(&out);
        assert_eq!(files.len(), 4, "{files:?}");
    }
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let each = |path: PathBuf| if path.is_dir() { walk(&path) } else { vec![path] };
    entries.flat_map(each).collect()
}
