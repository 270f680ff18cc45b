//! Journals with right checksums whose records say what no job does: each command and each export ends by itself,
//! without a signal and without a panic. The records are those of a small job, with some fields set to extremes. Of some
//! journals any bytes are damaged besides.
//!
//! `VRAMSHIM_TEST_SEED` chooses other journals, and `VRAMSHIM_TEST_DAMAGE=1000` makes that many. A journal that fails
//! stays in `target/tmp`.

use std::fs;
use std::path::{Path, PathBuf};

use journal::format::Device;
use journal::format::RawRecord;
use journal::writer::{About, PastJournal};
use program::analysis::job::Job;
use support::random::Random;

use super::{HEADER, SLOT, journal, run};

/// A number at a limit: a power of two or a neighbour of one. Those of 2^64, which is 0 here, are the largest numbers.
fn extreme(random: &mut Random) -> u64 {
    let power: u64 = [0, 1 << 31, 1 << 32, 1 << 50, 1 << 56, 1 << 63][random.below(6)];
    let below: u64 = [0, 1, 4097, u64::MAX][random.below(4)];
    power.wrapping_sub(below)
}

/// Where a record has the fields that are set. The time, which has offset 0, is passed by itself.
const FIELDS: [usize; 12] = [8, 16, 24, 32, 40, 44, 48, 50, 52, 53, 54, 55];

/// The commands, and their arguments after the journal. `OUT` is a file.
pub const COMMANDS: &[(&str, &str)] = &[
    ("inspect", ""),
    ("inspect", "--json"),
    ("inspect", "--top stack --leaks --growth"),
    ("inspect", "--at oom --json"),
    ("why", ""),
    ("why", "--json"),
    ("reconcile", ""),
    ("report", "--json"),
    ("report", "--force -o OUT"),
    ("replay", ""),
    ("top", "--once --json"),
    ("export", "--force -o OUT --to torch-snapshot"),
    ("export", "--force -o OUT --to torch-snapshot --at peak"),
    ("export", "--force -o OUT --to perfetto"),
    ("export", "--force -o OUT --to parquet"),
    ("export", "--force -o OUT --to csv"),
    ("export", "--force -o OUT --to collapsed"),
];

pub fn with_out<'a>(arguments: &'a str, out: &'a Path) -> Vec<&'a str> {
    let out = out.to_str().unwrap();
    let named = |argument| if argument == "OUT" { out } else { argument };
    arguments.split_whitespace().map(named).collect()
}

fn hostile(path: &Path, whole: &[u8], random: &mut Random) {
    let devices = [0, 1, -1, i32::MAX].map(|ordinal| Device {
        ordinal,
        total_memory: extreme(random),
        limit: Some(extreme(random)).filter(|_| random.below(3) == 0),
        ..Device::default()
    });
    let about = About {
        pid: 7,
        wall_start_ns: [0, 1_790_000_000_000_000_000, u64::MAX][random.below(3)],
        strategy: "auto_growth".into(),
        environment: b"VRAMSHIM_STACKS=python".to_vec(),
        software: b"framework=PyTorch 2.12.0".to_vec(),
        ..About::default()
    };
    let mut past = PastJournal::create(path, &about, &devices).unwrap();
    // Some journals have little damage, and some hardly anything else.
    let rare = [3, 10, 100][random.below(3)];
    let mut push = |bytes: &[u8], time_ns: u64| {
        let mut record: [u8; 56] = bytes.try_into().unwrap();
        let tid = u32::from_le_bytes(record[40..44].try_into().unwrap());
        record[..8].fill(0);
        past.push(time_ns, tid, RawRecord::from_bytes(&record)).unwrap();
    };
    for slot in whole[HEADER..].chunks_exact(SLOT) {
        let mut record = slot[8..].to_vec();
        let mut time_ns = u64::from_le_bytes(record[..8].try_into().unwrap());
        while random.below(rare) == 0 {
            let at = FIELDS[random.below(FIELDS.len())];
            let length = match at {
                8..40 => 8,
                40..48 => 4,
                48..52 => 2,
                _ => 1,
            };
            let number = match length {
                // Kinds and classes are small numbers.
                1 if random.below(4) > 0 => random.below(17) as u64,
                2 if random.below(2) == 0 => random.below(35) as u64,
                _ => extreme(random),
            };
            record[at..at + length].copy_from_slice(&number.to_le_bytes()[..length]);
        }
        if random.below(rare * 4) == 0 {
            time_ns = extreme(random);
        }
        for _ in 0..1 + usize::from(random.below(20) == 0) {
            push(&record, time_ns);
        }
    }
    past.finish((random.below(2) == 0).then(|| (1, extreme(random))))
        .unwrap();
}

