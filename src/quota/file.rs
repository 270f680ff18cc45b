//! The file that holds an account. The folder that the processes of a group share has one file for each device. `seats`
//! says which process has which seat of the file.

use std::ffi::CString;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use super::account::{Account, SEATS};
use super::locks::{self, Own};
use base::descriptor::Descriptor;
use base::file::FileId;
use base::signals::without_signals_of_writes;
use base::text::shown;
use base::uuid::{parse_uuid, uuid_text};
use base::{file as files, identity};

pub const EXTENSION: &str = "account";
pub(super) const MAGIC: [u8; 8] = *b"VRACC\r\n\x1a";
pub(super) const VERSION: u32 = 2;
/// How often `open` looks at the file.
const ATTEMPTS: usize = 100;
/// Why something failed that may succeed when it is tried again.
pub(super) const CLOSED: &str = "the job closed a descriptor of the account";

/// What says which account a file holds. Nobody changes it once the file has its name.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub(super) magic: [u8; 8],
    pub(super) version: u32,
    pub(super) seats: u32,
    pub(super) uuid: [u8; 16],
    pub(super) boot_id: [u8; 16],
}

/// The whole file.
#[repr(C, align(4096))]
pub(super) struct Layout {
    head: Head,
    /// The number of the highest seat that was ever taken, plus one.
    seats_used: AtomicU32,
    pub(super) account: Account,
}

/// The byte that stands for a seat. The bytes that are locked need not exist, and say nothing.
pub(super) fn byte(seat: usize) -> Range<i64> {
    let byte = (offset_of!(Layout, account) + seat) as i64;
    byte..byte + 1
}

/// The bytes of all seats.
pub(super) fn all_seats() -> Range<i64> {
    byte(0).start..byte(SEATS).start
}

/// Why the file of an account cannot be opened or created.
#[derive(Debug)]
pub struct AccountError {
    pub path: PathBuf,
    pub why: String,
}

impl fmt::Display for AccountError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "accounts {}: {}", shown(&self.path), self.why)
    }
}

impl std::error::Error for AccountError {}

/// An open account.
pub struct SharedAccount {
    layout: *const Layout,
    path: PathBuf,
    file: FileId,
    /// The seats that this process has. A thread holds this mutex while it locks seats.
    pub(super) own: Mutex<Own>,
    /// Whether it was said that the file is gone.
    gone: AtomicBool,
}

// SAFETY: the mapping lives as long as the process. After `open`, only atomic fields of it are used.
unsafe impl Send for SharedAccount {}
// SAFETY: as above.
unsafe impl Sync for SharedAccount {}

impl SharedAccount {
    fn path_in(folder: &Path, uuid: [u8; 16]) -> PathBuf {
        folder.join(format!("{}.{EXTENSION}", uuid_text(uuid)))
    }

    /// Opens the account of a device in `folder`. Creates the folder and the file if they are missing. Replaces a file
    /// that cannot be trusted with a new file, unless processes use it or it belongs to another user.
    pub fn open(folder: &Path, uuid: [u8; 16]) -> Result<SharedAccount, AccountError> {
        let error = |why: String| AccountError {
            path: Self::path_in(folder, uuid),
            why,
        };
        let folder = make_folder(folder).map_err(error)?;
        let path = Self::path_in(&folder, uuid);
        let mut why = "others replace or remove it all the time".to_owned();
        // Another process may make or replace the file at the same time, and the job may close our descriptors.
        for _ in 0..ATTEMPTS {
            let done = match Self::open_existing(&path, uuid) {
                Ok(account) => return Ok(account),
                Err(Unusable::Missing) => Self::make(&path, uuid),
                Err(Unusable::Distrusted(_)) => Self::replace(&path, uuid),
                Err(Unusable::Closed) => Err(CLOSED.to_owned()),
                Err(Unusable::Broken(why)) => return Err(error(why)),
            };
            match done {
                Err(problem) if problem != CLOSED => return Err(error(problem)),
                Err(problem) => why = problem,
                Ok(()) => {}
            }
        }
        Err(error(why))
    }

    /// Removes a file that cannot be trusted, so that it can be made anew.
    fn replace(path: &Path, uuid: [u8; 16]) -> Result<(), String> {
        let _guard = FolderLock::new(path.parent().unwrap_or(Path::new("/")))?;
        // Another process may have replaced it before this one had the lock.
        let Err(Unusable::Distrusted(why)) = Self::open_existing(path, uuid) else {
            return Ok(());
        };
        // A symbolic link cannot be opened. Nobody has a seat in it.
        if let Ok(file) = Descriptor::open(&c_path(path)?, libc::O_RDONLY | libc::O_NONBLOCK) {
            let Some(fd) = file.number() else {
                return Err(CLOSED.to_owned());
            };
            if locks::is_locked(fd, all_seats()).map_err(no_locks)? {
                return Err(format!(
                    "{why}, but running processes use it; end these processes, then remove it"
                ));
            }
        }
        base::say::warn!("accounts {}: {why}; it is replaced by a new one", shown(path));
        std::fs::remove_file(path).map_err(|problem| format!("{why}, and cannot be removed: {problem}"))
    }

