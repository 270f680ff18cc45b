//! The file that holds an account. The folder that the processes of a group share has one file for each device.
//!
//! One byte of the file stands for each seat. A process has a seat as long as it holds the record lock on that byte.
//! The kernel drops the lock when the process ends, however it ends. Record locks work across pid namespaces, and a
//! forked child inherits none. So if a process can lock a seat that another process took, the other process is dead.
//! The process with the lock may then give back what the dead process held, and take the seat.
//!
//! Two properties of record locks need care. First, a process loses its locks when it closes *any* descriptor of the
//! file. So a process opens each file once and never closes it. Second, the kernel grants a process a lock that the
//! process already has, to any of its threads. So a process keeps a list of its seats, and locks seats on one thread at
//! a time.

use std::ffi::CString;
use std::fmt;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use super::account::{Account, SEATS, SeatHandle};
use base::sync::lock;
use base::uuid::{parse_uuid, uuid_text};
use base::{file as files, identity};

pub const EXTENSION: &str = "account";
const MAGIC: [u8; 8] = *b"VRACC\r\n\x1a";
const VERSION: u32 = 1;

/// The whole file.
#[repr(C, align(4096))]
struct Layout {
    magic: [u8; 8],
    version: u32,
    seats: u32,
    uuid: [u8; 16],
    boot_id: [u8; 16],
    /// The number of the highest seat that was ever taken, plus one.
    seats_used: AtomicU32,
    account: Account,
}

/// Why the file of an account cannot be opened or created.
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

/// An open account file. It is never closed, because closing would drop the locks on this process's seats.
pub struct SharedAccount {
    layout: *const Layout,
    fd: libc::c_int,
    /// The seats that this process has. A thread holds this mutex while it locks seats.
    own: Mutex<Vec<usize>>,
}

// SAFETY: the mapping lives as long as the process, and all of its fields that change are atomic.
unsafe impl Send for SharedAccount {}
// SAFETY: as above.
unsafe impl Sync for SharedAccount {}

/// One process that holds memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process id in the pid namespace of the process.
    pub pid: u32,
    /// The inode number of that pid namespace.
    pub namespace: u64,
    /// Start time in clock ticks after boot.
    pub start_ticks: u64,
    /// Bytes that the process holds.
    pub held: u64,
}

impl SharedAccount {
    fn path(folder: &Path, uuid: [u8; 16]) -> PathBuf {
        folder.join(format!("{}.{EXTENSION}", uuid_text(uuid)))
    }

