//! The journals in the folders, and what is known of each.
//!
//! Each user of the machine may write there, so a folder can have any number of names. A collection looks at a portion of each
//! folder, and the next one goes on where it stopped.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs::DirEntry;
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use base::identity::effective_user;
use base::text::shown;
use journal::format::EXTENSION;
use journal::reader::plain;

/// The most journals that are known, and the most folders.
const MOST_JOURNALS: usize = 1 << 16;
const MOST_FOLDERS: usize = 1 << 13;
/// The most names of a folder that one collection looks at, and the fewest if it is late.
const MOST_NAMES: usize = 1 << 16;
const AT_LEAST: usize = 1 << 10;

/// Whose a file is: a user's, in one folder. What lies in a folder that a user made is that user's in the folder above. They
/// take turns in all that has a bound, so that none of them keeps the others out.
pub type Who = (Arc<PathBuf>, u32);

/// The order of turns: the first thing of each, then the second of each.
pub fn in_turns<W: Ord, T>(things: impl IntoIterator<Item = (W, T)>) -> Vec<T> {
    let mut counts = BTreeMap::new();
    let numbered = things.into_iter().map(|(who, thing)| {
        let turn: &mut usize = counts.entry(who).or_default();
        *turn += 1;
        (*turn, thing)
    });
    let mut turns: Vec<(usize, T)> = numbered.collect();
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().map(|(_, thing)| thing).collect()
}

/// A file that has the name of a journal, and what is known of it.
pub struct File<T> {
    pub who: Who,
    pub known: T,
    /// The number of the collection that read it last.
    pub looked: u64,
    inode: u64,
    /// When it had changed last before it was found: seconds and nanoseconds.
    changed: (i64, i64),
    /// The listing that saw it last; 0 if it has no place.
    round: u64,
}

struct Folder<T> {
    /// Root, for a folder that the user named, or that root or this program's user made.
    who: Who,
    is_named: bool,
    files: BTreeMap<OsString, File<T>>,
    /// The number of the listing, and what it has still to look at.
    round: u64,
    rest: Option<Box<dyn Iterator<Item = DirEntry> + Send>>,
    has_failed: bool,
}

pub struct Listed<T> {
    pub problems: Vec<String>,
    pub gone: Vec<(PathBuf, File<T>)>,
    /// By inode.
    new: BTreeMap<u64, PathBuf>,
}

impl<T> Listed<T> {
    /// Of a file that was never looked at nothing is known.
    fn note_gone(&mut self, folder: &Path, files: impl IntoIterator<Item = (OsString, File<T>)>) {
        let known = files.into_iter().filter(|(_, file)| file.looked > 0);
        self.gone.extend(known.map(|(name, file)| (folder.join(name), file)));
    }
}

pub struct Folders<T> {
    all: BTreeMap<PathBuf, Folder<T>>,
    /// How many journals and folders were seen and have no place. There may be more.
    pub left_out: u64,
}

impl<T: Default> Folder<T> {
    fn new(who: Who, is_named: bool) -> Folder<T> {
        Folder {
            who,
            is_named,
            files: BTreeMap::new(),
            round: 0,
            rest: None,
            has_failed: false,
        }
    }

    /// Looks at the next names, until it is late. Returns the folders among them, and their users.
    fn look(
        &mut self,
        path: &Path,
        is_late: impl Fn() -> bool,
        listed: &mut Listed<T>,
    ) -> io::Result<Vec<(PathBuf, u32)>> {
        if self.rest.is_none() {
            // A user may have put a link in the place of a folder.
            if !self.is_named && !path.symlink_metadata()?.is_dir() {
                return Err(io::ErrorKind::NotFound.into());
            }
            self.rest = Some(Box::new(plain::entries_of(path)?));
            self.round += 1;
        }
        let (round, mut names, mut inner) = (self.round, 0, Vec::new());
        let mut is_whole = true;
        for entry in self.rest.iter_mut().flatten() {
            names += 1;
            is_whole = names < MOST_NAMES && (!names.is_multiple_of(AT_LEAST) || !is_late());
            let (name, inode) = (entry.file_name(), entry.ino());
            if Path::new(&name).extension() == Some(EXTENSION.as_ref()) {
                if let Some(file) = self.files.get_mut(&name).filter(|file| file.inode == inode) {
                    file.round = round;
                } else if let Ok(about) = entry.metadata() {
                    let (place, user) = self.who.clone();
                    let file = File {
                        who: (place, if user == 0 { about.uid() } else { user }),
                        known: T::default(),
                        looked: 0,
                        inode,
                        changed: (about.ctime(), about.ctime_nsec()),
                        round,
                    };
                    listed.new.insert(inode, entry.path());
                    let before = self.files.insert(name.clone(), file);
                    listed.note_gone(path, before.map(|before| (name, before)));
                }
            } else if self.is_named && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                inner.extend(entry.metadata().map(|about| (entry.path(), about.uid())));
            }
            if !is_whole {
                break;
            }
        }
        // A listing that is not finished has a descriptor. No other user gets many of them.
        if is_whole || self.who.1 != 0 {
            self.rest = None;
            listed.note_gone(path, self.files.extract_if(.., |_, file| file.round != round));
        }
        Ok(inner)
    }
}

