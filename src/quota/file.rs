//! The file that holds an account. The folder that the processes of a group share has one file for each device. `seats`
//! says which process has which seat of the file.

use std::hash::{BuildHasher, RandomState};
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use super::account::{Account, SEATS, VERSION};
use super::locks::{Look, Own};
use super::problem::{AccountError, Distrust, Problem};
use base::descriptor::Descriptor;
use base::file::FileId;
use base::locks::Owner;
use base::signals::without_signals_of_writes;
use base::text::shown;
use base::uuid::{parse_uuid, uuid_text};
use base::{file as files, identity};

pub const EXTENSION: &str = "account";
const MAGIC: [u8; 8] = *b"VRSAC\r\n\x1a";
/// How often `open` looks at the file.
const ATTEMPTS: usize = 100;

/// What says which account a file holds. Nobody changes it once the file has its name.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Head {
    magic: [u8; 8],
    version: u32,
    seats: u32,
    pub(super) uuid: [u8; 16],
    _unused: [u8; 20],
}

impl Head {
    fn new(uuid: [u8; 16]) -> Head {
        Head {
            magic: MAGIC,
            version: VERSION,
            seats: SEATS as u32,
            uuid,
            _unused: [0; 20],
        }
    }

    fn to_bytes(self) -> [u8; size_of::<Head>()] {
        // SAFETY: the head has no padding.
        unsafe { std::mem::transmute(self) }
    }

    /// Whether a file that begins with these bytes is an account of this layout, and the one of this device. From which boot
    /// of the machine it is does not matter: the locks on the seats tell who is alive.
    pub(super) fn check(bytes: [u8; size_of::<Head>()], uuid: [u8; 16]) -> Result<(), Problem> {
        // SAFETY: all fields are numbers, so any bytes are a head.
        let found = unsafe { std::mem::transmute::<[u8; size_of::<Head>()], Head>(bytes) };
        if found.magic != MAGIC {
            return Err(Distrust::NoAccount.into());
        }
        if (found.version, found.seats) != (VERSION, SEATS as u32) {
            return Err(Problem::OtherLayout(found.version));
        }
        if found.uuid != uuid {
            return Err(Distrust::OtherDevice.into());
        }
        Ok(())
    }
}

/// The whole file.
#[repr(C, align(4096))]
pub(super) struct Layout {
    head: Head,
    /// The number of the highest seat that was ever taken, plus one.
    seats_used: AtomicU32,
    pub(super) account: Account,
}

