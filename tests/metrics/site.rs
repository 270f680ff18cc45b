//! The pages that `vramshim serve` shows: the list of the processes, reports, and the live page in headless Chromium.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use journal::writer::About;
use support::made::Made;
use support::{PASSTHROUGH, program};

use super::access::{TOKEN, with_mode};
use super::browser::{Browser, chromium};
use super::paced::{Paced, job};
use super::server::{Served, links};

const AUDIT: &str = include_str!("../report/audit.js");
const HOSTILE: &str = "</td><script>window.hurt=1</script>{{body}}";

/// Journals of two ended processes, of which one has a hostile name.
fn made(folder: &Path) {
    for (pid, job) in [(1, "made"), (2, HOSTILE)] {
        let about = About {
            pid,
            parent_pid: 1,
            wall_start_ns: 1_790_000_000_000_000_000,
            strategy: "passthrough".into(),
            host: "node1".into(),
            job: job.into(),
            command_line: b"python\0made.py".to_vec(),
            environment: Vec::new(),
            software: Vec::new(),
            ..About::default()
        };
        let mut made = Made::about(folder, &about, &[]).unwrap();
        made.alloc(0, 1 << 20, 0).unwrap();
        made.end(Some(0)).unwrap();
    }
}

fn get(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n")
}

#[test]
fn the_list_leads_to_the_report_that_the_program_writes() {
    let folder = tempfile::tempdir().unwrap();
    made(folder.path());
    let served = Served::start(folder.path(), &["--pages"]);
    let (status, head, list) = served.ask(&get("/", ""));
    assert_eq!(status, 200, "{list}");
    assert!(
        list.contains("href=\"report/node1-1-1\"") && list.contains("exit 0"),
        "{list}"
    );
    assert!(
        list.contains("&lt;/td&gt;&lt;script&gt;") && !list.contains("<script"),
        "{list}"
    );
    assert_eq!(
        list.matches("<table").count(),
        1,
        "a text of a job is no mark of the frame"
    );
    let head = head.to_lowercase();
    assert!(
        head.contains("content-security-policy: default-src 'none'; style-src 'sha256-"),
        "{head}"
    );

    let (status, head, page) = served.ask(&get("/report/node1-1-1", ""));
    let head = head.to_lowercase();
    assert_eq!(status, 200, "{page}");
    for header in [
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
    ] {
        assert!(head.contains(header), "{head}");
    }
    assert!(
        !head.contains("connect-src"),
        "only the live page asks for more: {head}"
    );
    let mut command = Command::new(program());
    command
        .arg("report")
        .arg(folder.path().join("node1-1-1.vraj"))
        .args(["-o", "-"]);
    let output = command.output().unwrap();
    assert_eq!(page, String::from_utf8(output.stdout).unwrap());
}

#[test]
fn no_path_leads_to_a_file_that_is_not_listed() {
    let folder = tempfile::tempdir().unwrap();
    let (inside, outside) = (folder.path().join("inside"), folder.path().join("outside"));
    for folder in [&inside, &outside] {
        std::fs::create_dir(folder).unwrap();
        made(folder);
    }
    std::fs::rename(outside.join("node1-1-1.vraj"), folder.path().join("other.vraj")).unwrap();
    std::fs::write(inside.join("text.txt"), "no journal").unwrap();
    let served = Served::start(&inside, &["--pages"]);
    for path in [
        "/report/",
        "/report/other",
        "/report/../other",
        "/report/..%2fother",
        "/report/%2e%2e/other",
        "/report/node1-1-1.vraj",
        "/report/node1-1-1/",
        "/report/node1-1-1%00",
        "/report//etc/passwd",
        "/report/text",
        "/live/../report/node1-1-1",
        "/jobs",
    ] {
        let (status, _, body) = served.ask(&get(path, ""));
        assert_ne!(status, 200, "{path}: {body}");
    }
    assert_eq!(served.ask(&get("/report/node1-1-1?x=1", "")).0, 200);
    // If two files have the same name, that name leads to none of them.
    let both = Served::start(&inside, &["--pages", "--dir", outside.to_str().unwrap()]);
    assert_eq!(both.ask(&get("/report/node1-2-1", "")).0, 404);
    let list = both.ask(&get("/", "")).2;
    let names = links(&list, "report/~");
    assert_eq!(names.len(), 2, "{list}");
    for name in names {
        assert_eq!(both.ask(&get(&format!("/report/~{name}"), "")).0, 200);
    }
}

