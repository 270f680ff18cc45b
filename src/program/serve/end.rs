//! The end of `serve`: SIGINT or SIGTERM.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

/// Something can be read from the socket once a signal came, also if it came before the wait.
pub struct End(UnixStream);

impl End {
    /// From here on the signals do not end the process.
    pub fn at_signals() -> io::Result<End> {
        let (end, signals) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            signal_hook::low_level::pipe::register(signal, signals.try_clone()?)?;
        }
        Ok(End(end))
    }

    /// Waits for so long. Returns whether a signal came.
    pub fn came_within(&mut self, longest: Duration) -> io::Result<bool> {
        self.0.set_read_timeout(Some(longest))?;
        match self.0.read(&mut [0]) {
            Ok(_) => Ok(true),
            Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind()) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn into_socket(self) -> io::Result<UnixStream> {
        self.0.set_nonblocking(true)?;
        Ok(self.0)
    }
}