    /// Opens the account of a device in `folder`. Creates the folder and the file if they are missing. Replaces a file
    /// that cannot be trusted with a new file.
    pub fn open(folder: &Path, uuid: [u8; 16]) -> Result<SharedAccount, AccountError> {
        let path = Self::path(folder, uuid);
        // Many processes may start at once, and nearly all of them find the file. They need no lock on the folder.
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

    /// Opens the account of a device if its file exists and can be trusted. Creates nothing.
    pub fn find(folder: &Path, uuid: [u8; 16]) -> Option<SharedAccount> {
        Self::open_existing(&Self::path(folder, uuid), uuid).ok()
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
            Unusable::Distrusted(why) | Unusable::Broken(why) => why,
        })
    }

    fn open_existing(path: &Path, uuid: [u8; 16]) -> Result<SharedAccount, Unusable> {
        let name = c_path(path).map_err(Unusable::Broken)?;
        // If a FIFO has this name, `O_NONBLOCK` keeps `open` from waiting for the FIFO's writer.
        let fd = match files::open(&name, libc::O_RDWR | libc::O_NONBLOCK) {
            Ok(fd) => fd,
            Err(libc::ENOENT) => return Err(Unusable::Missing),
            Err(libc::ELOOP) => return Err(Unusable::Distrusted("it is a symbolic link".to_owned())),
            Err(libc::ENXIO | libc::EISDIR) => return Err(Unusable::Broken("no regular file; remove it".to_owned())),
            Err(errno) => return Err(Unusable::Broken(describe(errno))),
        };
        let opened = Self::map(fd, uuid);
        if opened.is_err() {
            // SAFETY: the descriptor was opened above and kept nowhere; no lock was taken on the file.
            unsafe { libc::close(fd) };
        }
        opened
    }

    /// Checks the file and maps it. The caller closes `fd` after an error.
    fn map(fd: libc::c_int, uuid: [u8; 16]) -> Result<SharedAccount, Unusable> {
        let distrusted = |why: &str| Err(Unusable::Distrusted(why.to_owned()));
        // SAFETY: `stat` is plain data, valid if all zero.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is valid for writing, and a bad descriptor is an error, not a fault.
        if unsafe { libc::fstat(fd, &mut stat) } != 0 {
            return Err(Unusable::Broken(describe(files::errno())));
        }
        // SAFETY: geteuid has no preconditions.
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
            // Every process with a seat in the file ended with the earlier boot.
            "it is from before the machine started"
        } else {
            return Ok(account);
        };
        // SAFETY: the memory was mapped above, and no reference to it is left.
        unsafe { libc::munmap(base, size_of::<Layout>()) };
        distrusted(why)
    }

    /// Creates the file. It gets the name `path` when it is complete, so no process ever opens an incomplete file.
    fn make(path: &Path, uuid: [u8; 16]) -> Result<(), String> {
        // SAFETY: getpid has no preconditions.
        let fresh = path.with_extension(format!("{EXTENSION}.{}", unsafe { libc::getpid() }));
        let name = c_path(&fresh)?;
        let _ = std::fs::remove_file(&fresh);
        let fd = files::open(&name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL).map_err(describe)?;
        let filled = Self::fill(fd, uuid);
        // SAFETY: the descriptor was opened above; no lock was taken on the file.
        unsafe { libc::close(fd) };
        let done = filled.and_then(|()| std::fs::rename(&fresh, path).map_err(|problem| problem.to_string()));
        if done.is_err() {
            let _ = std::fs::remove_file(&fresh);
        }
        done
    }

    /// Gives a new, empty file its size and the fields that never change.
    fn fill(fd: libc::c_int, uuid: [u8; 16]) -> Result<(), String> {
        // The blocks are allocated, because a store into a hole of the file raises SIGBUS if the disk is full.
        files::allocate(fd, 0, size_of::<Layout>()).map_err(describe)?;
        let mut head = [0u8; offset_of!(Layout, seats_used)];
        head[offset_of!(Layout, magic)..][..8].copy_from_slice(&MAGIC);
        head[offset_of!(Layout, version)..][..4].copy_from_slice(&VERSION.to_le_bytes());
        head[offset_of!(Layout, seats)..][..4].copy_from_slice(&(SEATS as u32).to_le_bytes());
        head[offset_of!(Layout, uuid)..][..16].copy_from_slice(&uuid);
        head[offset_of!(Layout, boot_id)..][..16].copy_from_slice(&identity::boot_id());
        // SAFETY: `head` is readable for its whole length.
        let written = unsafe { libc::pwrite(fd, head.as_ptr().cast(), head.len(), 0) };
        if written == head.len() as isize {
            Ok(())
        } else {
            Err(describe(files::errno()))
        }
    }

    fn layout(&self) -> &Layout {
        // SAFETY: the memory stays mapped as long as `self` is in use. Any bytes are a valid `Layout`, and the fields
        // that change are atomic.
        unsafe { &*self.layout }
    }

    pub fn account(&self) -> &Account {
        &self.layout().account
    }

    /// Takes a seat for this process. A process that sees one device under two ordinals takes one seat for each.
    pub fn take_seat(&self) -> Result<SeatHandle, String> {
        let mut own = lock(&self.own);
        // SAFETY: getpid has no preconditions.
        let pid = unsafe { libc::getpid() } as u64;
        // A hash of the process id is the first seat to try, so that processes which start at once try different seats.
        let first = (pid.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % self.span();
        // The first round tries free seats, the second round tries taken seats, whose processes may be dead.
        for taken in [0, 1] {
            let mut seats = (0..SEATS).map(|step| {
                if first + step < SEATS {
                    first + step
                } else {
                    first + step - SEATS
                }
            });
            let found = seats.find(|&seat| {
                self.account().seat(seat).taken.load(SeqCst) == taken && !own.contains(&seat) && self.lock_seat(seat)
            });
            if let Some(seat) = found {
                own.push(seat);
                return Ok(self.occupy(seat, pid));
            }
        }
        Err(format!("all {SEATS} seats are taken"))
    }

    /// How many seats `take_seat` chooses its first seat from. The number is small while few seats are in use. The used
    /// seats then have low numbers, and `reap` has few seats to check.
    fn span(&self) -> usize {
        (2 * self.seats_used() + 16).min(SEATS)
    }

    fn seats_used(&self) -> usize {
        (self.layout().seats_used.load(SeqCst) as usize).min(SEATS)
    }

    /// Writes this process into a seat that it has locked.
    fn occupy(&self, seat: usize, pid: u64) -> SeatHandle {
        self.layout().seats_used.fetch_max(seat as u32 + 1, SeqCst);
        let state = self.account().seat(seat);
        state.taken.store(1, SeqCst);
        let handle = self.clear(seat);
        state.namespace.store(identity::pid_namespace(), SeqCst);
        state
            .start_ticks
            .store(identity::start_ticks("self").unwrap_or(0), SeqCst);
        state.pid.store(pid, SeqCst);
        handle
    }

    /// Gives back what the previous process of a seat held. The calling process must have locked the seat.
    fn clear(&self, seat: usize) -> SeatHandle {
        let account = self.account();
        account.seat(seat).pid.store(0, SeqCst);
        let mut handle = account.handle(seat);
        let held = handle.held();
        account.give(&mut handle, held);
        handle
    }

    /// Gives back what dead processes held, and frees their seats.
    pub fn reap(&self) {
        let own = lock(&self.own);
        for seat in (0..self.seats_used()).filter(|seat| !own.contains(seat)) {
            let state = self.account().seat(seat);
            if state.taken.load(SeqCst) == 0 || !self.lock_seat(seat) {
                continue;
            }
            // Another process may have cleared the seat before this one locked it.
            if state.taken.load(SeqCst) != 0 {
                self.clear(seat);
                state.taken.store(0, SeqCst);
            }
            self.set_seat_lock(seat, libc::F_UNLCK);
        }
    }

    /// The living processes that hold bytes of this account.
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

    /// Locks a seat; false if another process has it.
    fn lock_seat(&self, seat: usize) -> bool {
        self.set_seat_lock(seat, libc::F_WRLCK)
    }

    /// Sets or drops (`kind`) the record lock on the byte of a seat, without waiting. Returns whether that succeeded.
    fn set_seat_lock(&self, seat: usize, kind: libc::c_int) -> bool {
        // SAFETY: `flock` is plain data, valid if all zero.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        lock.l_start = (offset_of!(Layout, account) + seat) as libc::off_t;
        lock.l_len = 1;
        // SAFETY: `lock` outlives the call.
        unsafe { libc::fcntl(self.fd, libc::F_SETLK, &lock) == 0 }
    }
}

