//! The page that lists processes by job, and the page of the ranks of one job.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use journal::writer::{About, DeviceFacts};
use support::made::Made;

use super::server::{Served, links};

const MIB: u64 = 1 << 20;

/// A date in seconds after 1970: so long ago that the metrics do not follow a process of that day, unless it is told to be
/// kept (`KEPT`, which can be a year at most).
fn date_s() -> u64 {
    static DATE: OnceLock<u64> = OnceLock::new();
    const LONG_AGO: Duration = Duration::from_secs(100 * 86400);
    *DATE.get_or_init(|| (UNIX_EPOCH.elapsed().expect("a clock") - LONG_AGO).as_secs())
}

/// A process of a job with a rank, on a device of 1 GiB.
struct Rank<'a> {
    job: &'a str,
    pid: u32,
    rank: u32,
    /// When it began, in seconds after `date_s`.
    began_s: u64,
    limit: Option<u64>,
}

impl Rank<'_> {
    fn begin(&self, folder: &Path) -> Made {
        let about = About {
            pid: self.pid,
            parent_pid: 1,
            wall_start_ns: (date_s() + self.began_s) * 1_000_000_000,
            strategy: "passthrough".into(),
            host: format!("node{}", self.rank / 2),
            job: self.job.into(),
            command_line: b"python\0train.py".to_vec(),
            environment: format!("RANK={}\0", self.rank).into_bytes(),
            software: Vec::new(),
            ..About::default()
        };
        let device = DeviceFacts {
            total_memory: 1024 * MIB,
            uuid: [1; 16],
            name: "Simulated GPU".into(),
            limit: self.limit,
            ..DeviceFacts::default()
        };
        Made::about(folder, &about, &[device]).unwrap()
    }
}

/// Three ranks that ended in three ways. The third allocated most, and gave most of it back.
fn three_ranks(folder: &Path, job: &str, began_s: u64) {
    for (rank, peak) in [(0, 100), (1, 100), (2, 150)] {
        let of = Rank {
            job,
            pid: began_s as u32 * 10 + rank,
            rank,
            began_s,
            limit: (rank == 1).then_some(512 * MIB),
        };
        let mut made = of.begin(folder);
        let address = made.alloc(0, (peak - 20) * MIB, 0).unwrap();
        made.alloc(0, 20 * MIB, 0).unwrap();
        made.free(0, address, (peak - 20) * MIB).unwrap();
        if rank == 1 {
            made.fail(MIB).unwrap();
            made.fail(4096 * MIB).unwrap();
        }
        made.end([Some(0), Some(7), None][rank as usize]).unwrap();
    }
}

/// The status and the page at a path.
fn page(served: &Served, path: &str) -> (u16, String) {
    let (status, _, body) = served.ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    (status, body)
}

/// The text of the cells of each row of a page, without markup, in the order of the page.
fn rows(page: &str) -> Vec<Vec<String>> {
    let without_markup = |cell: &str| {
        let inner = cell.split_once('>').map_or("", |(_, inner)| inner);
        let inner = inner.split("</td>").next().unwrap_or_default();
        inner.split('<').map(|part| part.rsplit('>').next().unwrap()).collect()
    };
    page.split("<tr")
        .skip(1)
        .map(|row| row.split("<td").skip(1).map(without_markup).collect())
        .filter(|cells: &Vec<String>| !cells.is_empty())
        .collect()
}

/// Those who ended some time ago have figures too.
const KEPT: [&str; 3] = ["--pages", "--keep-ended", "8000h"];

#[test]
fn a_job_has_a_row_for_each_rank_and_the_odd_one_is_marked() {
    let folder = tempfile::tempdir().unwrap();
    three_ranks(folder.path(), "train", 1);
    three_ranks(folder.path(), "other", 100);
    let served = Served::start(folder.path(), &KEPT);
    let list = page(&served, "/").1;
    assert!(
        list.contains("<a href=\"job/train\">train</a>: 3 processes, 0 running"),
        "{list}"
    );
    assert!(
        list.contains("<a href=\"job/other\">other</a>: 3 processes, 0 running"),
        "{list}"
    );

    let (status, ranks) = page(&served, "/job/train");
    assert_eq!(status, 200, "{ranks}");
    let found = rows(&ranks);
    let expected = [
        [
            "0",
            "10",
            "node0",
            "ended, exit 0",
            "20.0 MiB",
            "100.0 MiB",
            "20.0 MiB",
            "none",
            "0",
            "-",
        ],
        [
            "1",
            "11",
            "node0",
            "ended, exit 7",
            "20.0 MiB",
            "100.0 MiB",
            "20.0 MiB",
            "512.0 MiB",
            "2",
            "larger than the device",
        ],
        [
            "2 (the odd one out)",
            "12",
            "node1",
            "killed or crashed, signal not known",
            "20.0 MiB",
            "150.0 MiB",
            "20.0 MiB",
            "none",
            "0",
            "-",
        ],
    ];
    assert_eq!(found.len(), 3, "{ranks}");
    for (row, expected) in found.iter().zip(expected) {
        assert_eq!(row[..10], expected, "{ranks}");
    }
    let said = "The odd one out is process 12 (rank 2): its peak of 150.0 MiB is 50.0 % higher than the median of 3";
    assert!(ranks.contains(said), "{ranks}");
    assert!(ranks.contains("<a href=\"../report/node1-12-1\">Report</a>"), "{ranks}");
    assert!(ranks.contains("<a href=\"../\">"), "{ranks}");
    assert_eq!(page(&served, "/report/node1-12-1").0, 200);
}