/// The UUID that an account's file is named by.
pub(super) fn uuid_in_name(path: &Path) -> Option<[u8; 16]> {
    path.file_stem().and_then(|stem| stem.to_str()).and_then(parse_uuid)
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

pub struct SharedAccount {
    layout: *const Layout,
    pub path: PathBuf,
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
        Self::open_or_make(folder, uuid).map_err(|why| AccountError {
            path: Self::path_in(folder, uuid),
            why,
        })
    }

    fn open_or_make(folder: &Path, uuid: [u8; 16]) -> Result<SharedAccount, Problem> {
        let path = Self::path_in(&make_folder(folder)?, uuid);
        let mut why = Problem::Contended;
        // Another process may make or replace the file at the same time, and the job may close our descriptors.
        for _ in 0..ATTEMPTS {
            let done = match Self::open_existing(&path, uuid) {
                Ok(account) => return Ok(account),
                Err(Problem::Missing) => Self::make(&path, uuid),
                Err(Problem::Distrusted(_)) => Self::replace(&path, uuid),
                Err(why) => Err(why),
            };
            match done {
                Err(Problem::Closed) => why = Problem::Closed,
                done => done?,
            }
        }
        Err(why)
    }

    /// Removes a file that cannot be trusted, so that it can be made anew.
    fn replace(path: &Path, uuid: [u8; 16]) -> Result<(), Problem> {
        let _guard = lock_folder(path.parent().unwrap_or(Path::new("/")))?;
        // Another process may have replaced it before this one had the lock.
        let Err(Problem::Distrusted(why)) = Self::open_existing(path, uuid) else {
            return Ok(());
        };
        // A symbolic link cannot be opened. Nobody has a seat in it.
        if let Ok(file) = Descriptor::open(path, libc::O_RDONLY | libc::O_NONBLOCK) {
            let fd = file.number().ok_or(Problem::Closed)?;
            if Owner::of(fd).finds_locked(fd, all_seats()).map_err(Problem::of_lock)? {
                return Err(Problem::InUse(why));
            }
        }
        base::say::warn!("accounts {}: {why}; it is replaced by a new one", shown(path));
        std::fs::remove_file(path).map_err(|problem| Problem::NotRemoved(why, problem.into()))
    }

    /// Opens the account of a device if its file exists and can be trusted. Creates nothing.
    pub fn find(folder: &Path, uuid: [u8; 16]) -> Result<SharedAccount, Problem> {
        Self::open_existing(&Self::path_in(folder, uuid), uuid)
    }

    fn open_existing(path: &Path, uuid: [u8; 16]) -> Result<SharedAccount, Problem> {
        let path = std::path::absolute(path)?;
        // If a FIFO has this name, `O_NONBLOCK` keeps `open` from waiting for the FIFO's writer.
        let file = Descriptor::open(&path, libc::O_RDWR | libc::O_NONBLOCK);
        let file = file.map_err(|errno| match errno {
            libc::ENOENT => Problem::Missing,
            libc::ELOOP => Distrust::Link.into(),
            libc::ENXIO | libc::EISDIR => Problem::NotAFile,
            errno => Problem::of_call(errno),
        })?;
        match Self::map(&file, &path, uuid) {
            Ok(layout) => Ok(SharedAccount {
                layout,
                path,
                file: file.file,
                own: Mutex::new(Own {
                    seats: Vec::new(),
                    look: Look {
                        owner: file.number().map_or(Owner::OpenFile, Owner::of),
                        file,
                    },
                }),
                gone: AtomicBool::new(false),
            }),
            // An answer about a descriptor that the job closed meanwhile says nothing.
            Err(_) if file.number().is_none() => Err(Problem::Closed),
            Err(why) => Err(why),
        }
    }

    /// Checks the file and maps it.
    fn map(file: &Descriptor, path: &Path, uuid: [u8; 16]) -> Result<*const Layout, Problem> {
        let fd = file.number().ok_or(Problem::Closed)?;
        let stat = files::status(fd).map_err(Problem::of_call)?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Distrust::Kind.into());
        }
        if stat.st_uid != identity::effective_user() {
            return Err(Problem::OtherUser(stat.st_uid));
        }
        if stat.st_nlink != 1 {
            return Err(Distrust::Names.into());
        }
        // The head comes before the size: a file of another layout may have another size, and is not replaced.
        let mut head = [0; size_of::<Head>()];
        // SAFETY: `head` is writable for its whole length.
        let got = unsafe { libc::pread(fd, head.as_mut_ptr().cast(), head.len(), 0) };
        let is_whole = got == head.len() as isize && stat.st_size == size_of::<Layout>() as i64;
        let checked = Head::check(head, uuid);
        if let Err(why @ Problem::OtherLayout(_)) = checked {
            return Err(why);
        }
        if !is_whole {
            return Err(Distrust::Size.into());
        }
        checked?;
        // A file that was copied or restored can have holes. Counts of blocks say nothing on FUSE and ZFS.
        files::fill_holes(fd, 0, size_of::<Layout>()).map_err(Problem::of_call)?;
        if stat.st_mode & 0o077 != 0 {
            // SAFETY: fchmod takes numbers only.
            if unsafe { libc::fchmod(fd, 0o600) } != 0 {
                return Err(Distrust::Mode.into());
            }
            base::say::warn!(
                "accounts {}: others could read or write it; its mode is 0600 again",
                shown(path)
            );
        }
        let (bytes, protection) = (size_of::<Layout>(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: the kernel chooses the address, so no memory in use is replaced.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(Problem::of_call(files::errno()));
        }
        Ok(base.cast_const().cast())
    }

    /// Creates the file, if no other process has created it first. It gets the name `path` when it is complete, so no
    /// process ever opens an incomplete file.
    fn make(path: &Path, uuid: [u8; 16]) -> Result<(), Problem> {
        if files::file_size_limit() < size_of::<Layout>() {
            return Err(Problem::FileSizeLimit);
        }
        // A random number. Processes of several containers can have the same process id.
        let number = RandomState::new().hash_one(std::process::id());
        let fresh = path.with_extension(format!("{EXTENSION}.{number:016x}"));
        let file = Descriptor::open(&fresh, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL);
        let file = file.map_err(Problem::of_call)?;
        let filled = match file.number() {
            Some(fd) => Self::fill(fd, uuid).map_err(|problem| file.number().map_or(Problem::Closed, |_| problem)),
            None => Err(Problem::Closed),
        };
        let done = filled.and_then(|()| give_name(&fresh, path));
        let _ = std::fs::remove_file(&fresh);
        done
    }

    /// Gives a new, empty file its size and the fields that never change.
    fn fill(fd: RawFd, uuid: [u8; 16]) -> Result<(), Problem> {
        // The blocks are allocated, because a store into a hole of the file raises SIGBUS if the disk is full.
        files::allocate(fd, 0, size_of::<Layout>()).map_err(Problem::of_call)?;
        let head = Head::new(uuid).to_bytes();
        // SAFETY: `head` is readable for its whole length.
        let write = || unsafe { libc::pwrite(fd, head.as_ptr().cast(), head.len(), 0) };
        if without_signals_of_writes(write) == head.len() as isize {
            Ok(())
        } else {
            Err(Problem::of_call(files::errno()))
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

    /// Opens the file anew. Fails if the job has no descriptor left, or if another file has its place by now.
    pub(super) fn open_again(&self) -> Result<Descriptor, Problem> {
        match Descriptor::open(&self.path, libc::O_RDWR | libc::O_NONBLOCK) {
            Ok(file) if file.file == self.file => Ok(file),
            Ok(_) | Err(libc::ENOENT) => Err(self.tell_gone()),
            Err(errno) => Err(Problem::of_call(errno)),
        }
    }

    /// Sees to it that the descriptor in `own` is open. It reaches the file from any root and for any user; only if the job
    /// closed it, the path must.
    pub(super) fn is_open(&self, own: &mut Own) -> bool {
        if own.look.file.number().is_none()
            && let Ok(again) = self.open_again()
        {
            own.look.file = again;
        }
        let status = own.look.file.number().and_then(|fd| files::status(fd).ok());
        if status.is_some_and(|file| file.st_nlink == 0) {
            self.tell_gone();
        }
        status.is_some()
    }

    fn tell_gone(&self) -> Problem {
        if !self.gone.swap(true, SeqCst) {
            base::say::error!(
                "accounts {}: {}. Processes that start from now on have an account of their own, so together they can exceed \
                 the limit. End the processes of the group to mend this",
                shown(&self.path),
                Problem::Gone
            );
        }
        Problem::Gone
    }
}

/// Makes the folder if it is missing, and returns its path without symbolic links.
fn make_folder(folder: &Path) -> Result<PathBuf, Problem> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|problem| Problem::NoFolder(problem.into()))?;
    let folder = folder.canonicalize()?;
    let metadata = std::fs::metadata(&folder)?;
    let ours = [0, identity::effective_user()].contains(&metadata.uid());
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
fn give_name(fresh: &Path, path: &Path) -> Result<(), Problem> {
    const RENAME_NOREPLACE: libc::c_uint = 1;
    let name = |path| files::c_path(path).map_err(Problem::of_call);
    let (from, to) = (name(fresh)?, name(path)?);
    let here = libc::AT_FDCWD;
    // SAFETY: both names are C strings. The raw call needs no recent glibc.
    let renamed = unsafe {
        let (from, to) = (from.as_ptr(), to.as_ptr());
        libc::syscall(libc::SYS_renameat2, here, from, here, to, RENAME_NOREPLACE)
    };
    if renamed == 0 {
        return Ok(());
    }
    match files::errno() {
        // Another process has the name, or has removed the fresh file, so `open` makes another.
        libc::EEXIST | libc::ENOENT => Ok(()),
        // Some file systems always replace.
        libc::EINVAL | libc::ENOSYS => {
            let _guard = lock_folder(path.parent().unwrap_or(Path::new("/")))?;
            if path.symlink_metadata().is_ok() {
                return Ok(());
            }
            Ok(std::fs::rename(fresh, path)?)
        }
        errno => Err(Problem::of_call(errno)),
    }
}

/// Locks the folder, until what is returned is dropped. Only the process that holds the lock replaces files in the
/// folder. The kernel drops the lock if the process dies, or if the job closes the descriptor.
fn lock_folder(folder: &Path) -> Result<Descriptor, Problem> {
    let opened = Descriptor::open(folder, libc::O_RDONLY | libc::O_DIRECTORY).map_err(Problem::of_call)?;
    // A process holds the lock only for a few file operations. If the process that holds the lock is stopped meanwhile,
    // the calling process gives up after 2 s.
    for _ in 0..2000 {
        let fd = opened.number().ok_or(Problem::Closed)?;
        // SAFETY: flock takes numbers only.
        if unsafe { libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(opened);
        }
        if files::errno() != libc::EWOULDBLOCK && files::errno() != libc::EINTR {
            return Err(Problem::of_call(files::errno()));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Err(Problem::FolderLocked)
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
            let files = base::file::names_in(folder.path());
            assert_eq!(files.len(), 1, "nothing else is left");
        }
    }
}
