//! Opens what another user may have placed: files, folders and sockets that jobs and other users name. Nothing else in the
//! program does. A file is a plain one, is found before it is opened, and no call waits for what is at its other end.

use std::fs::{DirEntry, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use base::descriptor::result;
use base::identity::effective_user;
use base::sockets::address_of;
use base::sync::lock;

use crate::format::{EXTENSION, STACKS_EXTENSION};

/// The most files of one kind that are taken from one folder.
const MOST_FILES: usize = 1 << 16;
/// Whether a file was opened here that not all users may read.
static IS_PRIVATE: AtomicBool = AtomicBool::new(false);

/// Opens a file for reading; `None` if it is no plain file. Does not wait.
pub fn open(path: &Path) -> io::Result<Option<File>> {
    found(path, 0)
}

/// A file of another program, and the journal that was made of it: by their extensions, the files that are read in place of
/// the one at `path` and of what lies beside it. They have no names.
struct StandIn {
    path: PathBuf,
    files: Vec<(&'static str, File)>,
}

static STAND_INS: Mutex<Vec<StandIn>> = Mutex::new(Vec::new());

/// From now on the journal that this process made, and the stacks beside it, are read in place of what is at `path` and beside
/// it. Their names may go.
pub fn stands_for(path: &Path, made: &Path) {
    let file = |extension| Some((extension, File::open(made.with_extension(extension)).ok()?));
    let files = [EXTENSION, STACKS_EXTENSION].into_iter().filter_map(file).collect();
    let path = path.to_owned();
    lock(&STAND_INS).push(StandIn { path, files });
}

/// The stand-in's file with this extension, if `is_it` finds the stand-in by the other program's path.
fn stand_in(is_it: impl Fn(&Path) -> bool, extension: &str) -> Option<io::Result<File>> {
    let all = lock(&STAND_INS);
    let files = &all.iter().find(|one| is_it(&one.path))?.files;
    let file = files.iter().find(|(known, _)| *known == extension);
    let again = |(_, file): &(_, File)| File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Some(file.map_or_else(|| Err(io::ErrorKind::NotFound.into()), again))
}

/// Opens a journal; `None` if it is no plain file. Does not wait.
pub fn journal(path: &Path) -> io::Result<Option<File>> {
    match stand_in(|known| known == path, EXTENSION) {
        Some(file) => file.map(Some),
        None => open(path),
    }
}

/// Opens a file that lies beside a journal, whose name differs in its extension alone. `None` if it is no plain file but,
/// for example, a link. An error if another user than the journal's made the file, which is neither this one nor root.
pub fn beside(path: &Path) -> io::Result<Option<File>> {
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    if let Some(file) = stand_in(|known| known.with_extension(&*extension) == path, &extension) {
        return file.map(Some);
    }
    match found(path, libc::O_NOFOLLOW)? {
        Some(file) if !may_lie_beside(file.metadata()?.uid(), path) => Err(io::Error::other(
            "another user than the journal's made it, so it is left out",
        )),
        other => Ok(other),
    }
}

/// The place is looked at before the file there is opened, because opening a device has effects. What is opened is what was
/// looked at, whatever has its name by then.
fn found(path: &Path, flags: libc::c_int) -> io::Result<Option<File>> {
    let open = |path: &Path, flags| File::options().read(true).custom_flags(flags).open(path);
    let mut place = open(path, libc::O_PATH | libc::O_NOFOLLOW)?;
    let mut about = place.metadata()?;
    if about.is_symlink() && flags & libc::O_NOFOLLOW == 0 {
        let maker = about.uid();
        place = open(path, libc::O_PATH)?;
        about = place.metadata()?;
        // What /proc shows of a process is no name that a user made.
        let is_trusted = [0, effective_user(), about.uid()].contains(&maker) || path.starts_with("/proc");
        if !is_trusted {
            return Err(io::Error::other("a link of another user, to a file that is not theirs"));
        }
    }
    if !about.is_file() {
        return Ok(None);
    }
    let same = PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()));
    let file = match open(&same, libc::O_NONBLOCK) {
        // Without /proc the name is all there is. If it stands for a FIFO by now, `O_NONBLOCK` keeps this from waiting.
        Err(error) if error.kind() == io::ErrorKind::NotFound => open(path, libc::O_NONBLOCK | flags)?,
        other => other?,
    };
    // What others may do with the file counts for what is made from it.
    if about.mode() & 0o004 == 0 {
        IS_PRIVATE.store(true, Relaxed);
    }
    Ok(file.metadata()?.is_file().then_some(file))
}

/// Whether a file of this user may belong to the journal beside `path`: the user is the journal's, this process's or root.
pub(crate) fn may_lie_beside(owner: u32, path: &Path) -> bool {
    let of_journal = || std::fs::metadata(path.with_extension(EXTENSION)).is_ok_and(|journal| journal.uid() == owner);
    owner == effective_user() || owner == 0 || of_journal()
}

/// The bits of the mode that a file made from all files opened so far may have: if not all users may read each of them,
/// only this one gets the new file.
pub fn may_grant() -> u32 {
    if IS_PRIVATE.load(Relaxed) { 0o600 } else { 0o666 }
}

/// What is in a folder. A folder can have any number of entries: take as many as are of use.
pub fn entries_of(folder: &Path) -> io::Result<impl Iterator<Item = DirEntry> + use<>> {
    std::fs::read_dir(folder).map(Iterator::flatten)
}

/// The files of a folder whose names have this extension.
pub fn named_in(folder: &Path, extension: &'static str) -> io::Result<impl Iterator<Item = DirEntry> + use<>> {
    let is_named = move |entry: &DirEntry| Path::new(&entry.file_name()).extension() == Some(extension.as_ref());
    entries_of(folder).map(|entries| entries.filter(is_named))
}

/// The journals of a folder, copies too. An error if there are more than can be meant.
pub fn journals_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let named = named_in(folder, EXTENSION)?.map(|entry| entry.path());
    let journals: Vec<PathBuf> = named.take(MOST_FILES + 1).collect();
    match journals.len() {
        ..=MOST_FILES => Ok(journals),
        _ => Err(io::Error::other(format!(
            "it has more than {MOST_FILES} journals: name those that you want"
        ))),
    }
}

/// Connects to a socket. Waits at most so long for the other end, also for each later read and write.
pub fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let (address, length) = address_of(path.as_os_str().as_bytes())?;
    // SAFETY: the call takes numbers, and nothing else owns the descriptor that it makes.
    let stream = unsafe {
        let made = result(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0))?;
        UnixStream::from_raw_fd(made)
    };
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    // SAFETY: the address outlives the call and has the length that the call is told.
    result(unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(stream)
}
