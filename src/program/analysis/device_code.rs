//! Measures how much GPU code a process has mapped: the `.nv_fatbin` sections of the mapped files. That is an upper
//! bound for the module code in GPU memory, because the driver loads only used code of one GPU architecture.

use std::path::PathBuf;

use journal::reader::plain;
use object::{Object, ObjectSection, ReadCache};

use crate::driver::mapped_files;

const SECTION: &str = ".nv_fatbin";

/// Bytes of GPU code in the files that a running process has mapped. A file that cannot be read counts as 0 bytes.
pub fn mapped_by(pid: u32) -> u64 {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    mapped_files(pid)
        .iter()
        .filter_map(|file| in_file(root.join(file.trim_start_matches('/'))))
        .fold(0, u64::saturating_add)
}

fn in_file(path: PathBuf) -> Option<u64> {
    let cache = ReadCache::new(plain::open(&path).ok()??);
    let object = object::File::parse(&cache).ok()?;
    Some(object.section_by_name(SECTION)?.size())
}
