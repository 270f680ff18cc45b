//! The control socket, by which `vramshim ctl` reaches the process (`VRAMSHIM_CONTROL=1`).
//!
//! The keeper serves it, so it has no thread. Nothing here waits: a peer that is slow or silent is left alone until its time
//! is up, and holds up neither the job nor other peers. A peer sends one line and gets one line of JSON.
//!
//! The socket is in a folder that only the user can enter, and the kernel names the user of each peer: only the user of the
//! process, and root, get an answer. A forked child closes its copy of the socket, so it never answers for its parent.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use base::file::names_in;
use base::filesystem::private_folder;
use base::say::{debug, warn};

use crate::engine::{Engine, scope, sockets};
use base::api::Api;
use base::control::{FOLDERS, folder_in, socket_name};
use base::descriptor::{Descriptor, Inherited};
use base::identity::{self, effective_user};
use base::text::shown;

/// How soon a new peer, and a peer that has begun, is looked at.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);
const WITH_PEERS: Duration = Duration::from_millis(10);
/// A peer has so long to send its line and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many peers are served at a time. A further one takes the place of the oldest.
const MOST_PEERS: usize = 8;
const LONGEST_LINE_BYTES: usize = 1024;
const KIND: libc::c_int = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
/// After a failure, and after the job closed the socket, a new one is made at this interval.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// The socket, which a forked child closes.
static LISTENER: Inherited = Inherited::none();

struct Peer {
    descriptor: Descriptor,
    since: Instant,
    line: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
}

pub struct Socket {
    engine: &'static Engine,
    listener: Option<Descriptor>,
    peers: Vec<Peer>,
    next_try: Instant,
    has_warned: bool,
}

/// The folder of this user's sockets in the first of the `parents` that has one, or where one can be made. Refuses a folder
/// that another user owns or can enter.
fn folder(parents: &[&str]) -> io::Result<PathBuf> {
    let user = effective_user();
    let mut problem = io::Error::from_raw_os_error(libc::ENOENT);
    for parent in parents {
        let folder = folder_in(Path::new(parent), user);
        problem = match private_folder(&folder) {
            Ok(true) => return Ok(folder),
            Ok(false) => io::Error::other(format!(
                "{} is not a folder of this user alone (mode 0700)",
                shown(&folder)
            )),
            Err(error) => error,
        };
    }
    Err(problem)
}

/// Makes the socket. It gets its name when peers can connect, so a name whose peers are refused is left over.
fn listen(at: &Path) -> io::Result<Descriptor> {
    let new = at.with_extension("new");
    match std::fs::remove_file(&new) {
        Err(problem) if problem.kind() != io::ErrorKind::NotFound => return Err(problem),
        _ => {}
    }
    let socket = sockets::listen(KIND, new.as_os_str().as_bytes(), MOST_PEERS as libc::c_int)?;
    std::fs::rename(&new, at)?;
    Ok(socket)
}

/// Where the socket of this process is, for its end.
static PLACE: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

/// The name of the socket of the process with this id.
struct Place {
    pid: u32,
    path: CString,
}

/// Removes the sockets of processes of this user that are gone: a killed process leaves its own. Nobody listens there.
fn remove_left_over(folder: &Path) {
    for name in names_in(folder) {
        let path = folder.join(name);
        let is_socket = path
            .extension()
            .is_some_and(|extension| extension == base::control::EXTENSION);
        let connected = || sockets::connect(&sockets::socket(KIND)?, path.as_os_str().as_bytes());
        let refuses = || connected().is_err_and(|problem| problem.raw_os_error() == Some(libc::ECONNREFUSED));
        if is_socket && refuses() {
            let _ = std::fs::remove_file(&path);
        }
    }
}

impl Socket {
    pub fn new(engine: &'static Engine) -> Socket {
        Socket {
            engine,
            listener: None,
            peers: Vec::new(),
            next_try: Instant::now(),
            has_warned: false,
        }
    }

    /// Looks once at the socket and at every peer, and waits for none. Returns how long the caller may sleep.
    pub fn serve(&mut self) -> Duration {
        let is_open = self
            .listener
            .as_ref()
            .is_some_and(|listener| listener.number().is_some());
        if !is_open && Instant::now() >= self.next_try {
            self.open();
        }
        self.take_peers();
        // Calls that the next layer makes meanwhile are not calls of the job.
        let _scope = scope::driver(Api::IdleRelease);
        let engine = self.engine;
        self.peers.retain_mut(|peer| {
            let is_done = peer.step(engine).unwrap_or(true);
            !is_done && peer.since.elapsed() < PATIENCE
        });
        if self.peers.is_empty() {
            LONGEST_SLEEP
        } else {
            WITH_PEERS
        }
    }

