//! Damaged input of every kind that comes from outside: no panic, no hang, no overflow of a sum. Each target takes a
//! good input and damages it at random (`support::random`).
//!
//! VRAMSHIM_TEST_FUZZ sets how many inputs all targets get together, and VRAMSHIM_TEST_SEED which ones. A target whose
//! input makes it panic writes the input to a file and names it. tests/README.md says how ten million are run.

use std::cell::RefCell;
use std::ffi::OsString;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use base::units::Dialect;
use config::Config;
use journal::reader::{Journal, Stacks, TensorFile, Wanted};
use program::analysis::job::Job;
use program::replay::Trace;
use quota::file::SharedAccount;
use quota::limits::Limits;
use support::random::Random;
use support::training::{self, Plan};
use tempfile::TempDir;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// What stands between bars.
fn parts(text: &[u8]) -> Vec<Vec<u8>> {
    text.split(|byte| *byte == b'|').map(<[u8]>::to_vec).collect()
}

/// Feeds one target with its share of the inputs. `of_thousand` is the share; bars part the words.
fn feed(name: &str, of_thousand: u64, good: &[Vec<u8>], words: &[u8], mut target: impl FnMut(&[u8])) {
    let words: Vec<&[u8]> = words
        .split(|byte| *byte == b'|')
        .filter(|word| !word.is_empty())
        .collect();
    let inputs = number("VRAMSHIM_TEST_FUZZ", 50_000) * of_thousand / 1000;
    let mut random = Random::new(number("VRAMSHIM_TEST_SEED", 1));
    for input in 0..inputs {
        let mut bytes = good[random.below(good.len())].clone();
        random.damage(&mut bytes, &words);
        if catch_unwind(AssertUnwindSafe(|| target(&bytes))).is_err() {
            let path = support::scratch(&format!("fuzz-{name}"));
            std::fs::write(&path, &bytes).expect("a file");
            panic!("{name}: input {input} panics; it is in {}", path.display());
        }
    }
    println!("{name}: {inputs} inputs");
}

/// A folder in memory, because files are written for each input.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    }
    .expect("a folder")
}

fn small_journal() -> (TempDir, PathBuf) {
    let folder = folder();
    let path = folder.path().join("good.vraj");
    let plan = Plan {
        events: 40,
        annotated: true,
        out_of_memory: true,
        ..Plan::default()
    };
    training::write(&path, &plan).expect("a journal");
    (folder, path)
}

fn exported(format: &str) -> Vec<u8> {
    let (folder, path) = small_journal();
    let out = folder.path().join("out");
    support::vramshim_with(&["export", "--to", format, "-o"], [&out, &path]).ok();
    std::fs::read(out).expect("an export")
}

#[test]
fn journals() {
    let (folder, good) = small_journal();
    let path = folder.path().join("damaged.vraj");
    feed("journals", 60, &[std::fs::read(good).unwrap()], b"", |bytes| {
        std::fs::write(&path, bytes).unwrap();
        if let Ok(journal) = Journal::open(&path) {
            let _ = (journal.state(), journal.lost(), journal.alive_ns(), journal.ended_ns());
            if let Ok(job) = Job::load(&path, |_, _| {}) {
                let _ = (job.devices().len(), job.host_memory().is_some(), job.title());
                crate::damage::sweep::check_sums(&job);
            }
        }
    });
}

/// Slots of a journal that is read again while it changes.
#[test]
fn growing_journals() {
    let (folder, good) = small_journal();
    let path = folder.path().join("growing.vraj");
    let whole = std::fs::read(good).unwrap();
    std::fs::write(&path, &whole).unwrap();
    let journal = RefCell::new(Journal::open(&path).expect("a journal"));
    feed("growing journals", 20, &[whole], b"", |bytes| {
        std::fs::write(&path, bytes).unwrap();
        let mut journal = journal.borrow_mut();
        let _ = journal.refresh();
        assert!(journal.records().count() <= bytes.len() / 64 + 1);
    });
}

#[test]
fn stacks() {
    let (folder, good) = small_journal();
    let bytes = std::fs::read(Stacks::path(&good)).unwrap();
    let journal = folder.path().join("damaged.vraj");
    let words = b"\t|\n|T\t|M\t|F\t|\\n|4294967295|-1";
    feed("stacks", 60, &[bytes], words, |bytes| {
        std::fs::write(Stacks::path(&journal), bytes).unwrap();
        if let Ok(Some(stacks)) = Stacks::beside(&journal) {
            for number in [0, 1, 13, 99, u32::MAX] {
                let _ = (stacks.get(number).is_some(), stacks.text(number.into()));
            }
            assert_eq!(stacks.places().count(), stacks.places().count());
        }
    });
}

#[test]
fn tensors() {
    let good = b"vramshim-pytorch\t1\t7\t2.12.0\nF\t1\ttrain.py\t10\tmain\nS\t1\t1\n\
                 C\texpandable_segments\tFalse\nA\t100\t0\t4096\t512\t0\t1\t512\t0.0\nF\t200\t0\t4096\nB\t200\t0\t-\t0\t0\t1\n";
    let folder = folder();
    let path = folder.path().join("damaged.tensors");
    feed("tensors", 30, &[good.to_vec()], b"\t|\n|A\t|S\t", |bytes| {
        std::fs::write(&path, bytes).unwrap();
        if let Ok(Some(mut file)) = TensorFile::open(&path, Wanted::All) {
            while let Ok(Some(_)) = file.next_line() {}
        }
    });
}

