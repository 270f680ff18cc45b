//! The way to a job's control socket.
//!
//! The job may be in a container, with another root folder, another pid there, and another user id than here. The kernel
//! says who listens: an answer counts only if it is the process that was asked for.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::control::{FOLDERS, folder_in, is_socket_of};
use base::identity::effective_user;
use base::sockets::peer_of;
use base::text::shown;
use journal::reader::plain;
use serde_json::Value;

use super::in_root::Place;
use crate::failure::Failure;

/// How long the job may take to answer. It may wait for the driver meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);
/// An answer is never longer.
const LONGEST_ANSWER_BYTES: u64 = 16 << 20;

/// What this machine says of the process.
struct Process {
    /// Its user, as the process's own user namespace numbers it.
    user: u32,
    /// The same as this program's user namespace numbers it.
    user_here: u32,
    /// Its id in its own pid namespace.
    own_pid: u32,
    root: PathBuf,
}

impl Process {
    fn of(pid: u32) -> Result<Process, Failure> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let status = std::fs::read_to_string(folder.join("status"))
            .map_err(|_| Failure::failed(format!("there is no process {pid}")))?;
        let last_of = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field))?;
            line.split_ascii_whitespace().next_back()?.parse().ok()
        };
        // "Uid" has real, effective, saved and file system user.
        let effective = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        let effective = effective.and_then(|line| line.split_ascii_whitespace().nth(1)?.parse().ok());
        Ok(Process {
            user: in_its_namespace(&folder, effective.unwrap_or(0)),
            user_here: effective.unwrap_or(0),
            own_pid: last_of("NSpid:").unwrap_or(pid),
            root: if other_root(&folder) {
                folder.join("root")
            } else {
                PathBuf::from("/")
            },
        })
    }

    /// The sockets that may be the process's.
    fn sockets(&self) -> Vec<Place> {
        let Ok(root) = Place::root(&self.root) else {
            return Vec::new();
        };
        let folders = FOLDERS.iter().map(|parent| folder_in(Path::new(parent), self.user));
        let folders = folders.filter_map(|folder| root.at(&folder).ok());
        let is_its = |name: &OsStr| name.to_str().is_some_and(|name| is_socket_of(name, self.own_pid));
        let sockets = folders.flat_map(|folder| {
            let names = plain::entries_of(&folder.path()).into_iter().flatten();
            let own = names.map(|entry| entry.file_name()).filter(|name| is_its(name));
            own.filter_map(|name| folder.inside(&name).ok()).collect::<Vec<_>>()
        });
        sockets
            .filter(|socket| socket.metadata().is_ok_and(|found| found.file_type().is_socket()))
            .collect()
    }
}

/// Whether the process sees other files than this program under the same names.
fn other_root(process: &Path) -> bool {
    let identity = |path: PathBuf| std::fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    let differs = |name: &str| {
        let theirs = identity(process.join(name));
        theirs.is_some() && theirs != identity(Path::new("/proc/self").join(name))
    };
    differs("ns/mnt") || differs("root/.")
}

/// A user id as the process's user namespace numbers it (`/proc/PID/uid_map`: first id inside, first id here, count).
fn in_its_namespace(process: &Path, user: u32) -> u32 {
    let map_of = |process: &Path| std::fs::read_to_string(process.join("uid_map")).unwrap_or_default();
    let map = map_of(process);
    if map == map_of(Path::new("/proc/self")) {
        return user;
    }
    let inside = map.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map(|number| number.parse::<u32>().ok());
        let (inside, here, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let by = user.checked_sub(here).filter(|&by| by < count)?;
        Some(inside + by)
    });
    inside.unwrap_or(user)
}

/// Sends a line to a process, and returns its answer.
pub fn ask(pid: u32, line: &str) -> Result<Value, Failure> {
    let (process, mut problem) = (Process::of(pid)?, None);
    let mut sockets = process.sockets().into_iter();
    let reached = sockets.find_map(|socket| connect(&socket.path(), pid).map_err(|error| problem = Some(error)).ok());
    let mut stream = reached.ok_or_else(|| {
        Failure::failed(match problem {
            None => format!(
                "process {pid} has no control socket that this user can see; start the job with vramshim run --control \
                 (VRAMSHIM_CONTROL=1), ask as the job's user or root, and wait until the job has used a GPU"
            ),
            Some(error) => format!("process {pid} cannot be reached: {error}"),
        })
    })?;
    let hung_up = format!("process {pid} hung up; it answers its own user and root alone, and eight peers at a time");
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Failure::failed(&hung_up),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Failure::failed(format!(
            "process {pid} did not answer within {} s; it may be stopped, or waits for the driver",
            PATIENCE.as_secs()
        )),
        _ => Failure::failed(format!("process {pid} did not answer: {error}")),
    };
    stream.write_all(format!("{line}\n").as_bytes()).map_err(failed)?;
    let mut answer = Vec::new();
    stream
        .take(LONGEST_ANSWER_BYTES)
        .read_to_end(&mut answer)
        .map_err(failed)?;
    if answer.is_empty() {
        return Err(Failure::failed(hung_up));
    }
    serde_json::from_slice(&answer)
        .map_err(|error| Failure::failed(format!("process {pid} answered something else than JSON: {error}")))
}

/// Connects to a socket, if the process itself listens there.
fn connect(socket: &Path, pid: u32) -> io::Result<UnixStream> {
    let stream = plain::connect(socket, PATIENCE)?;
    let who = peer_of(stream.as_raw_fd())?;
    if who.pid != pid as libc::pid_t {
        return Err(io::Error::other(format!("process {} listens at its socket", who.pid)));
    }
    Ok(stream)
}

/// The journal of a process, by the name that it has for the process. A plain file of the process's user is there.
pub struct JournalOf {
    /// Keeps `path` right, which leads through it.
    _folder: Place,
    pub path: PathBuf,
    pub file: Place,
}

impl JournalOf {
    pub fn of(pid: u32, path: &Path) -> Result<JournalOf, Failure> {
        let process = Process::of(pid)?;
        let found = || -> io::Result<JournalOf> {
            let name = path.file_name().ok_or(io::ErrorKind::NotFound)?;
            let folder = Place::root(&process.root)?.at(path.parent().unwrap_or(path))?;
            let file = folder.inside(name)?;
            let (found, path) = (file.metadata()?, folder.path().join(name));
            let is_root = effective_user() == 0;
            match found.is_file() {
                false => Err(io::Error::other("no plain file")),
                true if is_root && found.uid() != process.user_here => {
                    Err(io::Error::other("a file of another user than the process's"))
                }
                true => Ok(JournalOf {
                    _folder: folder,
                    path,
                    file,
                }),
            }
        };
        found().map_err(|error| Failure::failed(format!("{}: cannot be read: {error}", shown(path))))
    }
}