#[test]
fn pages_are_for_those_who_may_read_them() {
    let folder = tempfile::tempdir().unwrap();
    made(folder.path());
    let served = Served::start(folder.path(), &[]);
    assert!(
        !served.ask(&get("/", "")).2.contains("node1"),
        "without --pages there are none"
    );
    assert_eq!(served.ask(&get("/report/node1-1-1", "")).0, 404);
    // A page of another site, whose name leads to this machine.
    let served = Served::start(folder.path(), &["--pages"]);
    let evil = "GET /report/node1-1-1 HTTP/1.1\r\nHost: evil.example:9087\r\n\r\n";
    assert_eq!(served.ask(evil).0, 421);
    assert_eq!(served.ask("GET / HTTP/1.0\r\n\r\n").0, 421);

    let file = with_mode(&folder.path().join("token"), TOKEN, 0o600);
    let served = Served::start(folder.path(), &["--token-file", &file]);
    let (status, head, _) = served.ask(&get("/report/node1-1-1", ""));
    assert_eq!(status, 401);
    assert!(head.to_lowercase().contains("www-authenticate: basic realm="), "{head}");
    // The password "wrong", and the token as the password of an empty name.
    assert_eq!(served.ask(&get("/", "Authorization: Basic Ondyb25n\r\n")).0, 401);
    let basic = "Authorization: Basic OjAxMjM0NTY3ODlhYmNkZWYwMTIzNDU2Nzg5YWJjZGVm\r\n";
    for path in ["/", "/report/node1-1-1", "/live/node1-1-1", "/metrics"] {
        assert_eq!(served.ask(&get(path, basic)).0, 200, "{path}");
    }
}

