//! Where `serve` listens.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use base::text::shown;
use journal::reader::plain;
use tokio::io::{AsyncRead, AsyncWrite};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug, thiserror::Error)]
#[error("give an IP address and a port, such as 127.0.0.1:9087, or unix:/path")]
pub struct NoAddress;

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Address, NoAddress> {
        match text.strip_prefix("unix:") {
            Some("") => Err(NoAddress),
            Some(path) => Ok(Address::Unix(path.into())),
            None => text.parse().map(Address::Tcp).map_err(|_| NoAddress),
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
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

/// A connection, at either kind of address.
pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

impl Listener {
    pub async fn accept(&self) -> io::Result<Box<dyn Socket>> {
        Ok(match self {
            Listener::Tcp(listener) => Box::new(listener.accept().await?.0),
            Listener::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Listens there, in a runtime of tokio. Also returns the address with the port that the kernel chose.
pub(super) fn bind(address: &Address) -> io::Result<(Listener, Address)> {
    match address {
        Address::Tcp(at) => {
            let listener = TcpListener::bind(at)?;
            listener.set_nonblocking(true)?;
            let bound = Address::Tcp(listener.local_addr()?);
            Ok((Listener::Tcp(tokio::net::TcpListener::from_std(listener)?), bound))
        }
        Address::Unix(path) => {
            let listener = bind_unix(path)?;
            listener.set_nonblocking(true)?;
            let listener = tokio::net::UnixListener::from_std(listener)?;
            Ok((Listener::Unix(listener), address.clone()))
        }
    }
}

/// How long another process may take to answer at the address.
const PATIENCE: Duration = Duration::from_secs(1);

/// Makes a socket that only its user reaches. A socket at which no process listens any more is replaced.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if let Ok(found) = path.symlink_metadata() {
        let taken = |why: &str| Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        if !found.file_type().is_socket() {
            return taken("the path has a file that is no socket");
        }
        match plain::connect(path, PATIENCE) {
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
