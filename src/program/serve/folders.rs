//! The journals in a folder, before any of them is opened.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use journal::format::EXTENSION;
use journal::reader::plain;

/// The most journals that are looked at, of all folders. Each owner of files in a folder has an equal share, and what one does
/// not need goes to the others.
const MOST_JOURNALS: usize = 1 << 16;
/// The most names of a folder that are read.
const MOST_NAMES: usize = 4 * MOST_JOURNALS;

/// The seconds and nanoseconds of a file's last change, and its size.
pub type Signs = (i64, i64, u64);

/// How many files of each owner.
pub type Owners = BTreeMap<u32, usize>;

/// A file that has the name of a journal.
pub struct Found {
    pub path: PathBuf,
    pub inode: u64,
    pub owner: u32,
    /// What shows that the file changed, so that a new look at it is worth something.
    pub signs: Signs,
}

/// The file is not opened, and a link is not followed.
pub fn found(path: PathBuf) -> Option<Found> {
    let told = path.symlink_metadata().ok()?;
    Some(Found {
        inode: told.ino(),
        owner: told.uid(),
        signs: (told.ctime(), told.ctime_nsec(), told.len()),
        path,
    })
}

/// The journals of a folder.
pub fn journals_in(folder: &Path) -> io::Result<impl Iterator<Item = Found> + use<>> {
    let journals = plain::named_in(folder, EXTENSION)?.map(|entry| entry.path());
    Ok(journals.take(MOST_NAMES).filter_map(found))
}

/// The shares of the owners in each folder, by the number of their files.
pub fn shares(counted: BTreeMap<PathBuf, Owners>) -> BTreeMap<PathBuf, Owners> {
    let mut shares = counted;
    let mut all: Vec<&mut usize> = shares.values_mut().flat_map(|owners| owners.values_mut()).collect();
    // The smallest come first, so that what they do not need is shared by the others.
    all.sort();
    let (mut room, mut waiting) = (MOST_JOURNALS, all.len());
    for files in all {
        *files = (*files).min(room / waiting);
        (room, waiting) = (room - *files, waiting - 1);
    }
    shares
}