#[test]
fn many_who_ask_at_once_get_the_same_page() {
    let folder = tempfile::tempdir().unwrap();
    made(folder.path());
    let served = Served::start(folder.path(), &["--pages"]);
    let heads: Vec<String> = std::thread::scope(|scope| {
        let ask = || served.ask(&get("/live/node1-1-1", "")).1.to_lowercase();
        let asked: Vec<_> = (0..12).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let made = |head: &str| {
        let line = head.lines().find(|line| line.starts_with("x-vramshim-made: "));
        line.unwrap_or_else(|| panic!("{head}")).to_owned()
    };
    assert!(heads.iter().all(|head| made(head) == made(&heads[0])), "{heads:#?}");
}

/// Waits until an expression has this value in the page, which loads itself again from time to time.
fn wait(browser: &mut Browser, expression: &str, wanted: &serde_json::Value) {
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let value = browser.try_value(expression);
        if value.as_ref() == Some(wanted) {
            break;
        }
        assert!(Instant::now() < until, "{expression}: {value:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The text that an expression has in such a page, once it has one.
fn text_of(browser: &mut Browser, expression: &str) -> String {
    let is_there = format!("typeof ({expression}) === 'string'");
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        wait(browser, &is_there, &serde_json::json!(true));
        // The page may be loading again just now.
        if let Some(serde_json::Value::String(text)) = browser.try_value(expression) {
            return text;
        }
        assert!(Instant::now() < until, "{expression}");
    }
}

#[test]
fn the_live_page_follows_the_job_and_says_when_it_is_stale() {
    let Some(program) = chromium() else {
        assert!(
            std::env::var_os("VRAMSHIM_NEED_CHROMIUM").is_none(),
            "no Chromium is installed"
        );
        support::left_out("the live page: no Chromium in PATH (VRAMSHIM_CHROMIUM can name one)");
        return;
    };
    let mut job = Paced::start_as(job(PASSTHROUGH, 3, 1), 1);
    job.tell("20");
    let journals = job.folder.path().join("journals");
    let token = with_mode(&job.folder.path().join("token"), TOKEN, 0o600);
    let mut served = Served::start(&journals, &["--token-file", &token]);
    let mut browser = Browser::start(&program);
    browser.server = Some(format!("http://{}/", served.address));
    browser.look(1280, 900, "light");
    // A reader types the token. Here the address has it, and the browser shows it from then on.
    browser.complaints.clear();
    let with_token = format!("http://any:{TOKEN}@{}/", served.address);
    browser.open_address(&with_token);
    browser.complaints.clear();
    let address = format!("http://{}/", served.address);
    browser.open_address(&address);
    wait(&mut browser, AUDIT, &serde_json::json!([]));
    let pictures = support::scratch("site");
    std::fs::create_dir_all(&pictures).unwrap();
    browser.picture(&pictures.join("list.png"));
    let ranks = text_of(&mut browser, "document.querySelector('a[href^=\"job/\"]').href");
    browser.open_address(&ranks);
    wait(&mut browser, AUDIT, &serde_json::json!([]));
    browser.picture(&pictures.join("ranks.png"));
    let leads = |browser: &mut Browser, start: &str| {
        let link = format!("document.querySelector('tbody a[href*=\"{start}/\"]').href");
        text_of(browser, &link).starts_with(&format!("{address}{start}/"))
    };
    assert!(leads(&mut browser, "report") && leads(&mut browser, "live"));
    browser.open_address(&address);
    let live = text_of(&mut browser, "document.querySelector('a[href^=\"live/\"]').href");
    browser.open_address(&live);

    let yes = serde_json::json!(true);
    let seen = "['ledger', 'trust', 'timeline', 'holders'].every((id) => document.getElementById(id).offsetHeight > 40 && \
                document.querySelector(`#${id} .body`).innerText.trim() !== '')";
    wait(&mut browser, seen, &yes);
    let hidden = "['verdict', 'changes', 'flame', 'growth', 'events', 'about']\
                  .every((id) => document.getElementById(id).offsetHeight === 0)";
    wait(&mut browser, hidden, &yes);
    wait(&mut browser, AUDIT, &serde_json::json!([]));
    browser.picture(&pictures.join("live.png"));
    let live = "document.getElementById('age').innerText.startsWith('Live: these figures are ') && \
                document.getElementById('trust').innerText.includes('the process still ran')";
    wait(&mut browser, live, &yes);

    let events = "Number(document.querySelector('#trust .body').innerText.split(' events')[0].replaceAll(',', ''))";
    wait(&mut browser, &format!("({events}) > 0"), &yes);
    // Each step of the job is about an event. There were 20 steps before.
    job.tell("400");
    wait(&mut browser, &format!("({events}) > 400"), &yes);
    assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);

    let mut failed = Made::new(&journals, 4, 1).unwrap();
    failed.fail(4096 << 20).unwrap();
    failed.end(Some(1)).unwrap();
    // The list within half a second is the same.
    std::thread::sleep(Duration::from_millis(600));
    browser.open_address(&format!("{address}live/node1-4-1"));
    let verdict = "document.querySelector('#verdict .body').innerText.includes('Larger than the device') || \
                   document.querySelector('#verdict .body').innerText";
    wait(&mut browser, verdict, &yes);
    wait(
        &mut browser,
        "document.getElementById('verdict').offsetHeight > 40",
        &yes,
    );
    wait(&mut browser, AUDIT, &serde_json::json!([]));
    browser.picture(&pictures.join("live-failed.png"));
    browser.open_address(&address);
    let live = text_of(&mut browser, "document.querySelector('a[href^=\"live/\"]').href");
    browser.open_address(&live);
    wait(&mut browser, hidden, &yes);

    served.child.kill().unwrap();
    let stale = "document.querySelector('#age.stale').innerText.includes('vramshim serve does not answer')";
    wait(&mut browser, stale, &yes);
}
