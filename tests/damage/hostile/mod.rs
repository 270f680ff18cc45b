//! What a user may leave where another one with more rights looks: each command that reads it ends soon, in little memory,
//! without a signal, and opens nothing that a link leads to.
//!
//! Root reads files of the user 12345. 30 of the inputs are read, or as many as VRAMSHIM_TEST_HOSTILE says (1000: all).
//! VRAMSHIM_TEST_SEED chooses others; an input that fails is kept.

mod inputs;
mod stranger;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::lchown;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stranger::Stranger;

use support::made::Made;
use support::random::Random;
use support::{Runs, left_out};

const STRANGER: u32 = 12345;
const MOST_MEMORY: u64 = 512 << 20;
const MOST_SECONDS: u64 = 5;

/// The commands, with the input's place. `JOB` is the folder, and `TRACE` a file in it. `PID` is a process of
/// the stranger, which says that a.vraj in the folder is its journal. What begins with `OUT` is written.
const COMMANDS: [&[&str]; 20] = [
    &["why", "TRACE"],
    &["why", "JOB", "--json"],
    &["why", "JOB/a.vraj"],
    &["inspect", "JOB", "--json"],
    &["inspect", "JOB/a.vraj", "--at", "peak", "--leaks", "--top", "stack"],
    &["report", "JOB", "--json"],
    &["replay", "JOB", "--strategy", "auto_growth"],
    &["replay", "TRACE", "--strategy", "auto_growth"],
    &["import", "TRACE", "-o", "OUT.vraj", "--force"],
    &["export", "JOB", "--to", "collapsed", "-o", "-"],
    &["export", "JOB", "--to", "csv", "-o", "-"],
    &["export", "JOB", "--to", "parquet", "-o", "OUT.parquet", "--force"],
    &["export", "JOB", "--to", "perfetto", "-o", "OUT.pftrace", "--force"],
    &["export", "JOB", "--to", "torch-snapshot", "-o", "OUT.pickle", "--force"],
    &["reconcile", "JOB", "--json"],
    &["top", "--once", "JOB"],
    &["serve", "--once", "--dir", "JOB", "--accounts", "JOB"],
    &["serve", "--textfile", "OUT.prom", "--dir", "JOB", "--accounts", "JOB"],
    &["ctl", "PID", "stats"],
    &["ctl", "PID", "dump", "OUT.dump.vraj", "--force"],
];

/// The place of a decoy that tells whether it was opened.
struct Decoy {
    path: PathBuf,
    watch: fs::File,
}

impl Decoy {
    fn new(folder: &Path) -> Decoy {
        use std::os::fd::FromRawFd;
        use std::os::unix::fs::PermissionsExt;
        let path = folder.join("of-root");
        fs::write(&path, "secret").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the calls take numbers and a C string, and nothing else owns the descriptor.
        let watch = unsafe {
            let made = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
            assert!(libc::inotify_add_watch(made, name.as_ptr(), libc::IN_OPEN) >= 0);
            fs::File::from_raw_fd(made)
        };
        Decoy { path, watch }
    }

    fn was_opened(&mut self) -> bool {
        std::io::Read::read(&mut self.watch, &mut [0; 4096]).is_ok()
    }
}

fn give_away(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        lchown(entry.unwrap().path(), Some(STRANGER), Some(STRANGER)).unwrap();
    }
    lchown(folder, Some(STRANGER), Some(STRANGER)).unwrap();
}

