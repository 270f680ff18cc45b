//! Tells by a file's first bytes what it is, so that a file of another kind is refused by name.

use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use journal::format::MAGIC;

use super::plain_file::{self, Unreadable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Journal,
    Snapshot,
    /// RMM's log, plain or gzipped.
    Log,
    Empty,
    Other,
}

pub fn kind_of(path: &Path) -> Result<Kind, Unreadable> {
    let mut start = Vec::new();
    plain_file::open(path)?.take(4096).read_to_end(&mut start)?;
    if start.starts_with(&GZIP) {
        let mut inner = Vec::new();
        // A file that is cut short is told of where it is read.
        let _ = MultiGzDecoder::new(&start[..]).take(4096).read_to_end(&mut inner);
        return Ok(match by_first_bytes(&inner) {
            Kind::Log | Kind::Empty => Kind::Log,
            _ => Kind::Other,
        });
    }
    Ok(match by_first_bytes(&start) {
        // The file was cut, or is no gzip: it is told of where it is read.
        Kind::Log | Kind::Empty | Kind::Other if is_named_gzip(path) => Kind::Log,
        kind => kind,
    })
}

/// What a gzipped file begins with.
pub const GZIP: [u8; 2] = [0x1f, 0x8b];

pub fn is_named_gzip(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gz")
}

fn by_first_bytes(start: &[u8]) -> Kind {
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
    // The mark that some programs begin UTF-8 with.
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let first = start.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let has_actions = first
        .split(|&byte| byte == b',')
        .any(|field| matches!(field.trim_ascii(), b"Action" | b"\"Action\""));
    if has_actions { Kind::Log } else { Kind::Other }
}
