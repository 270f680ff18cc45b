//! Finds the journals that a command's arguments name, and reads long journals with a progress bar.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use journal::format::EXTENSION;
use journal::reader::Journal;
use journal::reader::plain::{entries_of, journals_in, stands_for};

use crate::analysis::job::{Job, LoadError, Observer};
use crate::copies;
use crate::failure::Failure;
use crate::import::into_journal::{import_log, import_snapshot};
use crate::import::kind::{Kind, kind_of};
use crate::render::format::shown;
use crate::render::progress;
use crate::say::say;

/// The journals that `paths` name, one for each process; also snapshots of PyTorch and logs of RMM, from which journals are
/// made. Adds a message to `problems` for each path that has no journals or cannot be read. A copy that is left out is named
/// on stderr.
pub fn collect(paths: &[PathBuf], problems: &mut Vec<String>) -> BTreeSet<PathBuf> {
    let mut journals = BTreeSet::new();
    for path in paths {
        if !path.is_dir() {
            if !path.exists() {
                problems.push(format!("{}: no such journal or folder; {WRITES}", shown(path)));
            } else if let Err(problem) = take_in(path, &journals) {
                problems.push(problem);
            } else {
                journals.insert(path.clone());
            }
            continue;
        }
        match journals_in(path) {
            Ok(found) if found.is_empty() => {
                let hint = match commands_below(path) {
                    none if none.is_empty() => format!("; {WRITES}"),
                    commands => format!(", but in folders below it:{commands}"),
                };
                let folder = shown(path);
                problems.push(format!(
                    "{folder}: no journals (.{EXTENSION} files) in this folder{hint}"
                ));
            }
            Ok(found) => journals.extend(found),
            Err(error) => problems.push(format!("{}: cannot be read: {error}", shown(path))),
        }
    }
    for note in copies::leave_out(&mut journals) {
        say!("{note}");
    }
    journals
}

/// If the file is another program's, makes a journal of it that stands for it from now on, and leaves no file behind.
fn take_in(path: &Path, others: &BTreeSet<PathBuf>) -> Result<(), String> {
    // What no reader knows is told of by the reader of journals.
    let import = match kind_of(path) {
        Ok(Kind::Snapshot) => import_snapshot,
        Ok(Kind::Log) => import_log,
        _ => return Ok(()),
    };
    if others.contains(path) {
        return Ok(());
    }
    let stem = path.with_extension("");
    if let Some(other) = others.iter().find(|other| other.with_extension("") == stem) {
        let (name, other) = (shown(path), shown(other));
        return Err(format!(
            "{name}: what lies beside it may belong to {other}: give them one after the other"
        ));
    }
    let cannot = |problem: io::Error| format!("{}: no place to make a journal of it: {problem}", shown(path));
    let folder = tempfile::tempdir().map_err(cannot)?;
    let journal = folder.path().join("journal").with_extension(EXTENSION);
    let _spinner = progress::reading_files([path], &shown(path));
    let imported = import(path, &journal, false).map_err(|problem| problem.to_string())?;
    imported.notes.iter().for_each(|note| say!("{note}"));
    stands_for(path, &journal);
    Ok(())
}

/// The command of this process for folders in `folder` that have journals, such as those of pods.
fn commands_below(folder: &Path) -> String {
    let command = std::env::args().nth(1).unwrap_or_default();
    let below = entries_of(folder)
        .into_iter()
        .flatten()
        .take(MOST_SEEN)
        .map(|entry| entry.path());
    let has_some = |path: &PathBuf| !path.is_symlink() && journals_in(path).is_ok_and(|found| !found.is_empty());
    let line = |path: PathBuf| format!("\n  vramshim {command} {}", shown(&path));
    below.filter(has_some).take(MOST_NAMED).map(line).collect()
}

/// So many folders are looked at, and named, at most.
const MOST_SEEN: usize = 1000;
const MOST_NAMED: usize = 8;

const WRITES: &str = "a process writes one once it uses CUDA, and a job without CUDA leaves none";

/// The journal at `path`, or the only one in the folder `path`. `Err` if it has none or several.
pub fn only(path: &Path) -> Result<PathBuf, Failure> {
    if !path.is_dir() && path.exists() {
        return Ok(path.to_owned());
    }
    let mut problems = Vec::new();
    let found: Vec<PathBuf> = collect(&[path.to_owned()], &mut problems).into_iter().collect();
    match &found[..] {
        [] => Err(Failure::failed(problems.join("\n"))),
        [only] => Ok(only.clone()),
        several => Err(Failure::refused(format!(
            "{} has {} journals; name one of them:\n  {}",
            shown(path),
            several.len(),
            several.iter().map(|path| shown(path)).collect::<Vec<_>>().join("\n  ")
        ))),
    }
}

