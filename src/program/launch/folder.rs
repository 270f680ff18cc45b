//! The folder of the journals: whether one can be made, or written to, before a job starts.

use std::io;
use std::path::Path;

use base::text::shown;

/// Says why no file can be made in this folder, or in the nearest folder above it that exists. `None` if one can, and also if
/// the reason may pass, such as a full disk: the job then starts without a journal.
pub fn unusable(folder: &Path) -> Option<String> {
    let folder = &std::path::absolute(folder).ok()?;
    let existing = folder.ancestors().find(|path| path.exists())?;
    if !existing.is_dir() {
        return Some(format!("{} is not a folder", shown(existing)));
    }
    let error = tempfile::tempfile_in(existing).err()?;
    let lasts = matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied
            | io::ErrorKind::NotFound
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::Unsupported
    );
    lasts.then(|| {
        let what = if existing == folder { "no file" } else { "no folder" };
        let reason = io::Error::from(error.kind());
        format!("{what} can be made in {}: {reason}", shown(existing))
    })
}