/// What holds of the sums, whatever the records say.
pub fn check_sums(job: &Job) {
    for device in job.ledger.devices.values() {
        let (free, reserved) = (device.free(), device.all.reserved);
        assert!(free.largest <= free.bytes && (0.0..=1.0).contains(&free.fragmentation()));
        assert!(reserved.current <= reserved.peak);
    }
    let _ = (job.ledger.live(), job.ledger.anomalies.total());
}

fn tensors(random: &mut Random) -> String {
    let mut text = "vramshim-pytorch\t1\t7\t2.12.0\nT\t0\ttrain.py\t7\tstep\n".to_owned();
    for line in 0..60u64 {
        let mut fields = [1_790_000_000_000_000 + line, line % 2, 4096 * (line % 16), 2048, 0, 0];
        while random.below(3) == 0 {
            fields[random.below(6)] = extreme(random);
        }
        let fields: String = fields.iter().map(|field| format!("\t{field}")).collect();
        text += &format!("{}{fields}\n", ["A", "A", "F", "S", "U", "O", "D"][random.below(7)]);
    }
    text
}

fn kept(path: &Path, seed: u64) -> PathBuf {
    let kept = support::scratch(&format!("sweep-{seed}.vraj"));
    for extension in ["vraj", "stacks", "tensors"] {
        let _ = fs::copy(path.with_extension(extension), kept.with_extension(extension));
    }
    kept
}

#[test]
fn no_journal_makes_a_command_panic() {
    let folder = tempfile::tempdir().unwrap();
    let (whole_path, whole) = journal(folder.path(), 120);
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse::<u64>().expect("a number"));
    let (begin, count) = (number("VRAMSHIM_TEST_SEED", 1), number("VRAMSHIM_TEST_DAMAGE", 60));
    println!("seeds {begin} to {}", begin + count - 1);
    let path = folder.path().join("hostile.vraj");
    let out = folder.path().join("out");
    fs::copy(whole_path.with_extension("stacks"), path.with_extension("stacks")).unwrap();
    for seed in begin..begin + count {
        let mut random = Random::new(seed);
        let _ = fs::remove_file(&path);
        hostile(&path, &whole, &mut random);
        if random.below(4) == 0 {
            let mut bytes = fs::read(&path).unwrap();
            random.damage(&mut bytes, &[]);
            fs::write(&path, bytes).unwrap();
        }
        let _ = fs::remove_file(path.with_extension("tensors"));
        if random.below(3) == 0 {
            fs::write(path.with_extension("tensors"), tensors(&mut random)).unwrap();
        }
        let sums = std::panic::catch_unwind(|| Job::load(&path, |_, _| {}).ok().as_ref().map(check_sums));
        assert!(sums.is_ok(), "seed {seed}: the journal is {:?}", kept(&path, seed));
        for (name, arguments) in COMMANDS {
            let arguments = with_out(arguments, &out);
            let context = format!("seed {seed}: {name}");
            let ended = std::panic::catch_unwind(|| run(name, &path, &arguments, &context));
            assert!(ended.is_ok(), "{context}: the journal is {:?}", kept(&path, seed));
        }
    }
}
