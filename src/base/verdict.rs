//! What `vramshim doctor --assumptions` found of a driver, kept in a file for later jobs.
//!
//! There is one file for each kind of device, driver and layer (`Subject`), in a folder of the user's. The file is
//! plain text: a line with the format's name, the lines of the subject, the time, and a line for each assumption. A reader
//! takes nothing from a file that others can write, that is too large, or that is about something else.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::file;
use crate::identity::{effective_user, for_file_name};
use crate::named;

/// The first line of each file.
const FORMAT: &str = "vramshim assumptions 1";
/// A file with a line for each assumption is much smaller.
const MOST_BYTES: u64 = 64 << 10;

/// What a verdict is about. Devices of one kind share a verdict, because an assumption is about the driver and its
/// layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub device: String,
    /// The answer of `cuDriverGetVersion`.
    pub cuda: i32,
    /// The file that answers `cuMemAlloc`: the driver, or a layer in front of it.
    pub answers: String,
    /// What the kernel says of the driver; empty if there is no such file.
    pub module: String,
}

impl Subject {
    /// `answers` is the path under which the loader found the file.
    pub fn new(device: &str, cuda: i32, answers: &str) -> Self {
        let module = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
        let real = Path::new(answers).canonicalize();
        let real = real.map_or_else(|_| answers.to_owned(), |path| path.to_string_lossy().into_owned());
        Subject {
            device: one_line(device),
            cuda,
            answers: one_line(&real),
            module: one_line(module.lines().next().unwrap_or_default()),
        }
    }

    fn lines(&self) -> String {
        let [device, answers, module] = [&self.device, &self.answers, &self.module];
        let cuda = self.cuda;
        format!("{FORMAT}\ndevice {device}\ncuda {cuda}\nanswers {answers}\nmodule {module}\n")
    }

    pub fn file_in(&self, folder: &Path) -> PathBuf {
        let hash = self.lines().bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        folder.join(format!("assumptions-{}-{hash:016x}", for_file_name(&self.device)))
    }
}

fn one_line(text: &str) -> String {
    text.trim().replace(char::is_control, " ")
}

named! {
    /// How the question for an assumption ended, as the probes print it.
    pub enum Outcome {
        Holds => "holds",
        Differs => "differs",
        /// The probe did not end in its time.
        Hangs => "hangs",
        /// The question cannot be put to this driver or machine.
        NotAsked => "not asked",
    }
}

impl Outcome {
    pub const fn fails(self) -> bool {
        matches!(self, Outcome::Differs | Outcome::Hangs)
    }
}

/// The outcomes for one subject, by the names of the assumptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// When the questions were asked, in seconds of the clock since 1970.
    pub asked_s: u64,
    pub outcomes: Vec<(String, Outcome)>,
}

impl Verdict {
    pub fn of(&self, assumption: &str) -> Option<Outcome> {
        let found = self.outcomes.iter().find(|(name, _)| name == assumption);
        found.map(|&(_, outcome)| outcome)
    }

    /// The verdict on a subject, if the folder has one that can be trusted.
    pub fn read(folder: &Path, subject: &Subject) -> Option<Verdict> {
        let text = trusted_text(&subject.file_in(folder))?;
        let mut lines = text.strip_prefix(&subject.lines())?.lines();
        let asked_s = lines.next()?.strip_prefix("asked ")?.parse().ok()?;
        let outcome = |line: &str| {
            let (name, outcome) = line.split_once(' ')?;
            Some((name.to_owned(), Outcome::parse(outcome)?))
        };
        Some(Verdict {
            asked_s,
            outcomes: lines.filter_map(outcome).collect(),
        })
    }

    /// Writes the verdict in place of an earlier one. Returns the path of the file.
    pub fn write(&self, folder: &Path, subject: &Subject) -> io::Result<PathBuf> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut text = subject.lines();
        let _ = writeln!(text, "asked {}", self.asked_s);
        for (name, outcome) in &self.outcomes {
            let _ = writeln!(text, "{} {}", one_line(name), outcome.name());
        }
        let path = subject.file_in(folder);
        let fresh = path.with_extension(format!("{}.new", std::process::id()));
        let written = opened(&fresh, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            std::fs::rename(&fresh, &path)
        });
        written.inspect_err(|_| drop(std::fs::remove_file(&fresh)))?;
        Ok(path)
    }
}

/// Opens a file out of the way of the job, which may count on its next descriptor.
fn opened(path: &Path, flags: libc::c_int) -> io::Result<File> {
    let fd = file::c_path(path).and_then(|name| file::open(&name, flags));
    let fd = fd.map_err(io::Error::from_raw_os_error)?;
    // SAFETY: the descriptor was just opened, and only this value owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// The text of a regular file that only this user or root can write.
fn trusted_text(path: &Path) -> Option<String> {
    // Without O_NONBLOCK, a named pipe would stop the job here.
    let file = opened(path, libc::O_RDONLY | libc::O_NONBLOCK).ok()?;
    let about = file.metadata().ok()?;
    let own = about.uid() == effective_user() || about.uid() == 0;
    if !about.is_file() || !own || about.mode() & 0o022 != 0 || about.len() > MOST_BYTES {
        return None;
    }
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn subject(device: &str) -> Subject {
        Subject {
            device: device.into(),
            cuda: 13000,
            answers: "/lib/libcuda.so.580.1".into(),
            module: "NVRM version 580.1".into(),
        }
    }

    fn verdict() -> Verdict {
        Verdict {
            asked_s: 1_763_850_000,
            outcomes: vec![
                ("granularity".into(), Outcome::Holds),
                ("retain_handle".into(), Outcome::NotAsked),
                ("alias".into(), Outcome::Hangs),
            ],
        }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("vramshim-verdict-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn what_is_written_is_read_and_only_for_its_subject() {
        let folder = folder("written");
        let path = verdict().write(&folder, &subject("H100")).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(Verdict::read(&folder, &subject("H100")), Some(verdict()));
        assert_eq!(Verdict::read(&folder, &subject("A100")), None);
        let text = std::fs::read_to_string(&path).unwrap() + "new_one explodes\nalone\nlast differs\n";
        std::fs::write(&path, text).unwrap();
        let read = Verdict::read(&folder, &subject("H100")).unwrap();
        let known = (read.of("last"), read.of("new_one"), read.outcomes.len());
        // Lines that are not understood are left out.
        assert_eq!(known, (Some(Outcome::Differs), None, 4));
        // The same file name, and another subject inside.
        std::fs::rename(&path, subject("A100").file_in(&folder)).unwrap();
        assert_eq!(Verdict::read(&folder, &subject("A100")), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_that_others_can_write_or_that_is_none_says_nothing() {
        let folder = folder("suspicious");
        let path = verdict().write(&folder, &subject("H100")).unwrap();
        let read = || Verdict::read(&folder, &subject("H100"));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o620)).unwrap();
        assert_eq!(read(), None);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        assert!(read().is_some());
        let kept = folder.join("kept");
        std::fs::rename(&path, &kept).unwrap();
        std::os::unix::fs::symlink(&kept, &path).unwrap();
        assert_eq!(read(), None, "a link");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, vec![b'x'; MOST_BYTES as usize + 1]).unwrap();
        assert_eq!(read(), None, "too large");
        std::fs::write(&path, b"vramshim assumptions 1\ndevice \xff").unwrap();
        assert_eq!(read(), None, "no text");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(read(), None, "a folder");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