#[test]
fn no_cell_is_blank_and_the_list_tells_what_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    // These ended long before the server began, so the metrics do not follow them.
    three_ranks(folder.path(), "train", 1);
    std::fs::write(folder.path().join("broken.vraj"), [b'x'; 100_000]).unwrap();
    let missing = folder.path().join("missing");
    let served = Served::start(folder.path(), &["--pages", "--dir", missing.to_str().unwrap()]);
    let list = page(&served, "/").1;
    // The page of the job reads their journals.
    let ranks = rows(&page(&served, "/job/train").1);
    assert_eq!(
        ranks[1][4..10],
        [
            "20.0 MiB",
            "100.0 MiB",
            "20.0 MiB",
            "512.0 MiB",
            "2",
            "larger than the device"
        ],
        "{ranks:?}"
    );
    for found in [rows(&list), ranks] {
        assert_eq!(found.len(), 3, "{list}");
        assert!(found.iter().flatten().all(|cell| !cell.trim().is_empty()), "{found:?}");
    }
    assert_eq!(rows(&list)[0][4..6], ["nothing, it ended", "-"], "{list}");
    for words in ["missing: No such file", "broken.vraj: "] {
        assert!(list.contains(words), "{words} in {list}");
    }
    std::fs::remove_file(folder.path().join("broken.vraj")).unwrap();
    std::fs::create_dir(&missing).unwrap();
    // Answers within half a second are the same.
    std::thread::sleep(std::time::Duration::from_millis(600));
    let list = page(&served, "/").1;
    assert!(!list.contains("cannot be read, or"), "{list}");
}

#[test]
fn the_peak_is_that_of_the_times_and_not_of_the_places_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let of = Rank {
        job: "made",
        pid: 1,
        rank: 0,
        began_s: 1,
        limit: None,
    };
    let mut made = of.begin(folder.path());
    let first = made.alloc(0, 100 * MIB, 0).unwrap();
    made.wait(10_000_000);
    made.alloc(0, 70 * MIB, 0).unwrap();
    // Another thread freed before that, and its slot comes later.
    made.go_back(5_000_000);
    made.free(0, first, 100 * MIB).unwrap();
    made.wait(10_000_000);
    made.end(Some(0)).unwrap();
    let served = Served::start(folder.path(), &KEPT);
    let ranks = page(&served, "/job/made").1;
    let found = rows(&ranks);
    assert_eq!(found[0][4..6], ["70.0 MiB", "100.0 MiB"], "{ranks}");
    let truth = &support::inspect(folder.path())[0]["devices"][0]["allocated"];
    assert_eq!(truth["peak"], 100 * MIB);
}

#[test]
fn runs_of_a_job_are_apart_and_a_process_is_there_once() {
    let folder = tempfile::tempdir().unwrap();
    three_ranks(folder.path(), "train", 1);
    three_ranks(folder.path(), "train", 1000);
    let at = |name: &str| folder.path().join(name);
    std::fs::copy(at("node0-10-1.vraj"), at("copy.vraj")).unwrap();
    let served = Served::start(folder.path(), &KEPT);
    let ranks = page(&served, "/job/train").1;
    let pids: Vec<String> = rows(&ranks).into_iter().map(|row| row[1].clone()).collect();
    assert_eq!(pids, ["10000", "10001", "10002", "10", "11", "12"], "{ranks}");
    assert_eq!(ranks.matches("<h2 ").count(), 2, "{ranks}");
}

#[test]
fn the_name_of_a_job_is_looked_up_and_is_no_markup() {
    let folder = tempfile::tempdir().unwrap();
    let hostile = "../</td><script>{{body}}";
    for (pid, job) in [(1, hostile), (2, ""), (3, "plain")] {
        let of = Rank {
            job,
            pid,
            rank: 0,
            began_s: u64::from(pid),
            limit: None,
        };
        of.begin(folder.path()).end(Some(0)).unwrap();
    }
    let served = Served::start(folder.path(), &KEPT);
    let list = page(&served, "/").1;
    assert!(!list.contains("<script"), "{list}");
    let names = links(&list, "job/");
    assert_eq!(names.len(), 3, "{list}");
    for name in &names {
        let plain = name.strip_prefix('~').unwrap_or(name);
        assert!(plain.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{name}");
        let (status, ranks) = page(&served, &format!("/job/{name}"));
        assert_eq!((status, ranks.contains("<script")), (200, false), "{ranks}");
        assert_eq!(rows(&ranks).len(), 1, "{ranks}");
    }
    for path in [
        "/job/",
        "/job/..",
        "/job/plain/",
        "/job/plain%00",
        "/job/none",
        "/job/../job/plain",
    ] {
        assert_eq!(page(&served, path).0, 404, "{path}");
    }
    let head = served.ask("GET /job/plain HTTP/1.1\r\nHost: localhost\r\n\r\n").1;
    let head = head.to_lowercase();
    for header in [
        "content-security-policy: default-src 'none'; style-src 'sha256-",
        "frame-ancestors 'none'",
        "cache-control: no-store",
    ] {
        assert!(head.contains(header), "{head}");
    }
    // Nobody without the right to read pages reads this one.
    let without = Served::start(folder.path(), &[]);
    assert_eq!(page(&without, "/job/plain").0, 404);
    let evil = served.ask("GET /job/plain HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert_eq!(evil.0, 421);
}