    /// Opens the account of a device if its file exists and can be trusted. Creates nothing.
    pub fn find(folder: &Path, uuid: [u8; 16]) -> Option<SharedAccount> {
        Self::open_existing(&Self::path_in(folder, uuid), uuid).ok()
    }

    /// Opens the account in the file `path`, which must be named by the UUID of a device. Creates nothing. The error
    /// says why the file cannot be used.
    pub fn open_path(path: &Path) -> Result<SharedAccount, String> {
        let name = path.file_stem().and_then(|stem| stem.to_str());
        let uuid = name
            .and_then(parse_uuid)
            .ok_or("its name is not the UUID of a device")?;
        Self::open_existing(path, uuid).map_err(|unusable| match unusable {
            Unusable::Missing => "it is gone".to_owned(),
            Unusable::Closed => CLOSED.to_owned(),
            Unusable::Distrusted(why) | Unusable::Broken(why) => why,
        })
    }

    fn open_existing(path: &Path, uuid: [u8; 16]) -> Result<SharedAccount, Unusable> {
        let path = std::path::absolute(path).map_err(|problem| Unusable::Broken(problem.to_string()))?;
        let name = c_path(&path).map_err(Unusable::Broken)?;
        // If a FIFO has this name, `O_NONBLOCK` keeps `open` from waiting for the FIFO's writer.
        let file = match Descriptor::open(&name, libc::O_RDWR | libc::O_NONBLOCK) {
            Ok(file) => file,
            Err(libc::ENOENT) => return Err(Unusable::Missing),
            Err(libc::EBADF) => return Err(Unusable::Closed),
            Err(libc::ELOOP) => return Err(Unusable::Distrusted("it is a symbolic link".to_owned())),
            Err(libc::ENXIO | libc::EISDIR) => return Err(Unusable::Broken("no regular file; remove it".to_owned())),
            Err(errno) => return Err(Unusable::Broken(describe(errno))),
        };
        let mapped = Self::map(&file, path, uuid);
        // An answer about a descriptor that the job closed meanwhile says nothing.
        if mapped.is_err() && file.number().is_none() {
            return Err(Unusable::Closed);
        }
        mapped
    }

