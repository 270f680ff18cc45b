//! Tests of the interactive view of `vramshim top`, on a pseudo terminal.

use std::os::unix::process::ExitStatusExt;

use crate::top::paced::Paced;
use crate::top::terminal::Terminal;
use support::{AUTO_GROWTH, NAIVE_BEST_FIT, PASSTHROUGH};

const DOWN: &str = "\x1b[B";
const RIGHT: &str = "\x1b[C";
const LEFT: &str = "\x1b[D";

/// A job that waits for commands, and a view that shows this job alone.
fn one(rows: u16, columns: u16) -> (Paced, Terminal) {
    let mut job = Paced::start(AUTO_GROWTH, 1, 1);
    job.tell("100");
    let pid = job.pid().to_string();
    (job, Terminal::start(rows, columns, &["--interval", "100ms", &pid]))
}

/// The numbers of the lines that show this process.
fn lines_of(text: &str, pid: u32) -> Vec<usize> {
    let pid = pid.to_string();
    let lines = text.lines().enumerate();
    lines
        .filter(|(_, line)| line.trim_start_matches(['>', ' ']).starts_with(&pid))
        .map(|(place, _)| place)
        .collect()
}

#[test]
fn it_shows_devices_and_processes_and_quits() {
    let (job, mut terminal) = one(30, 200);
    let pid = job.pid();
    let words = [
        "1 process  2 devices",
        "GPU-",
        "allocated",
        "largest free",
        "allocs/s",
        "auto_growth",
        "running",
        "q quit",
    ];
    terminal.until("its rows and all words", |text| {
        lines_of(text, pid).len() == 2 && words.iter().all(|words| text.contains(words))
    });
    terminal.assert_raw();
    terminal.quit();
    assert!(terminal.drawn, "the alternate screen was shown");
}

#[test]
fn changes_are_shown_with_their_rate() {
    let (mut job, mut terminal) = one(30, 240);
    let pid = job.pid();
    terminal.until("its rows", |text| lines_of(text, pid).len() == 2);
    let failures = |text: &str| {
        let line = lines_of(text, pid)
            .first()
            .and_then(|&place| text.lines().nth(place).map(str::to_owned));
        line.is_some_and(|line| {
            // The last columns are failures, the host's memory (a number and its unit) and state.
            let words: Vec<&str> = line.split_whitespace().rev().collect();
            words[0] == "running" && words[3] == "1"
        })
    };
    assert!(!failures(&terminal.text()));
    // Sorted by device, the first row is the device on which the allocation fails.
    terminal.press(&LEFT.repeat(2));
    terminal.until("the order", |text| text.contains("by dev"));
    job.tell("fail");
    terminal.until("the failure", failures);
    // More than it comes to: the rate is shown until the job is killed.
    job.say("+20000000");
    terminal.until("a rate", |text| {
        let rows = text.lines().filter(|line| line.contains("running"));
        rows.into_iter().any(|line| line.contains(','))
    });
    terminal.quit();
}

#[test]
fn failures_and_marks_are_shown_as_they_come() {
    for (colours, variables) in [(true, &[][..]), (false, &[("NO_COLOR", "1")])] {
        let mut job = Paced::start(AUTO_GROWTH, 1, 1);
        job.tell("100");
        let pid = job.pid();
        let arguments = ["--interval", "100ms", &pid.to_string()];
        let mut terminal = Terminal::start_with(30, 200, &arguments, variables);
        terminal.until("its rows", |text| lines_of(text, pid).len() == 2);
        assert!(!terminal.text().contains("Latest failures and marks"));
        job.tell("mark");
        terminal.until("the mark", |text| text.contains("mark: epoch 1"));
        job.tell("fail");
        terminal.until("the failure", |text| {
            text.contains("device 0: cuMemAlloc of 32.0 TiB: out of memory")
        });
        assert_eq!(terminal.is_coloured(), colours, "a failure is red, but for NO_COLOR");
        terminal.quit();
    }
}

