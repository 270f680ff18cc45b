//! What a user may leave where another one with more rights looks: each command that reads it ends soon, in little memory,
//! without a signal, and opens nothing that a link leads to.
//!
//! Root reads files of the user 12345. A sample is read, and all with VRAMSHIM_TEST_HOSTILE=all. VRAMSHIM_TEST_SEED chooses
//! others; an input that fails stays in `target/tmp`.

use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{lchown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use support::made::Made;
use support::random::Random;
use support::{Runs, left_out};

use super::journal;

const STRANGER: u32 = 12345;
const MOST_MEMORY: u64 = 512 << 20;
const MOST_SECONDS: u64 = 5;
const BUILD_ID: &str = "0102030405060708";

/// The commands, with the input's place. `JOB` is the folder, `TRACE` and `TEXT` are files in it.
const COMMANDS: [&[&str]; 14] = [
    &["why", "JOB", "--json"],
    &["why", "JOB/a.vraj"],
    &["inspect", "JOB", "--json"],
    &["inspect", "JOB/a.vraj", "--at", "peak", "--leaks", "--top", "stack"],
    &["report", "JOB", "--json"],
    &["replay", "JOB", "--strategy", "auto_growth"],
    &["replay", "TRACE", "--strategy", "auto_growth"],
    &["import", "TRACE", "-o", "OUT", "--force"],
    &["export", "JOB", "--to", "collapsed", "-o", "-"],
    &["export", "JOB", "--to", "csv", "-o", "-"],
    &["reconcile", "JOB", "--json"],
    &["top", "--once", "JOB"],
    &["serve", "--once", "--dir", "JOB", "--accounts", "JOB"],
    &["frames", "TEXT"],
];

struct Input {
    name: String,
    /// Which of `COMMANDS` read it: those with this word.
    read_as: &'static str,
    make: Box<dyn Fn(&Path)>,
}

/// An ELF file with a build id, symbols, and sections that say what they like of themselves.
fn elf(symbols: &[String], claimed: Option<u64>, debug: Option<u64>) -> Vec<u8> {
    let mut strings = vec![0];
    let mut table = vec![0; 24];
    for (number, symbol) in symbols.iter().enumerate() {
        table.extend((strings.len() as u32).to_le_bytes());
        table.extend([0x12, 0, 1, 0]);
        table.extend((0x1000 + 16 * number as u64).to_le_bytes());
        table.extend(16u64.to_le_bytes());
        strings.extend(symbol.as_bytes());
        strings.push(0);
    }
    let mut note = Vec::new();
    for word in [4u32, 8, 3] {
        note.extend(word.to_le_bytes());
    }
    note.extend(b"GNU\0\x01\x02\x03\x04\x05\x06\x07\x08");
    let names = b"\0.note.gnu.build-id\0.symtab\0.strtab\0.debug_info\0.shstrtab\0";
    // The head of compressed bytes: zlib, the expanded size, the alignment.
    let head = |bytes: u64| [1u64.to_le_bytes(), bytes.to_le_bytes(), 1u64.to_le_bytes()].concat();
    let zeros = vec![0; 8 << 20];
    let mut zipped = flate2::write::ZlibEncoder::new(Vec::new(), Compression::fast());
    zipped.write_all(&zeros).unwrap();
    let debug_bytes = debug.map_or(Vec::new(), |bytes| [head(bytes), zipped.finish().unwrap()].concat());
    // Name, kind, flags, bytes, linked section, size of an entry.
    let sections: [(u32, u32, u64, &[u8], u32, u64); 5] = [
        (1, 7, 2, &note, 0, 0),
        (20, 2, 0, &table, 3, 24),
        (28, 3, 0, &strings, 0, 0),
        (36, 1, 0x800, &debug_bytes, 0, 0),
        (48, 3, 0, names, 0, 0),
    ];
    let mut file = vec![0; 64];
    let mut heads = vec![0; 64];
    for (name, kind, flags, bytes, link, entry) in sections {
        let at = file.len() as u64;
        file.extend(bytes);
        let size = claimed.filter(|_| kind == 2).unwrap_or(bytes.len() as u64);
        heads.extend([name.to_le_bytes(), kind.to_le_bytes()].concat());
        for word in [flags, 0, at, size] {
            heads.extend(word.to_le_bytes());
        }
        heads.extend([link.to_le_bytes(), 1u32.to_le_bytes()].concat());
        heads.extend([1u64.to_le_bytes(), entry.to_le_bytes()].concat());
    }
    let start = file.len() as u64;
    file.extend(heads);
    file[..20].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0");
    file[20] = 1;
    file[40..48].copy_from_slice(&start.to_le_bytes());
    file[52..54].copy_from_slice(&64u16.to_le_bytes());
    file[58..64].copy_from_slice(&[64, 0, 6, 0, 5, 0]);
    file
}

/// Writes a small journal `a.vraj` whose frames lie in `module`, and a report of the host guard that names it.
fn with_frames(folder: &Path, module: &Path, count: u64) {
    let (path, _) = journal(folder, 60);
    fs::rename(path, folder.join("a.vraj")).unwrap();
    let mut stacks = format!("vramshim-stacks\t1\t4000\nM\t1\t{}\t{BUILD_ID}\n", module.display());
    let mut text = String::new();
    for number in 1..=count {
        let offset = 0x1000 + 16 * number;
        writeln!(stacks, "A\t{number}\t1\t{offset:x}\nT\t{number}\tnative\t{number}").unwrap();
        writeln!(text, "  {}+0x{offset:x} [{BUILD_ID}]", module.display()).unwrap();
    }
    fs::write(folder.join("a.stacks"), stacks).unwrap();
    fs::write(folder.join("text"), text).unwrap();
}

fn symbols() -> Vec<Input> {
    let input = |name: String, symbols: Vec<String>, claimed, debug| Input {
        name: format!("symbols, {name}"),
        read_as: "any",
        make: Box::new(move |folder| {
            let module = folder.join("module.so");
            fs::write(&module, elf(&symbols, claimed, debug)).unwrap();
            with_frames(folder, &module, symbols.len().min(200) as u64);
        }),
    };
    let digits = |number: usize| match number {
        0 => String::new(),
        _ => char::from_digit((number as u32 - 1) % 36, 36)
            .unwrap()
            .to_ascii_uppercase()
            .to_string(),
    };
    let mut all = Vec::new();
    for length in [8, 20, 30, 36, 200, 1000, 5000] {
        let pairs: String = (0..length)
            .map(|pair| format!("S_IS{0}_S{0}_E", digits(pair % 37)))
            .collect();
        all.push(input(
            format!("{length} pairs"),
            vec![format!("_Z1fSt4pairIiiE{pairs}"); 100],
            None,
            None,
        ));
        all.push(input(
            format!("{length} types"),
            vec![format!("_RNvC1a{}1b", "I".repeat(length)); 100],
            None,
            None,
        ));
        all.push(input(
            format!("{length} pointers"),
            vec![format!("_Z1f{}i", "P".repeat(length)); 100],
            None,
            None,
        ));
        all.push(input(
            format!("{length} templates"),
            vec![format!("_Z1f{}", "N1aI".repeat(length)); 100],
            None,
            None,
        ));
    }
    for bytes in [0, 1, 1 << 20, 1 << 27, 1 << 32, 1 << 62, u64::MAX - 7, u64::MAX] {
        all.push(input(
            format!("a table of {bytes} bytes"),
            vec!["f".into()],
            Some(bytes),
            None,
        ));
        all.push(input(
            format!("{bytes} bytes of lines"),
            vec!["f".into()],
            None,
            Some(bytes),
        ));
    }
    all.push(input(
        "200,000 of them".into(),
        vec!["_ZN2at5emptyEv".into(); 200_000],
        None,
        None,
    ));
    all.push(input("a long one".into(), vec!["é".repeat(8 << 20)], None, None));
    all
}

fn zipped(write: impl Fn(&mut GzEncoder<Vec<u8>>)) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::best());
    write(&mut out);
    out.finish().unwrap()
}

