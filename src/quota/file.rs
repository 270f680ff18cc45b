//! The file that an account lies in: one for each device, in a folder that the processes of a group share.
//!
//! A seat belongs to the process that holds the record lock on its bytes. The kernel takes the lock away however a
//! process ends, works across pid namespaces, and hands it on to no child, so a seat that can be locked is nobody's: who
//! locks it may give back what its last process had, and sit down.
//!
//! Record locks go when the process closes *any* descriptor of the file. So a process opens a file once, and keeps it. And
//! they are the whole process's: its threads would all be granted one that it has. So it remembers where it sits itself,
//! and one of its threads at a time looks for the dead.

use std::ffi::CString;
use std::fmt;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use super::account::{Account, Place, SEATS};
use base::sync::lock;
use base::uuid::{parse_uuid, uuid_text};
use base::{file as files, identity};

pub const EXTENSION: &str = "account";
const MAGIC: [u8; 8] = *b"VRACC\r\n\x1a";
const VERSION: u32 = 1;

/// The file from its first byte.
#[repr(C, align(4096))]
struct Layout {
    magic: [u8; 8],
    version: u32,
    seats: u32,
    uuid: [u8; 16],
    boot_id: [u8; 16],
    /// Highest seat ever taken, plus one.
    seats_used: AtomicU32,
    account: Account,
}

/// Why there is no account to share.
#[derive(Debug)]
pub struct AccountError {
    pub path: PathBuf,
    pub why: String,
}

impl fmt::Display for AccountError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "accounts {}: {}", self.path.display(), self.why)
    }
}

impl std::error::Error for AccountError {}

/// An account that is open. Never closed: see above.
pub struct SharedAccount {
    layout: *const Layout,
    fd: libc::c_int,
    /// The seats of this process; locked by the thread that locks seats.
    own: Mutex<Vec<usize>>,
}

// SAFETY: what is mapped lives as long as the process, and all that changes in it is atomic.
unsafe impl Send for SharedAccount {}
// SAFETY: as above.
unsafe impl Sync for SharedAccount {}

/// One process on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// In the process's own pid namespace, whose inode number `namespace` is.
    pub pid: u32,
    pub namespace: u64,
    pub start_ticks: u64,
    pub held: u64,
}

impl SharedAccount {
    fn path(folder: &Path, uuid: [u8; 16]) -> PathBuf {
        folder.join(format!("{}.{EXTENSION}", uuid_text(uuid)))
    }

    /// Opens the account of a device in `folder`, which is made where it is missing, as is the file. A file that cannot
    /// be trusted is removed, and a new one takes its place.
    pub fn open(folder: &Path, uuid: [u8; 16]) -> Result<SharedAccount, AccountError> {
        let path = Self::path(folder, uuid);
        // Many processes may start at once, and nearly all of them find a file.
        if let Ok(account) = Self::open_existing(&path, uuid) {
            return Ok(account);
        }
        let error = |why: String| AccountError {
            path: path.clone(),
            why,
        };
        let guard = FolderLock::new(folder).map_err(&error)?;
        match Self::open_existing(&path, uuid) {
            Ok(account) => return Ok(account),
            Err(Unusable::Missing) => {}
            Err(Unusable::Distrusted(why)) => {
                tracing::warn!("accounts {}: {why}; it is replaced by a new one", path.display());
                std::fs::remove_file(&path)
                    .map_err(|problem| error(format!("{why}, and cannot be removed: {problem}")))?;
            }
            Err(Unusable::Broken(why)) => return Err(error(why)),
        }
        let made = Self::make(&path, uuid).and_then(|()| match Self::open_existing(&path, uuid) {
            Ok(account) => Ok(account),
            Err(Unusable::Missing) => Err("gone as soon as it was made".to_owned()),
            Err(Unusable::Distrusted(why) | Unusable::Broken(why)) => Err(why),
        });
        drop(guard);
        made.map_err(error)
    }

    /// Opens the account of a device where there is one; for onlookers.
    pub fn look(folder: &Path, uuid: [u8; 16]) -> Option<SharedAccount> {
        Self::open_existing(&Self::path(folder, uuid), uuid).ok()
    }

    /// Opens the account in this file, or says why it cannot be trusted; for onlookers.
    pub fn look_at(path: &Path) -> Result<SharedAccount, String> {
        let name = path.file_stem().and_then(|stem| stem.to_str());
        let uuid = name.and_then(parse_uuid).ok_or("its name is none of a device")?;
        Self::open_existing(path, uuid).map_err(|unusable| match unusable {
            Unusable::Missing => "it is gone".to_owned(),
            Unusable::Distrusted(why) | Unusable::Broken(why) => why,
        })
    }