    /// Checks the file and maps it.
    fn map(file: &Descriptor, path: PathBuf, uuid: [u8; 16]) -> Result<SharedAccount, Unusable> {
        let distrusted = |why: &str| Err(Unusable::Distrusted(why.to_owned()));
        let Some(fd) = file.number() else {
            return Err(Unusable::Closed);
        };
        // SAFETY: `stat` is plain data, valid if all zero.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is valid for writing, and a bad descriptor is an error, not a fault.
        if unsafe { libc::fstat(fd, &mut stat) } != 0 {
            return Err(Unusable::Broken(describe(files::errno())));
        }
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return distrusted("it is no regular file");
        }
        // SAFETY: geteuid has no preconditions.
        if stat.st_uid != unsafe { libc::geteuid() } {
            let why = format!("it belongs to user {}; name another folder, or remove it", stat.st_uid);
            return Err(Unusable::Broken(why));
        }
        if stat.st_nlink != 1 {
            return distrusted("it has other names");
        }
        if stat.st_size != size_of::<Layout>() as i64 {
            return distrusted("it has the wrong size");
        }
        if (stat.st_blocks as u64) * 512 < stat.st_size as u64 {
            return distrusted("it has holes");
        }
        if stat.st_mode & 0o077 != 0 {
            // SAFETY: fchmod takes numbers only.
            if unsafe { libc::fchmod(fd, 0o600) } != 0 {
                return distrusted("others may read or write it");
            }
            base::say::warn!(
                "accounts {}: others could read or write it; its mode is 0600 again",
                shown(&path)
            );
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so no memory in use is replaced.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size_of::<Layout>(),
                protection,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Unusable::Broken(describe(files::errno())));
        }
        let account = SharedAccount {
            layout: base.cast(),
            path,
            file: file.file(),
            own: Mutex::default(),
            gone: AtomicBool::new(false),
        };
        // A copy is compared. Any process of the user can write to the file, so no reference to these bytes is made.
        // SAFETY: the bytes are mapped, and any bytes are a `Head`.
        let head = unsafe { (&raw const (*account.layout).head).read_volatile() };
        let why = if head.magic != MAGIC {
            "it is no account"
        } else if head.version != VERSION || head.seats != SEATS as u32 {
            "it is of another version"
        } else if head.uuid != uuid {
            "it is the account of another device"
        } else if head.boot_id != identity::boot_id() {
            // Every process with a seat in the file ended with the earlier boot.
            "it is from before the machine started"
        } else {
            return Ok(account);
        };
        // SAFETY: the memory was mapped above, and no reference to it is left.
        unsafe { libc::munmap(base, size_of::<Layout>()) };
        distrusted(why)
    }

    /// Creates the file, if no other process has created it first. It gets the name `path` when it is complete, so no
    /// process ever opens an incomplete file.
    fn make(path: &Path, uuid: [u8; 16]) -> Result<(), String> {
        if files::file_size_limit() < size_of::<Layout>() {
            return Err("the limit of the size of files (ulimit -f) is too low for it".to_owned());
        }
        // A random number. Processes of several containers can have the same process id.
        let number = RandomState::new().hash_one(std::process::id());
        let fresh = path.with_extension(format!("{EXTENSION}.{number:016x}"));
        let file = Descriptor::open(&c_path(&fresh)?, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL).map_err(describe)?;
        let filled = match file.number() {
            Some(fd) => Self::fill(fd, uuid).map_err(|problem| file.number().map_or(CLOSED.to_owned(), |_| problem)),
            None => Err(CLOSED.to_owned()),
        };
        let done = filled.and_then(|()| give_name(&fresh, path));
        let _ = std::fs::remove_file(&fresh);
        done
    }

    /// Gives a new, empty file its size and the fields that never change.
    fn fill(fd: RawFd, uuid: [u8; 16]) -> Result<(), String> {
        // The blocks are allocated, because a store into a hole of the file raises SIGBUS if the disk is full.
        files::allocate(fd, 0, size_of::<Layout>()).map_err(describe)?;
        let mut head = [0u8; size_of::<Head>()];
        head[offset_of!(Head, magic)..][..8].copy_from_slice(&MAGIC);
        head[offset_of!(Head, version)..][..4].copy_from_slice(&VERSION.to_le_bytes());
        head[offset_of!(Head, seats)..][..4].copy_from_slice(&(SEATS as u32).to_le_bytes());
        head[offset_of!(Head, uuid)..][..16].copy_from_slice(&uuid);
        head[offset_of!(Head, boot_id)..][..16].copy_from_slice(&identity::boot_id());
        // SAFETY: `head` is readable for its whole length.
        let write = || unsafe { libc::pwrite(fd, head.as_ptr().cast(), head.len(), 0) };
        let written = without_signals_of_writes(write);
        if written == head.len() as isize {
            Ok(())
        } else {
            Err(describe(files::errno()))
        }
    }

    pub(super) fn seats_used(&self) -> &AtomicU32 {
        // SAFETY: the file stays mapped as long as `self` is in use, and this field is only ever used as an atomic.
        unsafe { &(*self.layout).seats_used }
    }

    pub fn account(&self) -> &Account {
        // SAFETY: the file stays mapped as long as `self` is in use. All fields of an account that anybody reads are
        // atomic, and any bytes are an account.
        unsafe { &(*self.layout).account }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file anew. Fails if the job has no descriptor left, or if another file has its place by now.
    pub(super) fn open_again(&self) -> Result<Descriptor, String> {
        let opened = Descriptor::open(&c_path(&self.path)?, libc::O_RDWR | libc::O_NONBLOCK);
        let what = match opened {
            Ok(file) if file.file() == self.file => return Ok(file),
            Ok(_) => "replaced",
            Err(libc::ENOENT) => "removed",
            Err(errno) => return Err(describe(errno)),
        };
        if !self.gone.swap(true, SeqCst) {
            base::say::error!(
                "accounts {}: the file was {what} while this process uses it. Processes that start from now on have an \
                 account of their own, so together they can exceed the limit. End the processes of the group to mend this",
                shown(&self.path)
            );
        }
        Err(format!("the file was {what}"))
    }
}