impl<T: Default> Folders<T> {
    pub fn new() -> Folders<T> {
        let (all, left_out) = (BTreeMap::new(), 0);
        Folders { all, left_out }
    }

    pub fn files(&self) -> impl Iterator<Item = (PathBuf, &File<T>)> {
        let folders = self.all.iter();
        folders.flat_map(|(path, folder)| folder.files.iter().map(|(name, file)| (path.join(name), file)))
    }

    pub fn files_mut(&mut self) -> impl Iterator<Item = &mut File<T>> {
        self.all.values_mut().flat_map(|folder| folder.files.values_mut())
    }

    pub fn file(&mut self, path: &Path) -> Option<&mut File<T>> {
        self.all.get_mut(path.parent()?)?.files.get_mut(path.file_name()?)
    }

    /// How many folders cannot be listed now.
    pub fn failed(&self) -> u64 {
        self.all.values().filter(|folder| folder.has_failed).count() as u64
    }

    /// Looks at the folders that were named, and at those in them if `with_inner`, until it is late or all is seen. What
    /// `is_followed` keeps its name and its place.
    pub fn list(
        &mut self,
        named: &[PathBuf],
        with_inner: bool,
        until: Option<Instant>,
        is_followed: fn(&T) -> bool,
    ) -> Listed<T> {
        let (problems, gone, new) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut listed = Listed { problems, gone, new };
        self.left_out = 0;
        let is_unnamed = |path: &PathBuf, folder: &mut Folder<T>| folder.is_named && !named.contains(path);
        for (path, folder) in self.all.extract_if(.., is_unnamed) {
            listed.note_gone(&path, folder.files);
        }
        for path in named {
            let new = || Folder::new((path.clone().into(), 0), true);
            self.all.entry(path.clone()).or_insert_with(new);
        }
        // Of each owner those that wait longest come first.
        let mut waiting: Vec<_> = self.all.iter().collect();
        waiting.sort_by_key(|(_, folder)| folder.round);
        let waiting = waiting.into_iter().map(|(path, folder)| (&folder.who, path.clone()));
        let mut waiting = VecDeque::from(in_turns(waiting));
        for path in waiting.split_off(waiting.len().min(MOST_FOLDERS)) {
            self.left_out += 1;
            let files = self.all.remove(&path).map(|folder| folder.files);
            listed.note_gone(&path, files.unwrap_or_default());
        }
        let is_late = || until.is_some_and(|until| Instant::now() >= until);
        while let Some(path) = waiting.pop_front()
            && !is_late()
        {
            let Some(folder) = self.all.get_mut(&path) else {
                continue;
            };
            let looked = folder.look(&path, is_late, &mut listed);
            let had_failed = std::mem::replace(&mut folder.has_failed, looked.is_err());
            match looked {
                Ok(inner) => {
                    // Without a bound in time there is no next time.
                    if until.is_none() && folder.rest.is_some() {
                        waiting.push_front(path.clone());
                    }
                    let above = Arc::new(path);
                    for (path, user) in inner.into_iter().filter(|_| with_inner) {
                        let who: Who = match user == 0 || user == effective_user() {
                            true => (path.clone().into(), 0),
                            false => (above.clone(), user),
                        };
                        if !self.all.contains_key(&path) {
                            self.all.insert(path.clone(), Folder::new(who, false));
                            waiting.push_back(path);
                        }
                    }
                }
                // What is gone has another name now, or is unmounted. What cannot be read keeps what is known.
                Err(error) => {
                    let is_gone = error.kind() == io::ErrorKind::NotFound;
                    if is_gone {
                        listed.note_gone(&path, std::mem::take(&mut folder.files));
                    }
                    if is_gone && !folder.is_named {
                        self.all.remove(&path);
                    } else if !had_failed {
                        listed.problems.push(format!("{}: {error}", shown(&path)));
                    }
                }
            }
            self.share(2 * MOST_JOURNALS, is_followed, &mut listed);
        }
        self.share(MOST_JOURNALS, is_followed, &mut listed);
        // A journal that has another name now is still the same.
        for (path, file) in std::mem::take(&mut listed.gone) {
            let renamed = listed.new.remove(&file.inode).filter(|_| is_followed(&file.known));
            match renamed.and_then(|path| self.file(&path)) {
                Some(new) => new.known = file.known,
                None => listed.gone.push((path, file)),
            }
        }
        listed
    }

    /// Of more than so many journals, only `MOST_JOURNALS` keep their places: those with the first turns, of each owner what is
    /// followed, and then the newest.
    fn share(&mut self, most: usize, is_followed: fn(&T) -> bool, listed: &mut Listed<T>) {
        if self.all.values().map(|folder| folder.files.len()).sum::<usize>() <= most {
            return;
        }
        let mut each: Vec<&mut File<T>> = self.files_mut().collect();
        each.sort_by_key(|file| Reverse((is_followed(&file.known), file.changed)));
        let turns = in_turns(each.into_iter().map(|file| (file.who.clone(), file)));
        let left_out = turns.into_iter().skip(MOST_JOURNALS);
        self.left_out += left_out.map(|file| file.round = 0).count() as u64;
        for (path, folder) in &mut self.all {
            listed.note_gone(path, folder.files.extract_if(.., |_, file| file.round == 0));
        }
        listed.new.retain(|_, path| self.file(path).is_some());
    }
}