    fn open_existing(path: &Path, uuid: [u8; 16]) -> Result<SharedAccount, Unusable> {
        let name = c_path(path).map_err(Unusable::Broken)?;
        // Not waiting for the writer of a FIFO.
        let fd = match files::open(&name, libc::O_RDWR | libc::O_NONBLOCK) {
            Ok(fd) => fd,
            Err(libc::ENOENT) => return Err(Unusable::Missing),
            Err(libc::ELOOP) => return Err(Unusable::Distrusted("it is a symbolic link".to_owned())),
            Err(libc::ENXIO | libc::EISDIR) => return Err(Unusable::Broken("no regular file; remove it".to_owned())),
            Err(errno) => return Err(Unusable::Broken(words(errno))),
        };
        let opened = Self::map(fd, uuid);
        if opened.is_err() {
            // SAFETY: ours, and nobody has it; no lock was taken on it.
            unsafe { libc::close(fd) };
        }
        opened
    }

    fn map(fd: libc::c_int, uuid: [u8; 16]) -> Result<SharedAccount, Unusable> {
        let distrusted = |why: &str| Err(Unusable::Distrusted(why.to_owned()));
        // SAFETY: plain data that fstat fills in.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is valid for writing.
        if unsafe { libc::fstat(fd, &mut stat) } != 0 {
            return Err(Unusable::Broken(words(files::errno())));
        }
        // SAFETY: has no preconditions.
        if stat.st_uid != unsafe { libc::geteuid() } {
            return distrusted(&format!("it belongs to user {}", stat.st_uid));
        }
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return distrusted("it is no regular file");
        }
        if stat.st_mode & 0o077 != 0 {
            return distrusted("others may read or write it");
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
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of the whole file.
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
            return Err(Unusable::Broken(words(files::errno())));
        }
        let account = SharedAccount {
            layout: base.cast(),
            fd,
            own: Mutex::default(),
        };
        let layout = account.layout();
        let why = if layout.magic != MAGIC {
            "it is no account"
        } else if layout.version != VERSION || layout.seats != SEATS as u32 {
            "it is of another version"
        } else if layout.uuid != uuid {
            "it is the account of another device"
        } else if layout.boot_id != identity::boot_id() {
            // Nothing that it tells of has outlived that.
            "it is from before the machine started"
        } else {
            return Ok(account);
        };
        // SAFETY: mapped above, and nobody has it.
        unsafe { libc::munmap(base, size_of::<Layout>()) };
        distrusted(why)
    }

    /// Makes the file whole under another name first, so that nobody ever finds half of one.
    fn make(path: &Path, uuid: [u8; 16]) -> Result<(), String> {
        // SAFETY: has no preconditions.
        let fresh = path.with_extension(format!("{EXTENSION}.{}", unsafe { libc::getpid() }));
        let name = c_path(&fresh)?;
        let _ = std::fs::remove_file(&fresh);
        let fd = files::open(&name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL).map_err(words)?;
        let filled = Self::fill(fd, uuid);
        // SAFETY: ours; no lock was taken on it.
        unsafe { libc::close(fd) };
        let done = filled.and_then(|()| std::fs::rename(&fresh, path).map_err(|problem| problem.to_string()));
        if done.is_err() {
            let _ = std::fs::remove_file(&fresh);
        }
        done
    }

    fn fill(fd: libc::c_int, uuid: [u8; 16]) -> Result<(), String> {
        // A hole would be a SIGBUS on a full disk.
        files::allocate(fd, 0, size_of::<Layout>()).map_err(words)?;
        let mut head = [0u8; offset_of!(Layout, seats_used)];
        head[offset_of!(Layout, magic)..][..8].copy_from_slice(&MAGIC);
        head[offset_of!(Layout, version)..][..4].copy_from_slice(&VERSION.to_le_bytes());
        head[offset_of!(Layout, seats)..][..4].copy_from_slice(&(SEATS as u32).to_le_bytes());
        head[offset_of!(Layout, uuid)..][..16].copy_from_slice(&uuid);
        head[offset_of!(Layout, boot_id)..][..16].copy_from_slice(&identity::boot_id());
        // SAFETY: the bytes are this frame's own.
        let written = unsafe { libc::pwrite(fd, head.as_ptr().cast(), head.len(), 0) };
        if written == head.len() as isize {
            Ok(())
        } else {
            Err(words(files::errno()))
        }
    }

    fn layout(&self) -> &Layout {
        // SAFETY: mapped for good; the constant fields were checked, and what changes is atomic.
        unsafe { &*self.layout }
    }

    pub fn account(&self) -> &Account {
        &self.layout().account
    }

    /// Sits this process down; once for each number that it knows the device by.
    pub fn sit(&self) -> Result<Place, String> {
        let mut own = lock(&self.own);
        // SAFETY: has no preconditions.
        let pid = unsafe { libc::getpid() } as u64;
        let first = (pid.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % self.nearby();
        // Those that look free, then those whose process may be dead.
        for taken in [0, 1] {
            let mut seats = (0..SEATS).map(|step| {
                if first + step < SEATS {
                    first + step
                } else {
                    first + step - SEATS
                }
            });
            let found = seats.find(|&seat| {
                self.account().seat(seat).taken.load(SeqCst) == taken && !own.contains(&seat) && self.lock(seat)
            });
            if let Some(seat) = found {
                own.push(seat);
                return Ok(self.begin(seat, pid));
            }
        }
        Err(format!("all {SEATS} seats are taken"))
    }

    /// Seats are taken close together where there are few, so that looking at all of them is short.
    fn nearby(&self) -> usize {
        (2 * self.seats_used() + 16).min(SEATS)
    }

    fn seats_used(&self) -> usize {
        (self.layout().seats_used.load(SeqCst) as usize).min(SEATS)
    }

    fn begin(&self, seat: usize, pid: u64) -> Place {
        self.layout().seats_used.fetch_max(seat as u32 + 1, SeqCst);
        let state = self.account().seat(seat);
        state.taken.store(1, SeqCst);
        let place = self.clear(seat);
        state.namespace.store(identity::pid_namespace(), SeqCst);
        state
            .start_ticks
            .store(identity::start_ticks("self").unwrap_or(0), SeqCst);
        state.pid.store(pid, SeqCst);
        place
    }

    /// Gives back what a locked seat has.
    fn clear(&self, seat: usize) -> Place {
        let account = self.account();
        account.seat(seat).pid.store(0, SeqCst);
        let mut place = account.sit(seat);
        let held = place.held();
        account.give(&mut place, held);
        place
    }

    /// Gives back what dead processes had.
    pub fn reap(&self) {
        let own = lock(&self.own);
        for seat in (0..self.seats_used()).filter(|seat| !own.contains(seat)) {
            let state = self.account().seat(seat);
            if state.taken.load(SeqCst) == 0 || !self.lock(seat) {
                continue;
            }
            // Its process may have gone just now, or somebody was here before.
            if state.taken.load(SeqCst) != 0 {
                self.clear(seat);
                state.taken.store(0, SeqCst);
            }
            self.set_lock(seat, libc::F_UNLCK);
        }
    }

    /// The processes that hold something, as far as they are alive.
    pub fn holders(&self) -> Vec<Holder> {
        self.reap();
        (0..self.seats_used())
            .filter_map(|seat| {
                let state = self.account().seat(seat);
                let pid = state.pid.load(SeqCst);
                let holder = Holder {
                    pid: pid as u32,
                    namespace: state.namespace.load(SeqCst),
                    start_ticks: state.start_ticks.load(SeqCst),
                    held: self.account().held(seat),
                };
                (state.taken.load(SeqCst) != 0 && pid != 0 && holder.held > 0).then_some(holder)
            })
            .collect()
    }

    fn lock(&self, seat: usize) -> bool {
        self.set_lock(seat, libc::F_WRLCK)
    }

    /// Never waits.
    fn set_lock(&self, seat: usize, kind: libc::c_int) -> bool {
        // SAFETY: plain data.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        lock.l_start = (offset_of!(Layout, account) + seat) as libc::off_t;
        lock.l_len = 1;
        // SAFETY: the structure outlives the call.
        unsafe { libc::fcntl(self.fd, libc::F_SETLK, &lock) == 0 }
    }
}