fn traces(random: &mut Random) -> Vec<Input> {
    const HEAD: &str = "Thread,Time,Action,Pointer,Size,Stream\n";
    const ROW: &str = "1,10:00:00:000000,allocate,0x7f0000000000,512,0x0\n";
    let input = |name: String, ending: &'static str, bytes: Vec<u8>| Input {
        name: format!("trace, {name}"),
        read_as: "TRACE",
        make: Box::new(move |folder| {
            let path = folder.join("trace");
            fs::write(path.with_extension(ending), &bytes).unwrap();
        }),
    };
    let mut all = Vec::new();
    for rows in [1, 1000, 1 << 20] {
        all.push(input(
            format!("{rows} rows in gzip"),
            "csv.gz",
            zipped(|out| {
                out.write_all(HEAD.as_bytes()).unwrap();
                (0..rows).for_each(|_| out.write_all(ROW.as_bytes()).unwrap());
            }),
        ));
    }
    for bytes in [1 << 16, 1 << 24, 1 << 28] {
        for byte in [0, b'0', b'\n', b',', b'"'] {
            let piece = vec![byte; 1 << 16];
            all.push(input(
                format!("{bytes} times {byte} in gzip"),
                "csv.gz",
                zipped(|out| {
                    out.write_all(HEAD.as_bytes()).unwrap();
                    (0..bytes >> 16).for_each(|_| out.write_all(&piece).unwrap());
                }),
            ));
        }
    }
    for byte in [0, b'"', b',', b'\n', b'9', 0xff] {
        all.push(input(
            format!("32 MiB of {byte}"),
            "csv",
            [HEAD.as_bytes(), &vec![byte; 32 << 20]].concat(),
        ));
    }
    for (name, opcodes) in [
        ("lists", &b"]"[..]),
        ("marks", b"("),
        ("memos", b"N\x94"),
        ("copies", b"]2"),
        ("tuples", b"(t"),
        ("long numbers", b"\x8b\xff\xff\xff\x7f"),
        ("long texts", b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f"),
        ("long bytes", b"B\xff\xff\xff\xff"),
        ("frames", b"\x95\xff\xff\xff\xff\xff\xff\xff\xff"),
        ("appends", b"]h\0a"),
        ("far memos", b"Nr\xff\xff\xff\xff"),
    ] {
        for times in [1, 1000, 1 << 20] {
            all.push(input(
                format!("{times} {name}"),
                "pickle",
                [b"\x80\x04", &*opcodes.repeat(times), b"."].concat(),
            ));
        }
    }
    let good = [HEAD.as_bytes(), ROW.as_bytes()].concat();
    let good_zip = zipped(|out| out.write_all(&good).unwrap());
    for number in 0..80 {
        let (from, ending) = if number % 2 == 0 {
            (&good, "csv")
        } else {
            (&good_zip, "csv.gz")
        };
        let mut bytes = from.clone();
        random.damage(&mut bytes, &[b"18446744073709551615", b"-", b"allocate", b"\0"]);
        all.push(input(format!("damaged {number}"), ending, bytes));
    }
    all
}

