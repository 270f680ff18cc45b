//! The file that an export or import makes. It is written beside its final place and renamed when it is complete, so
//! an interrupted command leaves no half file under the name.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use base::text::shown;
use journal::reader::plain::may_grant;
use tempfile::NamedTempFile;

use crate::escaped::Escaped;

pub enum Output {
    Stdout(Box<dyn Write + Send>),
    File {
        file: BufWriter<NamedTempFile>,
        path: PathBuf,
        /// Replaces a file that is there.
        force: bool,
    },
}

fn named(path: &Path, what: &str, problem: io::Error) -> io::Error {
    io::Error::new(problem.kind(), format!("{}: {what}: {problem}", shown(path)))
}

/// The problem alone: errors of `tempfile` end with the path of the temporary file, which the user does not know.
fn without_path(problem: io::Error) -> io::Error {
    let text = problem.to_string();
    let alone = text.split(" at path ").next().unwrap_or_default();
    io::Error::new(problem.kind(), alone.to_owned())
}

/// Makes the file that gets the name `path` when it is complete. The error names the folder.
pub fn part(path: &Path) -> io::Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let made = tempfile::Builder::new()
        .prefix(&format!(".{name}."))
        .suffix(".part")
        .tempfile_in(folder);
    made.map_err(|problem| named(folder, "no file can be made in this folder", without_path(problem)))
}

impl Output {
    /// Begins the file. `-` is the standard output.
    pub fn create(path: &Path, force: bool) -> io::Result<Output> {
        if path.as_os_str() == "-" {
            let stdout = BufWriter::with_capacity(1 << 18, io::stdout());
            return Ok(Output::Stdout(match io::stdout().is_terminal() {
                true => Box::new(Escaped::for_terminal(stdout)),
                false => Box::new(stdout),
            }));
        }
        if !force && path.symlink_metadata().is_ok() {
            let told = format!("{}: exists already: give another name with -o, or --force", shown(path));
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, told));
        }
        // A rename would put a file in place of a device, a pipe or a link. A link's target is replaced instead.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            let told = format!("{}: is no plain file; - is the standard output", shown(&path));
            return Err(io::Error::new(io::ErrorKind::InvalidInput, told));
        }
        let file = part(&path)?;
        Ok(Output::File {
            file: BufWriter::with_capacity(1 << 18, file),
            path,
            force,
        })
    }

    /// Completes the file and gives it its name. Others may read it only if they may read each file that was read for it.
    pub fn finish(self) -> io::Result<()> {
        self.finish_with(may_grant())
    }

    /// The same, for what says nothing that only the readers of the files may know.
    pub fn finish_for_all(self) -> io::Result<()> {
        self.finish_with(0o666)
    }

    fn finish_with(mut self, may: u32) -> io::Result<()> {
        self.flush()?;
        match self {
            Output::Stdout(_) => Ok(()),
            Output::File { file, path, force } => {
                let file = file
                    .into_inner()
                    .map_err(|error| named(&path, "cannot be written", without_path(error.into_error())))?;
                // Temporary files are for the user alone; others get what a file of the user gets.
                let allowed = !umask() & may;
                let mode = std::os::unix::fs::PermissionsExt::from_mode(allowed);
                file.as_file().set_permissions(mode)?;
                let kept = if force {
                    file.persist(&path)
                } else {
                    file.persist_noclobber(&path)
                };
                kept.map(drop)
                    .map_err(|error| named(&path, "cannot be given its name", error.error))
            }
        }
    }
}

fn umask() -> u32 {
    // The kernel tells the mask without a change of it, which other threads would see.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok())
        .unwrap_or(0o077)
}

impl Output {
    /// Says what could not be written, by the name that the user gave.
    fn told<T>(&self, done: io::Result<T>) -> io::Result<T> {
        done.map_err(|problem| match self {
            // The caller goes on with these.
            _ if problem.kind() == io::ErrorKind::Interrupted => problem,
            Output::Stdout(_) => io::Error::new(problem.kind(), format!("cannot write to standard output: {problem}")),
            Output::File { path, .. } => named(path, "cannot be written", without_path(problem)),
        })
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = match self {
            Output::Stdout(out) => out.write(bytes),
            Output::File { file, .. } => file.write(bytes),
        };
        self.told(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = match self {
            Output::Stdout(out) => out.flush(),
            Output::File { file, .. } => file.flush(),
        };
        self.told(done)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, symlink};

    use super::*;

    #[test]
    fn a_pipe_stays_and_a_link_leads_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name is a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let refused = Output::create(&pipe, true).err().expect("a pipe is no file to replace");
        assert!(refused.to_string().contains("is no plain file"), "{refused}");
        assert!(pipe.symlink_metadata().unwrap().file_type().is_fifo());
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "old").unwrap();
        symlink(&file, &link).unwrap();
        let mut out = Output::create(&link, true).unwrap();
        out.write_all(b"new").unwrap();
        out.finish().unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
    }
}
