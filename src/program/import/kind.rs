//! Tells by a file's first bytes what it is, so that a file of another kind is refused by name.

use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use journal::format::MAGIC;

use super::source::{self, Unreadable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Journal,
    Snapshot,
    /// RMM's log.
    Log,
    /// RMM's log, gzipped.
    GzippedLog,
    Empty,
    /// Something else, by its name.
    Other(&'static str),
}

const UTF_16: &str = "text in UTF-16: convert it with iconv -f UTF-16 -t UTF-8 first";
const BESIDE: &str = "what lies beside a journal: give the journal, which ends in .vraj";

/// How the first bytes of files look that people have near their traces.
const SIGNATURES: &[(&[u8], &str)] = &[
    (b"\x7fELF", "a program or library"),
    (b"PAR1", "a Parquet file"),
    (b"PK\x03\x04", "a zip archive, such as a PyTorch checkpoint"),
    (b"SQLite format 3", "an SQLite database, such as of Nsight Systems"),
    (b"\x89PNG", "a picture"),
    (b"%PDF", "a PDF file"),
    (b"\x28\xb5\x2f\xfd", "a file compressed by zstd: decompress it first"),
    (b"\xfd7zXZ", "a file compressed by xz: decompress it first"),
    (b"\xff\xfe", UTF_16),
    (b"\xfe\xff", UTF_16),
    (b"BZh", "a file compressed by bzip2: decompress it first"),
    (b"vramshim-pytorch\t", BESIDE),
    (b"vramshim-stacks\t", BESIDE),
    (b"{", "JSON, such as a trace of PyTorch's profiler"),
    (b"[", "JSON, such as a trace of PyTorch's profiler"),
    (b"<", "HTML or XML, such as a page of MemoryViz"),
];

/// Text whose first line has no column `Action`.
const OTHER_TEXT: &str = "text without the first line of RMM's log, Thread,Time,Action,Pointer,Size,Stream";

/// Looks at the beginning of a file.
pub fn kind_of(path: &Path) -> Result<Kind, Unreadable> {
    let mut start = Vec::new();
    source::open(path)?.take(4096).read_to_end(&mut start)?;
    if start.starts_with(&[0x1f, 0x8b]) {
        let mut inner = Vec::new();
        // A file that is cut short is told of where it is read.
        let _ = MultiGzDecoder::new(&start[..]).take(4096).read_to_end(&mut inner);
        return Ok(match of_bytes(&inner) {
            Kind::Log | Kind::Empty => Kind::GzippedLog,
            Kind::Other(what) => Kind::Other(what),
            Kind::Journal | Kind::Snapshot | Kind::GzippedLog => {
                Kind::Other("a gzipped journal or snapshot: decompress it first")
            }
        });
    }
    let is_named_so = path.extension().is_some_and(|extension| extension == "gz");
    Ok(match of_bytes(&start) {
        // The file was cut, or is no gzip: it is told of where it is read.
        Kind::Log | Kind::Empty | Kind::Other(OTHER_TEXT) if is_named_so => Kind::GzippedLog,
        kind => kind,
    })
}

fn of_bytes(start: &[u8]) -> Kind {
    if start.is_empty() {
        return Kind::Empty;
    }
    if start.starts_with(&MAGIC) || start.iter().all(|&byte| byte == 0) {
        return Kind::Journal;
    }
    // PROTO, and the protocols that Python knows.
    if start[0] == 0x80 && start.get(1).is_some_and(|&protocol| (2..=5).contains(&protocol)) {
        return Kind::Snapshot;
    }
    if let Some((_, what)) = SIGNATURES.iter().find(|(bytes, _)| start.starts_with(bytes)) {
        return Kind::Other(what);
    }
    let is_text = |&byte: &u8| byte >= 0x20 || matches!(byte, b'\n' | b'\r' | b'\t');
    // The mark that some programs begin UTF-8 with.
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let first = start.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let has_actions = first
        .split(|&byte| byte == b',')
        .any(|field| matches!(field.trim_ascii(), b"Action" | b"\"Action\""));
    if !start.iter().all(is_text) {
        Kind::Other("binary data of a kind that vramshim does not know")
    } else if has_actions {
        Kind::Log
    } else {
        Kind::Other(OTHER_TEXT)
    }
}
