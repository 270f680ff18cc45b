//! The inputs: what lies in a folder, by name.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use support::random::Random;

use super::super::journal;

#[derive(Clone)]
pub enum Is {
    Bytes(Vec<u8>),
    /// A beginning, a piece, and how often the piece follows. In each copy `@` is the copy's number.
    Repeated(&'static str, String, usize),
    /// The same as gzip.
    Zipped(&'static str, String, usize),
    /// A module with these symbols, and what it says of the bytes of its table and of its lines.
    Module(String, usize, Option<u64>, Option<u64>),
    Link(PathBuf),
    Pipe,
    Device,
    Socket,
    Holes,
    Folder,
    /// So many empty journals.
    Journals(usize),
}

pub struct Input {
    pub name: String,
    /// Which commands read it: those with this word. `any`: all.
    pub read_as: &'static str,
    pub file: &'static str,
    pub is: Is,
}

const BUILD_ID: &str = "0102030405060708";
const STACKS: &str = "vramshim-stacks\t1\t4000\n";
const TENSORS: &str = "vramshim-pytorch\t1\t4000\t2.12.0\n";
const LOG: &str = "Thread,Time,Action,Pointer,Size,Stream\n";
const ROW: &str = "1,10:00:00:000000,allocate,0x7f0000000000,512,0x0\n";

fn repeated(out: &mut impl Write, (head, piece, times): (&str, &str, usize)) -> io::Result<()> {
    out.write_all(head.as_bytes())?;
    let numbered = piece.contains('@');
    (0..times).try_for_each(|copy| match numbered {
        true => out.write_all(piece.replace('@', &copy.to_string()).as_bytes()),
        false => out.write_all(piece.as_bytes()),
    })
}

/// An ELF file with a build id, symbols, and sections that say what they like of themselves.
fn elf(symbol: &str, count: usize, claimed: Option<u64>, debug: Option<u64>) -> Vec<u8> {
    let (mut strings, mut table) = (vec![0], vec![0; 24]);
    for number in 0..count {
        let start = 0x1000 + 16 * number as u64;
        table.extend((strings.len() as u32).to_le_bytes());
        table.extend([&[0x12, 0, 1, 0][..], &start.to_le_bytes(), &16u64.to_le_bytes()].concat());
        strings.extend([symbol.as_bytes(), b"\0"].concat());
    }
    let note = b"\x04\0\0\0\x08\0\0\0\x03\0\0\0GNU\0\x01\x02\x03\x04\x05\x06\x07\x08";
    let names = b"\0.note.gnu.build-id\0.symtab\0.strtab\0.debug_info\0.shstrtab\0";
    let mut zipped = ZlibEncoder::new(Vec::new(), Compression::fast());
    zipped.write_all(&vec![0; 8 << 20]).unwrap();
    // Compressed bytes begin with zlib's number, the expanded size, and the alignment.
    let head = |bytes: u64| [1, bytes, 1].map(u64::to_le_bytes).concat();
    let lines = debug.map_or(Vec::new(), |bytes| [head(bytes), zipped.finish().unwrap()].concat());
    // Name, kind, flags, bytes, linked section, size of an entry.
    type Section<'a> = (u32, u32, u64, &'a [u8], u32, u64);
    let sections: [Section; 5] = [
        (1, 7, 2, note, 0, 0),
        (20, 2, 0, &table, 3, 24),
        (28, 3, 0, &strings, 0, 0),
        (36, 1, 0x800, &lines, 0, 0),
        (48, 3, 0, names, 0, 0),
    ];
    let (mut file, mut heads) = (vec![0; 64], vec![0; 64]);
    for (name, kind, flags, bytes, link, entry) in sections {
        let size = claimed.filter(|_| kind == 2).unwrap_or(bytes.len() as u64);
        heads.extend([name, kind].map(u32::to_le_bytes).concat());
        heads.extend([flags, 0, file.len() as u64, size].map(u64::to_le_bytes).concat());
        heads.extend([link, 1].map(u32::to_le_bytes).concat());
        heads.extend([1, entry].map(u64::to_le_bytes).concat());
        file.extend(bytes);
    }
    let start = file.len() as u64;
    file.extend(heads);
    file[..21].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01");
    file[40..48].copy_from_slice(&start.to_le_bytes());
    file[52..]
        .iter_mut()
        .zip([64, 0, 0, 0, 0, 0, 64, 0, 6, 0, 5, 0])
        .for_each(|(byte, to)| *byte = to);
    file
}

impl Input {
    /// Makes the file, in a folder that has a good journal `a.vraj` with stacks.
    pub fn make(&self, folder: &Path) {
        if !matches!(self.is, Is::Journals(_)) {
            fs::rename(journal(folder, 60).0, folder.join("a.vraj")).unwrap();
            let module = folder.join("module.so").display().to_string();
            let mut stacks = format!("{STACKS}M\t1\t{module}\t{BUILD_ID}\n");
            for number in 1..100 {
                let offset = 0x1000 + 16 * number;
                stacks += &format!("A\t{number}\t1\t{offset:x}\nT\t{number}\tnative\t{number}\n");
            }
            fs::write(folder.join("a.stacks"), stacks).unwrap();
        }
        let path = folder.join(self.file);
        let _ = fs::remove_file(&path);
        let create = || io::BufWriter::new(fs::File::create(&path).unwrap());
        let made =
            |command: &mut Command| assert!(command.arg(&path).args(["c", "1", "5"]).status().unwrap().success());
        match &self.is {
            Is::Bytes(bytes) => fs::write(&path, bytes).unwrap(),
            Is::Repeated(head, piece, times) => repeated(&mut create(), (head, piece, *times)).unwrap(),
            Is::Zipped(head, piece, times) => {
                let mut out = GzEncoder::new(create(), Compression::fast());
                repeated(&mut out, (head, piece, *times)).unwrap();
            }
            Is::Module(symbol, count, claimed, debug) => {
                fs::write(path, elf(symbol, *count, *claimed, *debug)).unwrap()
            }
            Is::Link(target) => symlink(target, path).unwrap(),
            Is::Pipe => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
            Is::Device => made(&mut Command::new("mknod")),
            Is::Socket => drop(UnixListener::bind(path).unwrap()),
            Is::Holes => create().get_ref().set_len(1 << 40).unwrap(),
            Is::Folder => fs::create_dir(path).unwrap(),
            Is::Journals(count) => {
                (0..*count).for_each(|number| fs::write(folder.join(format!("{number}.vraj")), "").unwrap())
            }
        }
    }
}

/// All inputs. `decoy`: a file of root.
pub fn all(random: &mut Random, decoy: &Path) -> Vec<Input> {
    let mut all = Vec::new();
    let mut add = |read_as, file, name: String, is| {
        all.push(Input {
            name: format!("{file}: {name}"),
            read_as,
            file,
            is,
        })
    };
    for length in [8, 20, 36, 200, 1000, 5000] {
        let digit = |pair: usize| char::from_digit(pair as u32 % 36, 36).unwrap().to_ascii_uppercase();
        let pairs: String = (0..length).map(|pair| format!("S_IS{0}_S{0}_E", digit(pair))).collect();
        for symbol in [
            format!("_Z1fSt4pairIiiE{pairs}"),
            format!("_RNvC1a{}1b", "I".repeat(length)),
            format!("_Z1f{}i", "P".repeat(length)),
            format!("_Z1f{}", "N1aI".repeat(length)),
            "é".repeat(length << 10),
        ] {
            let name = format!("{}... of {length}", symbol.chars().take(6).collect::<String>());
            add("any", "module.so", name, Is::Module(symbol, 100, None, None));
        }
    }
    for bytes in [0, 1, 1 << 20, 1 << 27, 1 << 32, 1 << 62, u64::MAX - 7, u64::MAX] {
        add(
            "any",
            "module.so",
            format!("a table of {bytes}"),
            Is::Module("f".into(), 1, Some(bytes), None),
        );
        add(
            "any",
            "module.so",
            format!("lines of {bytes}"),
            Is::Module("f".into(), 1, None, Some(bytes)),
        );
    }
    add(
        "any",
        "module.so",
        "200,000 symbols".into(),
        Is::Module("_ZN2at5emptyEv".into(), 200_000, None, None),
    );
    for times in [1, 1000, 1 << 20] {
        add(
            "TRACE",
            "trace.csv.gz",
            format!("{times} rows"),
            Is::Zipped(LOG, ROW.into(), times),
        );
        for opcodes in [
            "]",
            "(",
            "N\u{11}",
            "]2",
            "(t",
            "N\u{2}\u{7f}",
            "X\u{7f}\u{7f}\u{7f}\u{7f}",
            "]h\0a",
            "Nr\u{7f}\u{7f}\u{7f}\u{7f}",
            "(l",
            "}(d",
            "I9\n",
            "S'x'\n",
        ] {
            add(
                "TRACE",
                "trace.pickle",
                format!("{times} {opcodes:?}"),
                Is::Repeated("(lp0\n", opcodes.into(), times),
            );
        }
    }
    for piece in ["\0", "0", "\n", ",", "\"", "é", "1,"] {
        for times in [1, 256, 4096] {
            let long = piece.repeat(1 << 16);
            add(
                "TRACE",
                "trace.csv.gz",
                format!("{times} times {piece:?}"),
                Is::Zipped(LOG, long.clone(), times),
            );
            add(
                "TRACE",
                "trace.csv",
                format!("{times} times {piece:?}"),
                Is::Repeated(LOG, long, times.min(512)),
            );
        }
    }
    for file in [
        "a.vraj",
        "a.stacks",
        "a.tensors",
        "b.vraj",
        "module.so",
        "trace.csv",
        "trace.pickle",
        "GPU-0.account",
    ] {
        let link = |target: &str| Is::Link(target.into());
        for (name, is) in [
            ("a pipe", Is::Pipe),
            ("a device", Is::Device),
            ("a socket", Is::Socket),
            ("holes", Is::Holes),
            ("a folder", Is::Folder),
            ("a link to a file of root", Is::Link(decoy.to_owned())),
            ("a link to itself", link(file)),
            ("a link to nothing", link("/nothing")),
            ("a link to a device", link("/dev/zero")),
            ("nothing", Is::Bytes(Vec::new())),
        ] {
            add("any", file, name.to_owned(), is);
        }
    }
    for count in [100, 66_000] {
        add("JOB", "0.vraj", format!("{count} empty ones"), Is::Journals(count));
    }
    for (file, head) in [("a.stacks", STACKS), ("a.tensors", TENSORS)] {
        for line in [
            format!("N\t@\t{}\n", "x".repeat(1 << 16)),
            "N\t@\tx\n".into(),
            "P\t@\tx@\t1\ty@\nT\t@\tpython\t@\t@\t@\t@\n".into(),
            format!("T\t@\tpython{}\n", "\t5".repeat(2000)),
            "A\t@\t0\t4096\t512\t0\t1\t512\t0.0\n".into(),
            format!("F\t@\t{}\t10\tmain\n", "y".repeat(4000)),
            "M\t@\t/bin/@\t00\n".into(),
        ] {
            for bytes in [1 << 16, 64 << 20] {
                let (name, times) = (format!("{bytes} of {}", &line[..4]), bytes / line.len());
                add("JOB", file, name, Is::Repeated(head, line.clone(), times));
            }
        }
    }
    let whole = tempfile::tempdir().unwrap();
    let good = journal(whole.path(), 300).1;
    for file in [
        "\x1b]0;x\x07.vraj",
        "\u{202e}jarv.vraj",
        "\n.vraj",
        "\u{200f}.vraj",
        "\u{9b}31m.vraj",
        "%n%s.vraj",
        "'\";`id`.vraj",
        "-o.vraj",
    ] {
        add("JOB", file, "a good journal".into(), Is::Bytes(good.clone()));
        add("JOB", file, "a short one".into(), Is::Bytes(good[..999].to_vec()));
    }
    let rows = [LOG, ROW].concat();
    for (read_as, file, good, count) in [
        ("JOB", "a.vraj", good, 150),
        ("TRACE", "trace.csv", rows.into_bytes(), 50),
    ] {
        for number in 0..count {
            let mut bytes = good.clone();
            random.damage(&mut bytes, &[&[0xff; 8], &[0; 8], b"18446744073709551615", b"-"]);
            add(read_as, file, format!("damaged {number}"), Is::Bytes(bytes));
        }
    }
    all
}