/// Makes the folder if it is missing, and returns its path without symbolic links.
fn make_folder(folder: &Path) -> Result<PathBuf, String> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|problem| format!("the folder cannot be made: {problem}"))?;
    let folder = folder.canonicalize().map_err(|problem| problem.to_string())?;
    let metadata = std::fs::metadata(&folder).map_err(|problem| problem.to_string())?;
    // SAFETY: geteuid has no preconditions.
    let ours = [0, unsafe { libc::geteuid() }].contains(&metadata.uid());
    let sticky = metadata.mode() & libc::S_ISVTX != 0;
    if !ours {
        base::say::warn!(
            "accounts {}: the folder belongs to user {}, who can remove the accounts, and so lift the limit",
            shown(&folder),
            metadata.uid()
        );
    } else if metadata.mode() & 0o022 != 0 && !sticky {
        base::say::warn!(
            "accounts {}: the folder has mode {:o}, so other users can remove the accounts, and so lift the limit. chmod +t \
             prevents that",
            shown(&folder),
            metadata.mode() & 0o7777
        );
    }
    Ok(folder)
}

/// Renames a complete file, unless the name is taken: then another process was first, and its file serves.
fn give_name(fresh: &Path, path: &Path) -> Result<(), String> {
    const RENAME_NOREPLACE: libc::c_uint = 1;
    let (from, to) = (c_path(fresh)?, c_path(path)?);
    let here = libc::AT_FDCWD;
    // SAFETY: both names are C strings. The raw call needs no recent glibc.
    let renamed = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            here,
            from.as_ptr(),
            here,
            to.as_ptr(),
            RENAME_NOREPLACE,
        )
    };
    if renamed == 0 {
        return Ok(());
    }
    match files::errno() {
        libc::EEXIST => Ok(()),
        // Another process has removed the fresh file, so `open` makes another.
        libc::ENOENT => Ok(()),
        // Some file systems always replace.
        libc::EINVAL | libc::ENOSYS => {
            let _guard = FolderLock::new(path.parent().unwrap_or(Path::new("/")))?;
            if path.symlink_metadata().is_ok() {
                return Ok(());
            }
            std::fs::rename(fresh, path).map_err(|problem| problem.to_string())
        }
        errno => Err(describe(errno)),
    }
}

/// Why a file cannot be used as an account.
enum Unusable {
    Missing,
    /// The file is not one that this process would have made, so `open` replaces it.
    Distrusted(String),
    /// The file can neither be used nor be replaced.
    Broken(String),
    /// The job closed the descriptor through which the file was looked at.
    Closed,
}

/// A lock on the folder. Only the process that holds the lock replaces files in the folder. The kernel drops the lock if the
/// process dies, or if the job closes the descriptor.
struct FolderLock {
    _folder: Descriptor,
}

impl FolderLock {
    fn new(folder: &Path) -> Result<FolderLock, String> {
        let opened = Descriptor::open(&c_path(folder)?, libc::O_RDONLY | libc::O_DIRECTORY).map_err(describe)?;
        // A process holds the lock only for a few file operations. If the process that holds the lock is stopped
        // meanwhile, the calling process gives up after 2 s.
        for _ in 0..2000 {
            let fd = opened.number().ok_or(CLOSED)?;
            // SAFETY: flock takes numbers only.
            if unsafe { libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return Ok(FolderLock { _folder: opened });
            }
            if files::errno() != libc::EWOULDBLOCK && files::errno() != libc::EINTR {
                return Err(describe(files::errno()));
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Err("a process keeps the folder locked".to_owned())
    }
}

fn c_path(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| "the path has a NUL byte".to_owned())
}

/// With this a reason begins that another try does not change.
pub(super) const NO_LOCKS: &str = "its bytes cannot be locked";

/// Why the bytes of a file cannot be locked.
pub(super) fn no_locks(errno: i32) -> String {
    match errno {
        libc::EBADF => CLOSED.to_owned(),
        _ => format!(
            "{NO_LOCKS}: {}; name a folder on a file system with locks",
            describe(errno)
        ),
    }
}

fn describe(errno: i32) -> String {
    if errno == libc::EBADF {
        return CLOSED.to_owned();
    }
    std::io::Error::from_raw_os_error(errno).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// Threads have one process id, as processes of several containers can have.
    #[test]
    fn processes_of_one_number_that_make_an_account_at_once_share_it() {
        const UUID: [u8; 16] = [7; 16];
        const PROCESSES: usize = 4;
        for _ in 0..100 {
            let folder = tempfile::tempdir().unwrap();
            let all = Barrier::new(PROCESSES);
            let open = || {
                all.wait();
                SharedAccount::open(folder.path(), UUID).map(|account| account.file)
            };
            let opened: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..PROCESSES).map(|_| scope.spawn(open)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let first = opened[0].as_ref().unwrap();
            assert!(opened.iter().all(|file| file.as_ref().unwrap() == first));
            assert_eq!(
                std::fs::read_dir(folder.path()).unwrap().count(),
                1,
                "nothing else is left"
            );
        }
    }
}
