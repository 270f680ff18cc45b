//! Finds the journals that a command's arguments name, and reads long journals with a progress bar.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use journal::format::EXTENSION;

use crate::analysis::job::{Job, LoadError};
use crate::render::progress;

/// The journals that `paths` name, each once. Adds a message to `problems` for each folder that has no journals or
/// cannot be read.
pub fn collect(paths: &[PathBuf], problems: &mut Vec<String>) -> BTreeSet<PathBuf> {
    let mut journals = BTreeSet::new();
    for path in paths {
        if !path.is_dir() {
            journals.insert(path.clone());
            continue;
        }
        match in_folder(path) {
            Ok(found) if found.is_empty() => problems.push(format!(
                "{}: no journals (.{EXTENSION} files) in this folder; a process writes one once it uses CUDA",
                path.display()
            )),
            Ok(found) => journals.extend(found),
            Err(error) => problems.push(format!("{}: cannot be read: {error}", path.display())),
        }
    }
    journals
}

/// The journals in a folder.
pub fn in_folder(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Reads a journal. For a long journal a progress bar is shown on standard error.
pub fn load(path: &Path) -> Result<Job, LoadError> {
    let size = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    if size < progress::WORTH_A_BAR_BYTES {
        return Job::load(path, |_, _| {});
    }
    let bar = progress::reading(size, &path.file_name().unwrap_or_default().to_string_lossy());
    let job = Job::load(path, |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    job
}