enum Unusable {
    Missing,
    /// To be replaced.
    Distrusted(String),
    Broken(String),
}

/// One process at a time makes or replaces files of a folder; the kernel lets go of it with the process.
struct FolderLock(libc::c_int);

impl FolderLock {
    fn new(folder: &Path) -> Result<FolderLock, String> {
        use std::os::unix::fs::DirBuilderExt;
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|problem| format!("the folder cannot be made: {problem}"))?;
        let folder = folder.canonicalize().map_err(|problem| problem.to_string())?;
        let name = c_path(&folder)?;
        let fd = files::open(&name, libc::O_RDONLY | libc::O_DIRECTORY).map_err(words)?;
        let lock = FolderLock(fd);
        // Only for the length of a look or a new file; somebody stopped in between must not stop us as well.
        for _ in 0..2000 {
            // SAFETY: numbers only.
            if unsafe { libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return Ok(lock);
            }
            if files::errno() != libc::EWOULDBLOCK && files::errno() != libc::EINTR {
                return Err(words(files::errno()));
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Err("a process keeps the folder locked".to_owned())
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // SAFETY: ours; its lock goes with it.
        unsafe { libc::close(self.0) };
    }
}

fn c_path(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| "the path has a NUL byte".to_owned())
}

fn words(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}
