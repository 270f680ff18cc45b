//! Where `serve` listens.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base::text::shown;

/// An address that a socket listens at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("the path of the socket is missing".to_owned()),
            Some(path) => Ok(Address::Unix(path.into())),
            None => (text.parse().map(Address::Tcp))
                .map_err(|_| "give an IP address and a port, such as 127.0.0.1:9087, or unix:/path".to_owned()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "http://{address}"),
            Address::Unix(path) => write!(f, "unix:{}", shown(path)),
        }
    }
}

impl Address {
    /// Whether only this machine reaches it.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Tcp(address) => address.ip().is_loopback(),
            Address::Unix(_) => true,
        }
    }
}

pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub(super) fn bind(address: &Address) -> Result<Listener, String> {
        let bound = match address {
            Address::Tcp(at) => TcpListener::bind(at).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(Listener::Tcp(listener))
            }),
            Address::Unix(path) => bind_unix(path).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(Listener::Unix(listener))
            }),
        };
        bound.map_err(|error| format!("cannot listen at {address}: {error}"))
    }

    /// The address with the port that the kernel chose.
    pub(super) fn address(&self, asked: &Address) -> Address {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map_or(asked.clone(), Address::Tcp),
            Listener::Unix(_) => asked.clone(),
        }
    }
}

/// Makes a socket that only its user reaches. A socket that nobody answers any more is replaced.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if let Ok(found) = path.symlink_metadata() {
        let taken = |why: &str| Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        if !found.file_type().is_socket() {
            return taken("the path has a file that is no socket");
        }
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
            Err(error) => return Err(error),
            Ok(_) => return taken("another process answers there"),
        }
    }
    // No other thread runs yet that could make a file meanwhile. SAFETY: umask has no preconditions.
    let mask = unsafe { libc::umask(0o177) };
    let bound = UnixListener::bind(path);
    // SAFETY: as above.
    unsafe { libc::umask(mask) };
    let listener = bound?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}