/// What may have the name of a journal, or of a file beside one.
fn kinds(decoy: &Path) -> Vec<Input> {
    let names = [
        "a.vraj",
        "a.stacks",
        "a.tensors",
        "b.vraj",
        "trace.csv",
        "trace.pickle",
        "text",
        "GPU-0.account",
    ];
    let fifo = |path: &Path| {
        let made = Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    };
    let device = |path: &Path| drop(Command::new("mknod").arg(path).args(["c", "1", "5"]).status());
    let socket = |path: &Path| drop(UnixListener::bind(path).unwrap());
    let loops = |path: &Path| symlink(path.file_name().unwrap(), path).unwrap();
    let to = |target: PathBuf| move |path: &Path| symlink(&target, path).unwrap();
    let holes = |path: &Path| fs::File::create(path).unwrap().set_len(1 << 40).unwrap();
    let folder = |path: &Path| fs::create_dir(path).unwrap();
    let makers: Vec<(&str, std::rc::Rc<dyn Fn(&Path)>)> = vec![
        ("a pipe", std::rc::Rc::new(fifo)),
        ("a device", std::rc::Rc::new(device)),
        ("a socket", std::rc::Rc::new(socket)),
        ("a link to itself", std::rc::Rc::new(loops)),
        ("a link to a file of root", std::rc::Rc::new(to(decoy.to_owned()))),
        ("a link to nothing", std::rc::Rc::new(to("/nothing".into()))),
        ("a link to a device", std::rc::Rc::new(to("/dev/zero".into()))),
        ("holes", std::rc::Rc::new(holes)),
        ("a folder", std::rc::Rc::new(folder)),
    ];
    let mut all = Vec::new();
    for name in names {
        for (what, make) in &makers {
            let make = make.clone();
            all.push(Input {
                name: format!("{name} is {what}"),
                read_as: "any",
                make: Box::new(move |folder| {
                    with_frames(folder, Path::new("/bin/sh"), 3);
                    let path = folder.join(name);
                    let _ = fs::remove_file(&path);
                    make(&path);
                }),
            });
        }
    }
    for target in ["device", "pipe", "decoy"] {
        let decoy = decoy.to_owned();
        all.push(Input {
            name: format!("a module that is a {target}"),
            read_as: "any",
            make: Box::new(move |folder| {
                let module = folder.join("module.so");
                match target {
                    "device" => symlink("/dev/zero", &module).unwrap(),
                    "pipe" => fifo(&module),
                    _ => symlink(&decoy, &module).unwrap(),
                }
                with_frames(folder, &module, 3);
            }),
        });
    }
    all
}

