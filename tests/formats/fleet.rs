//! `vramshim export --to parquet --partition` of a thousand journals, and the questions of `docs/fleet.sql`.

use std::path::{Path, PathBuf};

use journal::format::Device;
use journal::writer::About;
use support::made::Made;
use support::{MIB, Runs};

use crate::formats::run;

const JOBS: u32 = 100;
const RANKS: u32 = 10;
const GIB: u64 = 1 << 30;
/// The job with one rank that has twice the memory of the others.
const ODD: (u32, u32) = (37, 3);
/// Jobs that fail within two minutes on machines of their own, under one version of the driver.
const TOGETHER: [u32; 3] = [50, 51, 52];
/// A job that fails alone, hours before.
const ALONE: u32 = 90;

fn began_s(job: u32) -> u64 {
    match TOGETHER.contains(&job) {
        true => 200_000 + u64::from(job),
        false => u64::from(job) * 600,
    }
}

fn driver(job: u32) -> &'static str {
    match TOGETHER.contains(&job) {
        true => "570.1",
        false => "560.2",
    }
}

fn write(folder: &Path, job: u32, rank: u32) {
    let device = Device {
        total_memory: 80 * GIB,
        uuid: [job as u8 + 1; 16],
        name: "Simulated GPU".into(),
        ..Device::default()
    };
    let about = About {
        // Process ids that no system gives.
        pid: 1 << 30 | job << 8 | rank,
        parent_pid: 1,
        wall_start_ns: (1_790_000_000 + began_s(job)) * 1_000_000_000,
        strategy: "auto_growth".into(),
        host: format!("node{job}"),
        job: format!("job {job}"),
        command_line: b"python\0train.py\0--token=hidden".to_vec(),
        environment: format!("RANK={rank}\0").into_bytes(),
        software: format!("driver={}\0framework=PyTorch 2.12\0", driver(job)).into_bytes(),
        ..About::default()
    };
    let mut made = Made::about(folder, &about, &[device]).unwrap();
    let bytes = match (job, rank) == ODD {
        true => 8 * GIB,
        false => 4 * GIB,
    };
    // Each job wastes a MiB more in each process than the job before.
    made.alloc_within(0, bytes, bytes + u64::from(job) * MIB).unwrap();
    let fails = (TOGETHER.contains(&job) || job == ALONE) && rank == 0;
    if fails {
        made.fail(100 * GIB).unwrap();
    }
    made.end(Some(i32::from(fails))).unwrap();
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
    let arguments = [
        journals.to_str().unwrap(),
        "--to",
        "parquet",
        "--partition",
        "-o",
        out.to_str().unwrap(),
        "--json",
    ];
    let written = run("export", &arguments);
    assert_eq!(written.code, Some(1), "{}", written.said);
    assert!(written.said.contains("damaged.vraj"), "{}", written.said);
    let told = written.json();
    assert_eq!(
        (&told["processes"], &told["failures"], &told["files"]),
        (&1000.into(), &4.into(), &1004.into())
    );
    assert_eq!(told["left_out"].as_array().unwrap().len(), 1, "{told}");
    // A second time would mix two states of the same journals.
    let again = run("export", &arguments);
    assert_eq!(again.code, Some(2), "{}", again.said);
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

    use serde_json::{Value, json};
    use support::root;

    use super::*;
    use crate::formats::readers::formats_python;

    fn ask(engine: &str, fleet: &Path) -> Value {
        let answered = Command::new(formats_python())
            .arg(root().join("tests/formats/fleet.py"))
            .arg(engine)
            .arg(fleet)
            .arg(root().join("docs/fleet.sql"))
            .printed()
            .ok();
        answered.json()
    }

    fn check(engine: &str, answers: &Value) {
        let odd = answers["odd_rank_out"].as_array().unwrap();
        assert_eq!(odd.len(), 1, "{engine}: {odd:?}");
        assert_eq!(
            (&odd[0]["job"], &odd[0]["rank"]),
            (&json!("job 37"), &json!(3)),
            "{engine}"
        );
        assert_eq!(odd[0]["ratio"].as_f64(), Some(2.0), "{engine}");

        let waste = answers["waste_by_job"].as_array().unwrap();
        assert_eq!(waste.len(), JOBS as usize, "{engine}");
        assert_eq!(waste[0]["job"], "job 99", "{engine}");
        assert_eq!(
            waste[0]["wasted_bytes"].as_f64(),
            Some((99 * 10 * MIB) as f64),
            "{engine}"
        );

        let verdicts = answers["failures_by_verdict"].as_array().unwrap();
        assert_eq!(verdicts.len(), 1, "{engine}");
        let first = &verdicts[0];
        assert_eq!(
            (&first["verdict"], &first["failures"]),
            (&json!("larger_than_device"), &json!(4)),
            "{engine}"
        );
        assert_eq!(
            (&first["fatal_failures"], &first["jobs"]),
            (&json!(4), &json!(4)),
            "{engine}"
        );

        // All jobs but the four that failed; the odd one needs 9.8 GiB.
        let fits = answers["fits_a_smaller_card"].as_array().unwrap();
        assert_eq!(fits.len(), JOBS as usize - 4, "{engine}");
        let card = |job: &str| {
            fits.iter()
                .find(|row| row["job"] == job)
                .map(|row| row["card_gib"].clone())
        };
        assert_eq!(
            (card("job 0"), card("job 37")),
            (Some(json!(8)), Some(json!(12))),
            "{engine}"
        );

        let together = answers["failures_together"].as_array().unwrap();
        assert_eq!(together.len(), 1, "{engine}: {together:?}");
        let these = &together[0];
        assert_eq!((&these["machines"], &these["jobs"]), (&json!(3), &json!(3)), "{engine}");
        assert_eq!(
            (&these["same_driver"], &these["same_job"]),
            (&json!("570.1"), &Value::Null),
            "{engine}"
        );
        assert_eq!(these["same_verdict"], "larger_than_device", "{engine}");
    }

    #[test]
    fn without_failures_the_questions_have_answers_too() {
        let folder = tempfile::tempdir().unwrap();
        let (journals, out) = (journals(folder.path(), 37..38), folder.path().join("out"));
        let arguments = [journals.to_str().unwrap(), "--to", "parquet", "--partition", "-o"];
        run("export", &[&arguments[..], &[out.to_str().unwrap()]].concat()).ok();
        let answers = ask("duckdb", &out);
        let rows = |name: &str| answers[name].as_array().unwrap().len();
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
            wall_start_ns: 1_790_000_000_000_000_000,
            host: "pod".into(),
            job: job.into(),
            pid: 7,
            ..About::default()
        };
        let path = folder.path().join(name);
        std::fs::create_dir(&path).unwrap();
        let mut made = Made::about(&path, &about, &[]).unwrap();
        made.alloc(0, MIB, 0).unwrap();
        made.fail(4 << 40).unwrap();
        made.end(Some(1)).unwrap()
    };
    // Two containers: the names of the jobs differ, and lead to one name of a folder.
    let long = "é".repeat(25);
    let journals = [begin("one", &format!("{long}1")), begin("two", &format!("{long}2"))];
    let copy = folder.path().join("copy.vraj");
    std::fs::copy(&journals[0], &copy).unwrap();
    let out = folder.path().join("fleet");
    let mut arguments = vec![
        journals[0].to_str().unwrap(),
        journals[1].to_str().unwrap(),
        copy.to_str().unwrap(),
    ];
    arguments.extend(["--to", "parquet", "--partition", "--json", "-o", out.to_str().unwrap()]);
    for more in [&[][..], &["--force"]] {
        let output = run("export", &[&arguments, more].concat()).ok();
        assert!(output.said.contains("copy.vraj: left out"), "{}", output.said);
        let told = output.json();
        assert_eq!((&told["files"], &told["processes"]), (&4.into(), &2.into()), "{told}");
        let files = walk(&out);
        assert_eq!(files.len(), 4, "{files:?}");
    }
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let each = |path: PathBuf| match path.is_dir() {
        true => walk(&path),
        false => vec![path],
    };
    entries.flat_map(each).collect()
}