#[test]
fn rmm_logs() {
    let folder = folder();
    let path = folder.path().join("damaged.csv");
    let words = b"\xef\xbb\xbf|\xff\xfe|\r\n|\0|\"allocate\"|,|\n|\"|allocate|free|allocate failure|0xffffffffffffffff\
                  |18446744073709551616|23:59:59:999999";
    let by_hand = b"Thread,Time,Action,Pointer,Size,Stream\n1,00:00:01:000000,allocate,0x7f00,4096,0\n\
                    1,00:00:02:000000,free,0x7f00,4096,0\n1,00:00:03:000000,allocate failure,0x0,99,0\n";
    feed("RMM logs", 60, &[exported("csv"), by_hand.to_vec()], words, |bytes| {
        std::fs::write(&path, bytes).unwrap();
        let _ = Trace::load(&path, None);
    });
}

#[test]
fn snapshots() {
    let folder = folder();
    let path = folder.path().join("damaged.pickle");
    let words = b"\x8b\xff\xff\xff\x7f|\x8a\x10|2|\x94|r\xff\xff\xff\xff|\x85|1|cos\nsystem\n|I-99999999999999999999\n|V\\uD800\n\
                  |}|]|(|e|u|h\0|j\xff\xff\xff\xff|\x8a\xff|\x8c\xff|X\xff\xff\xff\x7f";
    feed("snapshots", 40, &[exported("torch-snapshot")], words, |bytes| {
        std::fs::write(&path, bytes).unwrap();
        for device in [None, Some(0), Some(127)] {
            let _ = Trace::load(&path, device);
        }
    });
}

#[test]
fn limits() {
    let good = parts(b"8GiB|0=8GiB,1=50%|GPU-51585f66-6d74-7b82-8990-979ea5acb3ba=1024MiB|0:10g;1:max|100%|1.5GiB");
    feed(
        "limits",
        330,
        &good,
        b"GiB|Gi|G|m|e9|%|=|,|GPU-|99999999999999999999|1e400|-1",
        |bytes| {
            let text = String::from_utf8_lossy(bytes);
            use Dialect::{HamiCore, Kubernetes, Own, VgpuManager};
            for dialect in [Own, Kubernetes, HamiCore, VgpuManager] {
                let limits = Limits::parse_in(dialect, &text).unwrap_or_default();
                for number in [None, Some(0), Some(u32::MAX)] {
                    let _ = limits.of(number, "GPU-51585f66-6d74-7b82-8990-979ea5acb3ba", u64::MAX);
                }
                let _ = limits.names().len();
            }
        },
    );
}

/// One variable at a time has a damaged value.
#[test]
fn settings() {
    use std::os::unix::ffi::OsStringExt;
    let good = parts(b"1|0|64|auto_growth|5ms|2GiB|/tmp|0=1GiB|both:16|0.92|error|host.example");
    let mut turn = 0;
    feed(
        "settings",
        200,
        &good,
        b"MiB|ms|,|=|-|18446744073709551615|\xff",
        |bytes| {
            turn = (turn + 1) % config::VARIABLES.len();
            let chosen = config::VARIABLES[turn].name;
            let (_, errors) = Config::read(|name| (name == chosen).then(|| OsString::from_vec(bytes.to_vec())));
            errors.iter().for_each(|error| assert!(!error.to_string().is_empty()));
        },
    );
}

/// The bytes of an account change under a process that uses it.
#[test]
fn accounts() {
    let folder = folder();
    let uuid = [7; 16];
    let account = SharedAccount::open(folder.path(), uuid).expect("an account");
    let mut seat = account.take_seat().expect("a seat");
    let size = std::fs::metadata(&account.path).unwrap().len();
    let file = std::fs::File::options().write(true).open(&account.path).unwrap();
    // Behind the head of the file: the words of the account and of the first seats.
    let good: Vec<u8> = (0..2048).map(|byte| if byte % 64 == 0 { 1 } else { 0 }).collect();
    let mut turn = 0;
    feed("accounts", 60, &[good], b"", |bytes| {
        let at = [48, 64, 128, 4096][turn % 4];
        turn += 1;
        let bytes = &bytes[..bytes.len().min((size - at) as usize)];
        file.write_all_at(bytes, at).unwrap();
        let _ = account.account().take(&mut seat, 4096, 1 << 40);
        account.account().give(&mut seat, 4096);
        let _ = (account.account().used(), account.account().held(turn % 2048));
        if turn % 16 == 0 {
            account.reap();
            let _ = account.holders();
        }
    });
}

/// The file of an account is damaged before it is opened.
#[test]
fn account_files() {
    let folder = folder();
    let uuid = [7; 16];
    let account = SharedAccount::open(folder.path(), uuid).expect("an account");
    let path = account.path.clone();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let head: Vec<u8> = std::fs::read(&path).unwrap()[..64].to_vec();
    let mut opened = 0;
    feed("account files", 40, &[head], b"", |bytes| {
        let bytes = &bytes[..bytes.len().min(64)];
        file.write_all_at(bytes, 0).unwrap();
        // An account stays mapped as long as the process, and a process may have 65530 mappings.
        if opened < 10_000 {
            opened += u32::from(SharedAccount::find(folder.path(), uuid).is_ok());
        }
    });
}