/// The newest journal in `VRAMSHIM_DIR`, in the working folder, and in the folders `vramshim-*` there.
fn newest() -> Option<PathBuf> {
    let folders = places();
    let journals = folders.iter().flat_map(|folder| {
        journals_in(folder).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                say!("{}: not searched for the newest journal: {error}", shown(folder));
            }
            Vec::new()
        })
    });
    let dated = journals.filter_map(|path| Some((std::fs::metadata(&path).ok()?.modified().ok()?, path)));
    dated.max().map(|(_, newest)| newest)
}

/// The paths of a command. In place of none, and of `newest`, stands the newest journal if the command reads `one` process, or
/// else its folder.
pub fn named(paths: &[PathBuf], one: bool) -> Result<Vec<PathBuf>, Failure> {
    let is_newest = |path: &&PathBuf| path.as_os_str() == "newest" && !path.exists();
    let mut named: Vec<PathBuf> = paths.iter().filter(|path| !is_newest(path)).cloned().collect();
    if paths.is_empty() || named.len() < paths.len() {
        let none = || match commands_below(Path::new(".")) {
            none if none.is_empty() => {
                format!(
                    "no journal here: {WRITES}. Give a folder or a file, or start the job with vramshim run in this folder"
                )
            }
            commands => format!("no journal here, but in folders below:{commands}"),
        };
        let newest = newest().ok_or_else(|| Failure::failed(none()))?;
        named.push(match newest.parent() {
            Some(folder) if !one => folder.to_owned(),
            _ => newest,
        });
    }
    Ok(named)
}

/// The folder in `VRAMSHIM_DIR`, the working folder, and the folders `vramshim-*` there.
fn places() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = chosen().into_iter().collect();
    folders.push(PathBuf::from("."));
    let here = entries_of(Path::new(".")).into_iter().flatten();
    folders.extend(here.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("vramshim-") && path.is_dir()
    }));
    folders
}

fn chosen() -> Option<PathBuf> {
    let chosen = std::env::var_os(config::table::DIRECTORY.name).filter(|folder| !folder.is_empty());
    chosen.map(PathBuf::from)
}

/// The folders of jobs that were started from here: the one in `VRAMSHIM_DIR`, or else the working folder and the folders
/// `vramshim-*` there.
pub fn usual_folders() -> Vec<PathBuf> {
    chosen().map_or_else(places, |folder| vec![folder])
}

/// Reads a journal. For a long journal a progress bar is shown on standard error.
pub fn load(path: &Path) -> Result<Job, LoadError> {
    load_with(path, &mut [])
}

/// The same, and shows the records to observers.
pub fn load_with(path: &Path, observers: &mut [&mut dyn Observer]) -> Result<Job, LoadError> {
    let journal = Journal::open(path).map_err(LoadError::Open)?;
    with_progress(&journal, |progress| {
        Job::load_with(&journal, false, observers, progress)
    })
}

/// Reads these journals by `load`. What cannot be read is added to `problems`. A journal whose header is not written yet is a
/// problem only if no other journal can be read.
pub fn load_all<T>(
    paths: &BTreeSet<PathBuf>,
    problems: &mut Vec<String>,
    mut load: impl FnMut(&Path) -> Result<T, LoadError>,
) -> Vec<T> {
    let (mut jobs, mut early) = (Vec::new(), Vec::new());
    for path in paths {
        match load(path) {
            Ok(job) => jobs.push(job),
            Err(error) if error.is_too_early() => early.push(error.to_string()),
            Err(error) => problems.push(error.to_string()),
        }
    }
    if jobs.is_empty() {
        problems.append(&mut early);
    }
    for note in early {
        say!("{note}");
    }
    jobs
}

/// Does what reads a journal, and shows a progress bar for a long one. `read` calls the function that it gets with the
/// bytes read and the bytes in total.
pub fn with_progress<T>(journal: &Journal, read: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T) -> T {
    if journal.size() < progress::WORTH_A_BAR_BYTES {
        return read(&mut |_, _| {});
    }
    let name = Path::new(journal.path().file_name().unwrap_or_default());
    let bar = progress::reading(journal.size(), &shown(name));
    read(&mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })
}