fn folders(random: &mut Random) -> Vec<Input> {
    let mut all: Vec<Input> = Vec::new();
    let mut add = |name: String, make: Box<dyn Fn(&Path)>| {
        all.push(Input {
            name,
            read_as: "JOB",
            make,
        })
    };
    for count in [100, 66_000] {
        add(
            format!("{count} empty journals"),
            Box::new(move |folder| {
                for number in 0..count {
                    fs::File::create(folder.join(format!("{number}.vraj"))).unwrap();
                }
            }),
        );
    }
    for (number, name) in [
        "\x1b]0;x\x07",
        "\u{202e}jarv",
        "\n",
        "\r",
        "\u{200f}",
        "\u{9b}31m",
        "%n%s",
        "'\";`id`",
        "-o",
    ]
    .iter()
    .enumerate()
    {
        let letters = name.to_string();
        add(
            format!("a name with control characters {number}"),
            Box::new(move |folder| {
                let (path, _) = journal(folder, 60);
                fs::rename(path, folder.join(format!("{letters}.vraj"))).unwrap();
                fs::write(folder.join(std::ffi::OsStr::from_bytes(b"\xff.vraj")), "x").unwrap();
            }),
        );
    }
    let whole = tempfile::tempdir().unwrap();
    let good = journal(whole.path(), 300).1;
    for number in 0..120 {
        let mut bytes = good.clone();
        random.damage(&mut bytes, &[&[0xff; 8], &[0; 8], b"\0\0\0\x80"]);
        add(
            format!("a damaged journal {number}"),
            Box::new(move |folder| fs::write(folder.join("a.vraj"), &bytes).unwrap()),
        );
    }
    for (ending, head) in [
        ("stacks", "vramshim-stacks\t1\t4000\n"),
        ("tensors", "vramshim-pytorch\t1\t4000\t2.12.0\n"),
    ] {
        for (what, line) in [
            ("long lines", format!("N\t1\t{}\n", "x".repeat(1 << 16))),
            ("names", "N\t7\tx\n".to_owned()),
            (
                "frames",
                "P\t5\tx\t1\ty\nT\t1\tpython\t5\t5\t5\t5\t5\t5\t5\t5\n".to_owned(),
            ),
            ("deep stacks", format!("T\t1\tpython{}\n", "\t5".repeat(2000))),
            ("allocations", "A\t100\t0\t4096\t512\t0\t1\t512\t0.0\n".to_owned()),
            ("texts", format!("F\t1\t{}\t10\tmain\n", "y".repeat(4000))),
        ] {
            for bytes in [1 << 16, 64 << 20] {
                let line = line.clone();
                add(
                    format!("{bytes} bytes of {what} in .{ending}"),
                    Box::new(move |folder| {
                        with_frames(folder, Path::new("/bin/sh"), 3);
                        // Each number is another one.
                        let mut text = head.to_owned();
                        let mut number = 0;
                        while text.len() < bytes {
                            number += 1;
                            text += &line.replacen("\t1\t", &format!("\t{number}\t"), 1).replacen(
                                "\t7\t",
                                &format!("\t{number}\t"),
                                1,
                            );
                        }
                        fs::write(folder.join("a").with_extension(ending), text).unwrap();
                    }),
                );
            }
        }
    }
    all
}

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
        Some(0..=100) if arguments[0] == "frames" || !text.contains(acts) => return None,
        Some(0..=100) => "a character that a terminal acts on".to_owned(),
        _ => format!("code {:?}, signal {:?}", output.status.code(), output.status.signal()),
    };
    Some(format!(
        "{arguments:?}: {wrong}: {}",
        said.chars()
            .rev()
            .take(400)
            .collect::<Vec<_>>()
            .iter()
            .rev()
            .collect::<String>()
    ))
}