/// Runs a command within the bounds. Returns what went wrong.
fn run(arguments: &[String]) -> Option<String> {
    let mut command = Command::new(support::program());
    command.args(arguments).stdin(Stdio::null());
    let bound = |resource, most: u64| {
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        // SAFETY: the limit outlives the call, which is safe in a forked child.
        unsafe { libc::setrlimit(resource, &limit) }
    };
    // SAFETY: the closure makes two system calls, and takes no lock and no memory.
    unsafe {
        command.pre_exec(move || {
            bound(libc::RLIMIT_DATA, MOST_MEMORY);
            bound(libc::RLIMIT_CPU, MOST_SECONDS);
            Ok(())
        });
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let all = [&*output.stdout, &output.stderr].concat();
    let acts = |letter: char| letter.is_control() && letter != '\n' || "\u{202e}\u{200f}".contains(letter);
    let text = String::from_utf8_lossy(&all);
    let wrong = match output.status.code() {
        Some(0..=100) if !text.contains(acts) => return None,
        Some(0..=100) => "a character that a terminal acts on".to_owned(),
        _ => format!("code {:?}, signal {:?}", output.status.code(), output.status.signal()),
    };
    let skipped = said.chars().count().saturating_sub(400);
    let end: String = said.chars().skip(skipped).collect();
    Some(format!("{arguments:?}: {wrong}: {end}"))
}

#[test]
fn what_a_stranger_left_costs_a_bound_and_opens_nothing() {
    let folder = tempfile::tempdir().unwrap();
    if lchown(folder.path(), Some(STRANGER), None).is_err() {
        return left_out("root's right to give files away");
    }
    let seed = std::env::var("VRAMSHIM_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    let wanted = std::env::var("VRAMSHIM_TEST_HOSTILE").map_or(30, |wanted| wanted.parse().unwrap());
    let mut random = Random::new(seed);
    let mut decoy = Decoy::new(folder.path());
    drop(fs::File::open(&decoy.path).unwrap());
    assert!(decoy.was_opened() && !decoy.was_opened());
    let inputs = inputs::all(&mut random, &decoy.path);
    let mut stranger = Stranger::start();
    let each = (inputs.len() / wanted).max(1);
    let (first, mut runs, mut wrong) = (random.below(each), 0, Vec::new());
    for (number, input) in inputs.iter().enumerate().skip(first).step_by(each) {
        let place = folder.path().join(number.to_string());
        fs::create_dir(&place).unwrap();
        input.make(&place);
        give_away(&place);
        stranger.says_its_journal_is(&place.join("a.vraj"));
        let named = |start: &str| {
            let mut files = fs::read_dir(&place).unwrap().map(|file| file.unwrap().path());
            files.find(|file| file.file_name().unwrap().to_string_lossy().starts_with(start))
        };
        let trace = named("trace");
        let before = wrong.len();
        let reads = |word: &str| word.starts_with(input.read_as) || word == "PID" && input.read_as == "JOB";
        for command in COMMANDS
            .iter()
            .filter(|command| input.read_as == "any" || command.iter().any(|word| reads(word)))
        {
            let file = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
            let arguments: Option<Vec<String>> = command
                .iter()
                .map(|word| match *word {
                    "TRACE" => file(&trace),
                    "PID" => Some(stranger.pid().to_string()),
                    _ if word.starts_with("OUT") => Some(folder.path().join(word).display().to_string()),
                    _ => Some(word.replace("JOB", place.to_str().unwrap())),
                })
                .collect();
            let Some(arguments) = arguments else { continue };
            runs += 1;
            wrong.extend(run(&arguments).map(|why| format!("{}: {why}", input.name)));
            if decoy.was_opened() {
                wrong.push(format!("{}: {arguments:?} opened a file of root", input.name));
            }
        }
        wrong[before..].iter().for_each(|why| println!("{why}"));
        if wrong.len() == before {
            fs::remove_dir_all(&place).unwrap();
        }
    }
    println!("{} inputs, {runs} runs", inputs.len().div_ceil(each));
    assert!(
        wrong.is_empty(),
        "{} of {runs}, kept in {}:\n{}",
        wrong.len(),
        folder.keep().display(),
        wrong.join("\n")
    );
}

/// What a live block costs (bytes): the bound is 256 MiB for two millions.
#[test]
fn two_million_live_blocks_take_little_memory() {
    const BLOCKS: u64 = 2_000_000;
    let folder = tempfile::tempdir().unwrap();
    let mut made = Made::new(folder.path(), 70, 0).unwrap();
    for block in 0..BLOCKS {
        made.alloc_at(0, (1 << 40) + block * 4096, 512 + block % 7 * 512, 0)
            .unwrap();
    }
    // So that what was live at the failure is looked at, too.
    made.fail(80 << 30).unwrap();
    let path = made.end(Some(0)).unwrap();
    let path = path.to_str().unwrap();
    for (arguments, mebibytes) in [
        (&["inspect", path][..], 256),
        (&["report", path, "--json"], 256),
        (&["why", path], 256),
        (&["serve", "--once", "--dir", folder.path().to_str().unwrap()], 64),
    ] {
        let limited = format!("ulimit -d {}; exec \"$0\" \"$@\"", mebibytes << 10);
        let mut command = Command::new("sh");
        let seen = command
            .args(["-c", &limited])
            .arg(support::program())
            .args(arguments)
            .printed();
        assert_eq!(seen.code, Some(0), "{arguments:?} in {mebibytes} MiB: {}", seen.said);
    }
}

/// What does not fit is named, and the others are read. What a moment keeps of freed blocks counts as live ones do.
#[test]
fn a_journal_beyond_max_memory_is_named_and_the_others_are_read() {
    const BLOCKS: u64 = 10_000;
    const OTHERS: u32 = 300;
    let folder = tempfile::tempdir().unwrap();
    for pid in 100..100 + OTHERS {
        let mut made = Made::new(folder.path(), pid, 0).unwrap();
        made.alloc(0, 512, 0).unwrap();
        made.end(Some(0)).unwrap();
    }
    let mut made = Made::new(folder.path(), 999, 0).unwrap();
    let blocks: Vec<u64> = (0..BLOCKS).map(|_| made.alloc(0, 512, 0).unwrap()).collect();
    for block in blocks {
        made.free(0, block, 512).unwrap();
    }
    let large = made.end(Some(0)).unwrap();
    let (all, large) = (folder.path().to_str().unwrap(), large.to_str().unwrap());
    let read = |arguments: &[&str]| Command::new(support::program()).args(arguments).printed();
    for (arguments, processes) in [
        (["inspect", all, "--json", "--max-memory", "1700KiB"], OTHERS),
        (["inspect", all, "--json", "--max-memory", "3MiB"], OTHERS + 1),
        (["inspect", large, "--json", "--max-memory", "1500KiB"], 1),
        (["why", large, "--json", "--max-memory", "1500KiB"], 0),
        (["why", large, "--json", "--max-memory", "2MiB"], 1),
    ] {
        let seen = read(&arguments);
        let is_left_out = seen.said.contains("--max-memory") && seen.said.contains("999-1.vraj");
        let shown: serde_json::Value = serde_json::from_str(&seen.text).unwrap_or_default();
        let list = shown["jobs"].as_array().or(shown["processes"].as_array());
        let read = list.map_or(0, Vec::len) as u32;
        let wants_all = processes == OTHERS + 1 || processes == 1;
        assert_eq!(
            (read, !is_left_out),
            (processes, wants_all),
            "{arguments:?}: {}",
            seen.said
        );
        assert_eq!(seen.code, Some(i32::from(!wants_all)), "{arguments:?}");
    }
}
