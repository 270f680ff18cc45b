//! The file that an export or import makes. It is written beside its final place and renamed when it is complete, so
//! an interrupted command leaves no half file under the name.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use base::text::shown;
use tempfile::NamedTempFile;

/// Where the bytes go.
pub enum Output {
    Stdout(BufWriter<io::Stdout>),
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

impl Output {
    /// Begins the file. `-` is the standard output.
    pub fn create(path: &Path, force: bool) -> io::Result<Output> {
        if path.as_os_str() == "-" {
            return Ok(Output::Stdout(BufWriter::with_capacity(1 << 18, io::stdout())));
        }
        if !force && path.symlink_metadata().is_ok() {
            let told = format!("{}: exists already: give another name with -o, or --force", shown(path));
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, told));
        }
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let file = tempfile::Builder::new()
            .prefix(&format!(".{name}."))
            .suffix(".part")
            .tempfile_in(folder)
            .map_err(|problem| named(folder, "no file can be made in this folder", without_path(problem)))?;
        Ok(Output::File {
            file: BufWriter::with_capacity(1 << 18, file),
            path: path.to_owned(),
            force,
        })
    }

    /// Completes the file and gives it its name.
    pub fn finish(self) -> io::Result<()> {
        match self {
            Output::Stdout(mut out) => out.flush(),
            Output::File { file, path, force } => {
                let file = file
                    .into_inner()
                    .map_err(|error| named(&path, "cannot be written", error.into_error()))?;
                // Temporary files are for the user alone; others get what a file of the user gets.
                let allowed = 0o666 & !umask();
                let mode = std::os::unix::fs::PermissionsExt::from_mode(allowed);
                file.as_file().set_permissions(mode)?;
                let kept = match force {
                    true => file.persist(&path),
                    false => file.persist_noclobber(&path),
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

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Output::Stdout(out) => out.write(bytes),
            Output::File { file, .. } => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Stdout(out) => out.flush(),
            Output::File { file, .. } => file.flush(),
        }
    }
}
