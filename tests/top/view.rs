//! Tests of the interactive view of `vramshim top`, on a pseudo terminal.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use base::api::Api;
use base::cuda::HOST_DEVICE;
use journal::format::{Device, Event, MarkKind};
use journal::writer::{About, Journal};
use support::AUTO_GROWTH;
use support::made::{failed, linear};

use crate::top::paced::Paced;
use crate::top::terminal::{Terminal, pause};

const DOWN: &str = "\x1b[B";
const LEFT: &str = "\x1b[D";

/// A job that waits for commands.
fn paced() -> Paced {
    let mut job = Paced::start(AUTO_GROWTH, 1, 1);
    job.tell("100");
    job
}

/// A view of this job alone. Waits until it has at least so many rows: one for each device, if there is room.
fn view_of(job: &Paced, size: (u16, u16), variables: &[(&str, &str)], leads_session: bool, least: usize) -> Terminal {
    let pid = job.pid();
    let arguments = ["--interval", "100ms", &pid.to_string()];
    let mut terminal = Terminal::open(size.0, size.1, &arguments, variables, leads_session);
    terminal.until("its rows", |text| lines_of(text, pid).len() >= least);
    terminal
}

fn one(rows: u16, columns: u16) -> (Paced, Terminal) {
    let job = paced();
    let terminal = view_of(&job, (rows, columns), &[], true, 2);
    (job, terminal)
}

/// The numbers of the lines that show this process.
fn lines_of(text: &str, pid: u32) -> Vec<usize> {
    let pid = pid.to_string();
    let lines = text.lines().enumerate();
    // After the number of the GPU. A line of an event begins with a time.
    lines
        .filter(|(_, line)| line.split_whitespace().nth(1) == Some(&pid))
        .filter(|(_, line)| !line.contains("Z  "))
        .map(|(place, _)| place)
        .collect()
}

#[test]
fn changes_are_shown() {
    let (mut job, mut terminal) = one(30, 240);
    let pid = job.pid();
    let failures = |text: &str| {
        let line = lines_of(text, pid)
            .first()
            .and_then(|&place| text.lines().nth(place).map(str::to_owned));
        line.is_some_and(|line| {
            // The state follows the failures.
            let words: Vec<&str> = line.split_whitespace().collect();
            words.windows(2).any(|two| two == ["1", "running"])
        })
    };
    assert!(!failures(&terminal.text()));
    // Sorted by device, the first row is the device on which the allocation fails.
    assert!(terminal.text().contains("by gpu"));
    terminal.press(LEFT);
    terminal.until("the order", |text| text.contains("by strategy"));
    terminal.press(LEFT);
    terminal.until("the order", |text| text.contains("by dev"));
    job.tell("fail");
    terminal.until("the failure", failures);
    terminal.quit();
}

#[test]
fn failures_and_marks_are_shown_as_they_come() {
    for (colours, variables) in [(true, &[][..]), (false, &[("NO_COLOR", "1")])] {
        let mut job = paced();
        let mut terminal = view_of(&job, (30, 200), variables, true, 2);
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
fn a_process_that_has_ended_goes() {
    let (mut job, mut terminal) = one(30, 200);
    job.kill();
    terminal.until("its end", |text| {
        text.contains("no exit") && !text.contains("Simulated GPU")
    });
    terminal.until("nothing left", |text| text.contains("0 processes"));
    terminal.quit();
}

#[test]
fn it_ends_with_its_terminal() {
    let job = paced();
    for leads_session in [false, true] {
        let mut terminal = view_of(&job, (24, 80), &[], leads_session, 1);
        terminal.hang_up();
    }
}

/// The terminal takes nothing, as one whose window hangs: what is drawn waits in it for ever.
#[test]
fn signals_end_it_though_the_terminal_takes_no_output() {
    let job = paced();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        let mut terminal = view_of(&job, (50, 200), &[], true, 1);
        terminal.fill();
        terminal.signal(signal);
        assert_eq!(
            terminal.ended_within(Duration::from_secs(5), pause).signal(),
            Some(signal)
        );
    }
}

#[test]
fn processes_are_filtered_and_all_events_are_shown() {
    let (mut job, mut terminal) = one(24, 80);
    let pid = job.pid();
    terminal.press("/PACED\r");
    terminal.until("the job", |text| {
        text.contains("with \"PACED\" in a column") && lines_of(text, pid).len() == 2
    });
    terminal.press("\x1b");
    terminal.until("all", |text| !text.contains("in a column"));
    terminal.press("/quit");
    terminal.until("nothing has it", |text| {
        text.contains("with \"quit\" in a column, 2 hidden") && lines_of(text, pid).is_empty()
    });
    terminal.press("\x1b");
    job.tell("fail");
    job.tell("mark");
    terminal.until("both", |text| text.contains("mark: epoch 1"));
    terminal.press("e");
    let text = terminal.until("the events", |text| text.contains("2 failures and marks"));
    assert!(text.find("out of memory") < text.find("mark: epoch 1"), "{text}");
    terminal.press("\x1b[6~\x1b[5~\x1b");
    terminal.until("the processes again", |text| lines_of(text, pid).len() == 2);
    terminal.quit();
}

#[test]
fn signals_that_end_it_leave_the_terminal_as_it_was() {
    let (job, mut first) = one(24, 80);
    assert!(first.text().contains("vramshim top"));
    first.quit();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let mut terminal = view_of(&job, (24, 80), &[], true, 1);
        terminal.assert_raw();
        terminal.signal(signal);
        assert_eq!(terminal.ended().signal(), Some(signal));
        assert!(terminal.drawn);
    }
}