/// Why a file cannot be used as an account.
enum Unusable {
    Missing,
    /// The file is not one that this process would have made, so `open` replaces it.
    Distrusted(String),
    /// The file can neither be used nor be replaced.
    Broken(String),
}

/// A lock on the folder. Only the process that holds the lock creates or replaces files in the folder. The kernel drops
/// the lock if the process dies.
struct FolderLock(libc::c_int);

impl FolderLock {
    fn new(folder: &Path) -> Result<FolderLock, String> {
        use std::os::unix::fs::DirBuilderExt;
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|problem| format!("the folder cannot be made: {problem}"))?;
        let folder = folder.canonicalize().map_err(|problem| problem.to_string())?;
        let name = c_path(&folder)?;
        let fd = files::open(&name, libc::O_RDONLY | libc::O_DIRECTORY).map_err(describe)?;
        let lock = FolderLock(fd);
        // A process holds the lock only for a few file operations. If the process that holds the lock is stopped
        // meanwhile, the calling process gives up after 2 s.
        for _ in 0..2000 {
            // SAFETY: flock takes numbers only.
            if unsafe { libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return Ok(lock);
            }
            if files::errno() != libc::EWOULDBLOCK && files::errno() != libc::EINTR {
                return Err(describe(files::errno()));
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Err("a process keeps the folder locked".to_owned())
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // SAFETY: `new` opened the descriptor, and only this value has it. Closing it drops the lock.
        unsafe { libc::close(self.0) };
    }
}

fn c_path(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| "the path has a NUL byte".to_owned())
}

fn describe(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}