#[test]
fn what_a_stranger_left_costs_a_bound_and_opens_nothing() {
    let folder = tempfile::tempdir().unwrap();
    if lchown(folder.path(), Some(STRANGER), None).is_err() {
        return left_out("root's right to give files away");
    }
    let seed = std::env::var("VRAMSHIM_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    let all = std::env::var("VRAMSHIM_TEST_HOSTILE").is_ok_and(|which| which == "all");
    let mut random = Random::new(seed);
    let mut decoy = Decoy::new(folder.path());
    let inputs = [symbols(), traces(&mut random), kinds(&decoy.path), folders(&mut random)];
    let inputs: Vec<Input> = inputs.into_iter().flatten().collect();
    let each = if all { 1 } else { inputs.len() / 30 };
    let (first, mut runs, mut wrong) = (random.below(each), 0, Vec::new());
    for (number, input) in inputs.iter().enumerate().skip(first).step_by(each) {
        let place = folder.path().join(number.to_string());
        fs::create_dir(&place).unwrap();
        (input.make)(&place);
        give_away(&place);
        let named = |start: &str| {
            let mut files = fs::read_dir(&place).unwrap().map(|file| file.unwrap().path());
            files.find(|file| file.file_name().unwrap().to_string_lossy().starts_with(start))
        };
        let (trace, text) = (named("trace"), named("text"));
        let before = wrong.len();
        for command in COMMANDS
            .iter()
            .filter(|command| input.read_as == "any" || command[1].starts_with(input.read_as))
        {
            let file = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
            let arguments: Option<Vec<String>> = command
                .iter()
                .map(|word| match *word {
                    "TRACE" => file(&trace),
                    "TEXT" => file(&text),
                    "OUT" => Some(folder.path().join("out.vraj").display().to_string()),
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
    let path = made.end(Some(0)).unwrap();
    let path = path.to_str().unwrap();
    for (arguments, mebibytes) in [
        (&["inspect", path][..], 256),
        (&["report", path, "--json"], 256),
        (&["why", path], 384),
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