#[test]
fn it_stops_and_goes_on_as_job_control_asks() {
    let job = paced();
    let pid = job.pid();
    let mut terminal = view_of(&job, (24, 100), &[], false, 1);
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
    let (_job, mut terminal) = one(24, 100);
    terminal.press("\x1a");
    // For a moment the terminal is as it was, and a key may be lost.
    std::thread::sleep(std::time::Duration::from_millis(500));
    terminal.press("e");
    terminal.until("the events", |text| text.contains("Esc back"));
    terminal.quit();
}

/// A journal of this process, which has 15 devices, of which the last holds most, and more events than a screen has lines.
fn crowded(folder: &std::path::Path) -> Journal {
    let mut about = About::default();
    (about.pid, about.job) = (std::process::id(), "job \u{4e16}\u{754c}".into());
    let journal = Journal::create(folder, 1 << 20, about).unwrap();
    for number in 1..=15u8 {
        journal.device(&Device {
            ordinal: i32::from(number) - 1,
            uuid: [number; 16],
            limit: [4, 6].contains(&number).then_some(u64::from(number) << 30),
            ..Device::default()
        });
        let event = Event::Alloc(linear(1 << 40, u64::from(number) << 20));
        journal.write(event.encode(Api::cudaMalloc, i16::from(number) - 1));
    }
    journal.write(failed(1 << 45, 2, false).encode(Api::cudaMalloc, 0));
    let (text, kind) = (1, MarkKind::Instant);
    for _ in 0..200 {
        journal.write(Event::Mark { text, kind }.encode(Api::vramshim_mark, HOST_DEVICE));
    }
    journal
}

#[test]
fn what_does_not_fit_is_said_and_can_be_reached_and_every_size_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let _journal = crowded(folder.path());
    let mut terminal = Terminal::start(24, 80, &[folder.path().to_str().unwrap()]);
    let has_all = |text: &str, words: &str| words.split('|').all(|words| text.contains(words));
    let said = " more devices: --once| more rows|no room: |*gpu|e shows all|of memory|mark: ";
    terminal.until("what falls off", |text| has_all(text, said));
    let (home, end, to_limit) = ("\x1b[H", "\x1b[F", LEFT.repeat(4));
    // Rows without a number come last, and rows with equal ones by what they hold.
    for (keys, gpu, header) in [
        (&to_limit[..], "GPU-0606", "*limit"),
        (DOWN, "GPU-0404", "*limit"),
        (DOWN, "GPU-0f0f", "*limit"),
        (&format!("{home}r"), "GPU-0f0f", "^limit"),
        (end, "GPU-0606", "^limit"),
    ] {
        terminal.press(keys);
        terminal.until(&format!("{gpu} after {keys:?}"), |text| {
            let lines = lines_of(text, std::process::id());
            let line = if keys == end { lines.last() } else { lines.first() };
            let line = line.and_then(|&line| text.lines().nth(line)).unwrap_or_default();
            text.contains(header) && line.trim_start().starts_with(gpu)
        });
    }
    for keys in ["e", "\x1b"] {
        terminal.press(keys);
        for (rows, columns) in [(1, 1), (3, 7), (5, 20), (7, 59), (2, 200), (12, 2), (100, 3), (60, 300)] {
            terminal.resize(rows, columns);
            terminal.press(DOWN);
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
        terminal.until("all of it", |text| has_all(text, "vramshim top|q quit"));
    }
    let columns =
        "live|cached|others|free|busy|total|processes|uuid|pod/user|failed|command|reserved|host|dev|strategy";
    terminal.until("all columns", |text| {
        has_all(text, columns) && !text.contains(" more ") && !text.contains("no room")
    });
    terminal.quit();
}
