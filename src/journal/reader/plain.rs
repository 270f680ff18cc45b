//! Opens files that another user may have placed: plain files alone, and never a wait.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a file for reading; `None` if it is no plain file. Does not wait.
pub fn open(path: &Path) -> io::Result<Option<File>> {
    // The kind of the file is checked before the file is opened, because opening a device file can have effects.
    if !std::fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    // If a FIFO has taken the file's place meanwhile, `O_NONBLOCK` keeps `open` from waiting for the FIFO's writer.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}