    fn open(&mut self) {
        self.next_try = Instant::now() + BETWEEN_TRIES;
        let opened = folder(&FOLDERS).and_then(|folder| {
            remove_left_over(&folder);
            let ticks = identity::start_ticks("self").unwrap_or(0);
            let path = folder.join(socket_name(self.engine.pid, ticks));
            listen(&path).map(|listener| (listener, path))
        });
        match opened {
            Ok((listener, path)) => {
                debug!("vramshim ctl reaches this process at {}", shown(&path));
                LISTENER.holds(&listener);
                if let Ok(path) = CString::new(path.as_os_str().as_bytes()) {
                    let pid = self.engine.pid;
                    // It is never freed: the process may end at any moment.
                    PLACE.store(Box::leak(Box::new(Place { pid, path })), Ordering::Release);
                }
                self.listener = Some(listener);
            }
            Err(problem) if !self.has_warned => {
                self.has_warned = true;
                warn!("no control socket: {problem}; vramshim ctl does not reach this process");
            }
            Err(_) => {}
        }
    }

    fn take_peers(&mut self) {
        let Some(listener) = &self.listener else { return };
        for _ in 0..MOST_PEERS {
            let Ok(descriptor) = sockets::accept(listener) else {
                return;
            };
            if !sockets::peer_is_ours(&descriptor, true) {
                continue;
            }
            if self.peers.len() == MOST_PEERS {
                self.peers.remove(0);
            }
            self.peers.push(Peer {
                descriptor,
                since: Instant::now(),
                line: Vec::new(),
                answer: Vec::new(),
                sent: 0,
            });
        }
    }
}

impl Peer {
    /// Returns whether the peer has nothing more to send or to take.
    fn step(&mut self, engine: &'static Engine) -> io::Result<bool> {
        if self.answer.is_empty() {
            let Some(end) = self.read()? else { return Ok(false) };
            let line = String::from_utf8_lossy(&self.line[..end]).into_owned();
            self.answer = engine.answer(&line).into_bytes();
        }
        let fd = self.descriptor.open_number()?;
        let (left, flags) = (&self.answer[self.sent..], libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
        // SAFETY: the bytes are readable. No signal is raised for a peer that hung up.
        let sent = unsafe { libc::send(fd, left.as_ptr().cast(), left.len(), flags) };
        match usize::try_from(sent) {
            Ok(sent) => self.sent += sent,
            Err(_) => later(io::Error::last_os_error())?,
        }
        Ok(self.sent == self.answer.len())
    }

    /// Reads what has arrived. Returns the length of the line, if it is whole.
    fn read(&mut self) -> io::Result<Option<usize>> {
        let mut bytes = [0; LONGEST_LINE_BYTES];
        let fd = self.descriptor.open_number()?;
        // SAFETY: the buffer is writable.
        let got = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        match usize::try_from(got) {
            // The peer hung up.
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            Ok(got) => self.line.extend_from_slice(&bytes[..got]),
            Err(_) => return later(io::Error::last_os_error()).map(|()| None),
        }
        let end = self.line.iter().position(|&byte| byte == b'\n');
        if end.is_none() && self.line.len() > LONGEST_LINE_BYTES {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        Ok(end)
    }
}

/// A call that would have to wait is made again at the next look.
fn later(problem: io::Error) -> io::Result<()> {
    match problem.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(problem),
    }
}

/// Closes the child's copy of the socket. This calls only functions that are safe in a signal handler.
pub fn in_forked_child() {
    LISTENER.close();
}

/// Removes the socket's name when the process ends. This calls only functions that are safe in a signal handler.
pub fn process_ends(pid: u32) {
    // SAFETY: the pointer is null, or to a place that is never freed.
    if let Some(place) = unsafe { PLACE.load(Ordering::Acquire).as_ref() }
        && place.pid == pid
    {
        // SAFETY: the path is NUL-terminated.
        unsafe { libc::unlink(place.path.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn only_a_folder_of_this_user_alone_is_taken() {
        let two = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [first, second] = [&two[0], &two[1]].map(|folder| folder.path().to_str().unwrap());
        let user = effective_user();
        let made = folder(&[first, second]).unwrap();
        assert_eq!(made, folder_in(first.as_ref(), user));
        assert_eq!(std::fs::metadata(&made).unwrap().mode() & 0o777, 0o700);

        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o711)).unwrap();
        assert!(
            folder(&[first])
                .unwrap_err()
                .to_string()
                .contains("not a folder of this user alone")
        );
        assert_eq!(folder(&[first, second]).unwrap(), folder_in(second.as_ref(), user));

        std::fs::remove_dir(&made).unwrap();
        std::os::unix::fs::symlink(folder_in(second.as_ref(), user), &made).unwrap();
        assert!(folder(&[first]).is_err(), "a link");
        assert!(folder(&["/nonexistent"]).is_err());
    }
}
