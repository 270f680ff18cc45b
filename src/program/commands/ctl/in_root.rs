//! Files of a job, by the names that they have for the job. Its user made the links in its folders, and these lead nowhere
//! but to files below the job's root folder.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// The place of a file: nothing was opened that has an effect.
pub struct Place(File);

impl Place {
    fn found(path: &Path, flags: libc::c_int) -> io::Result<Place> {
        let opened = File::options().read(true).custom_flags(libc::O_PATH | flags).open(path);
        opened.map(Place)
    }

    pub fn root(path: &Path) -> io::Result<Place> {
        Place::found(path, 0)
    }

    /// The place of `path` below this root. Where the kernel cannot keep links below it (before 5.6), a link is an error.
    pub fn at(&self, path: &Path) -> io::Result<Place> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        match openat2(&self.0, path, flags, Mode::empty(), resolve) {
            Ok(found) => Ok(Place(found.into())),
            Err(Errno::NOSYS | Errno::PERM) => self.step(path),
            Err(error) => Err(error.into()),
        }
    }

    fn step(&self, path: &Path) -> io::Result<Place> {
        let mut place = Place(self.0.try_clone()?);
        for part in path.components().filter(|part| *part != Component::RootDir) {
            place = place.inside(part.as_os_str())?;
            if part == Component::ParentDir || place.metadata()?.is_symlink() {
                return Err(io::Error::from_raw_os_error(libc::ELOOP));
            }
        }
        Ok(place)
    }

    /// What has this name in this folder; a link itself, not its target.
    pub fn inside(&self, name: &OsStr) -> io::Result<Place> {
        Place::found(&self.path().join(name), libc::O_NOFOLLOW)
    }

    pub fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// A name for this place, as long as this value lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_nowhere_but_below_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let root = Place::root(folder.path()).unwrap();
        for (link, target) in [("absolute", "/etc"), ("upwards", "../../../../../../../etc")] {
            std::os::unix::fs::symlink(target, folder.path().join(link)).unwrap();
            let name = Path::new(link).join("passwd");
            assert!(root.at(&name).is_err(), "{link} leads to the file of the machine");
            assert!(root.step(&name).is_err(), "{link}");
        }
        let own = folder.path().join("passwd");
        std::fs::write(own, "own").unwrap();
        assert!(root.at(Path::new("/passwd")).is_ok() && root.step(Path::new("/passwd")).is_ok());
    }
}