#[test]
fn all_of_it_fits_80_columns() {
    let host = tempfile::tempdir().unwrap();
    let job = crate::top::paced::job(AUTO_GROWTH, 1, 1).env("SIMGPU_STATE", host.path().join("state"));
    let mut job = Paced::start_as(job, 1);
    job.tell("100");
    let pid = job.pid();
    let mut terminal = Terminal::start(24, 80, &["--interval", "100ms", &pid.to_string()]);
    let words = ["used", "total", "busy", "allocated", "*reserved", "failures"];
    let text = terminal.until("figures of NVML, and all words", |text| {
        lines_of(text, pid).len() == 2 && text.contains("0 %") && words.iter().all(|words| text.contains(words))
    });
    // The last column of each table is complete.
    let titles: Vec<&str> = text.lines().filter(|line| line.contains("reserved")).collect();
    assert!(titles.iter().all(|line| line.chars().count() <= 80), "{text}");
    terminal.quit();
    // The table that is printed once is no wider.
    let mut terminal = Terminal::start(24, 80, &["--once", &pid.to_string()]);
    assert_eq!(terminal.ended().code(), Some(0));
    let text = terminal.text();
    assert!(text.contains("running"), "{text}");
    for line in text
        .lines()
        .filter(|line| line.contains("running") || line.contains("Simulated GPU"))
    {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert_eq!(lines_of(&text, pid).len(), 2, "no line is broken in two:\n{text}");
}

#[test]
fn it_sorts_by_the_column_that_is_chosen() {
    let mut jobs: Vec<Paced> = (0..3).map(|seed| Paced::start(PASSTHROUGH, seed, 1)).collect();
    for (steps, job) in [300, 1, 40].into_iter().zip(&mut jobs) {
        job.tell(&steps.to_string());
    }
    let mut pids: Vec<u32> = jobs.iter().map(Paced::pid).collect();
    let arguments: Vec<String> = pids.iter().map(u32::to_string).collect();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--interval", "100ms"]);
    let mut terminal = Terminal::start(30, 200, &arguments);
    let order = |text: &str, pids: &[u32]| {
        let first: Vec<usize> = pids
            .iter()
            .filter_map(|pid| lines_of(text, *pid).first().copied())
            .collect();
        first.len() == 3 && first.is_sorted()
    };
    terminal.until("all of them", |text| {
        pids.iter().all(|pid| !lines_of(text, *pid).is_empty())
    });
    assert!(terminal.text().contains("by reserved"));
    // Five columns to the left, from reserved to pid.
    terminal.press(&LEFT.repeat(5));
    pids.sort_unstable();
    terminal.until("by pid", |text| text.contains("by pid") && order(text, &pids));
    terminal.press("r");
    pids.reverse();
    terminal.until("reversed", |text| {
        text.contains("by pid, reversed") && order(text, &pids)
    });
    terminal.press(RIGHT);
    terminal.until("by job", |text| text.contains("by job") && !text.contains("reversed"));
    terminal.press("\x03");
    assert_eq!(terminal.ended().code(), Some(0));
}

#[test]
fn a_process_that_has_ended_goes() {
    let (mut job, mut terminal) = one(30, 200);
    let pid = job.pid();
    terminal.until("its rows", |text| lines_of(text, pid).len() == 2);
    job.kill();
    terminal.until("its end", |text| text.contains("no exit") && !text.contains("GPU-"));
    terminal.until("nothing left", |text| text.contains("0 processes"));
    terminal.quit();
}

#[test]
fn it_opens_a_process() {
    let mut job = Paced::start(NAIVE_BEST_FIT, 2, 1);
    job.tell("100");
    let pid = job.pid();
    let mut terminal = Terminal::start(100, 160, &["--interval", "100ms", &pid.to_string()]);
    terminal.until("its rows", |text| lines_of(text, pid).len() == 2);
    terminal.press(DOWN);
    terminal.press("\r");
    let words = ["naive_best_fit", "By API", "cuMemAlloc", "managed", "Esc back"];
    terminal.until("the process", |text| words.iter().all(|words| text.contains(words)));
    terminal.press("\x1b[6~\x1b[6~\x1b[5~");
    terminal.press("\x1b");
    terminal.until("the processes again", |text| {
        lines_of(text, pid).len() == 2 && text.contains("Enter open")
    });
    terminal.quit();
}

#[test]
fn signals_that_end_it_leave_the_terminal_as_it_was() {
    let (_job, mut first) = one(24, 80);
    first.until("something", |text| text.contains("vramshim top"));
    first.quit();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let (job, mut terminal) = one(24, 80);
        let pid = job.pid();
        terminal.until("its rows", |text| !lines_of(text, pid).is_empty());
        terminal.assert_raw();
        terminal.signal(signal);
        assert_eq!(terminal.ended().signal(), Some(signal));
        assert!(terminal.drawn);
    }
}

#[test]
fn it_stops_and_goes_on_as_job_control_asks() {
    let (job, _) = one(24, 100);
    let pid = job.pid();
    let mut terminal = Terminal::start_as_job(24, 100, &["--interval", "100ms", &pid.to_string()]);
    for ask in ["key", "signal"] {
        terminal.until("its rows", |text| !lines_of(text, pid).is_empty());
        match ask {
            "key" => terminal.press("\x1a"),
            _ => terminal.signal(libc::SIGTSTP),
        }
        terminal.until_stopped();
        terminal.assert_restored();
        terminal.signal(libc::SIGCONT);
    }
    terminal.until("its rows", |text| !lines_of(text, pid).is_empty());
    terminal.assert_raw();
    terminal.quit();
}

/// As with `ssh -t HOST vramshim top`: no shell is there that could continue it.
#[test]
fn it_does_not_stop_where_nothing_could_continue_it() {
    let (job, mut terminal) = one(24, 100);
    let pid = job.pid();
    terminal.until("its rows", |text| !lines_of(text, pid).is_empty());
    terminal.press("\x1a");
    // For a moment the terminal is as it was, and a key may be lost.
    std::thread::sleep(std::time::Duration::from_millis(500));
    terminal.press("\r");
    terminal.until("the process", |text| text.contains("Esc back"));
    terminal.quit();
}

#[test]
fn no_size_is_too_small() {
    let (job, mut terminal) = one(24, 80);
    let pid = job.pid();
    terminal.until("its rows", |text| !lines_of(text, pid).is_empty());
    for keys in ["", "\r"] {
        terminal.press(keys);
        for (rows, columns) in [(1, 1), (20, 5), (5, 20), (2, 200), (1, 30), (100, 3), (60, 300)] {
            terminal.resize(rows, columns);
            // The view draws the screen anew at this size.
            terminal.press(DOWN);
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
        terminal.until("all of it", |text| {
            text.contains("vramshim top") && text.contains("q quit")
        });
    }
    for (rows, columns) in [(1, 1), (20, 5)] {
        let mut small = Terminal::start(rows, columns, &["--interval", "100ms"]);
        small.until_drawn();
        small.press(DOWN);
        small.press("\r\x1b[6~");
        small.resize(30, 100);
        small.until("more", |text| text.contains("vramshim top"));
        small.quit();
    }
    terminal.quit();
}

#[test]
fn a_machine_without_jobs_is_shown_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start(24, 100, &["--interval", "100ms", folder.path().to_str().unwrap()]);
    terminal.until("a word", |text| {
        text.contains("0 processes") && text.contains("vramshim run")
    });
    terminal.press(&format!("{DOWN}{LEFT}\rr"));
    terminal.quit();
}
