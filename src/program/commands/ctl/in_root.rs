//! Files of a job, by the names that they have for the job. Its user made the links in its folders, and these lead nowhere
//! but to files below the job's root folder.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The place of a file: nothing was opened that has an effect.
pub struct Place(File);

impl Place {
    pub fn root(path: &Path) -> io::Result<Place> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: the path is a C string.
        made(unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC).into() })
    }

    /// The place of `path` below this root. Where the kernel cannot keep links below it (before 5.6), a link is an error.
    pub fn at(&self, path: &Path) -> io::Result<Place> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: in this plain C structure zero is a value of every field.
        let mut how: libc::open_how = unsafe { zeroed() };
        how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
        how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
        let (root, size) = (self.0.as_raw_fd(), size_of::<libc::open_how>());
        // SAFETY: the name is a C string, and the call is told the size of the structure.
        let opened = made(unsafe { libc::syscall(libc::SYS_openat2, root, name.as_ptr(), &how, size) });
        match opened {
            Err(error) if [Some(libc::ENOSYS), Some(libc::EPERM)].contains(&error.raw_os_error()) => self.step(path),
            opened => opened,
        }
    }

    fn step(&self, path: &Path) -> io::Result<Place> {
        let mut place = Place(self.0.try_clone()?);
        for part in path.components() {
            place = match part {
                Component::RootDir | Component::CurDir => continue,
                Component::Normal(name) => place.inside(name)?,
                _ => return Err(io::Error::from_raw_os_error(libc::ELOOP)),
            };
            if place.0.metadata()?.is_symlink() {
                return Err(io::Error::from_raw_os_error(libc::ELOOP));
            }
        }
        Ok(place)
    }

    /// What has this name in this folder; a link itself, not its target.
    pub fn inside(&self, name: &OsStr) -> io::Result<Place> {
        let name = CString::new(name.as_bytes())?;
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the name is a C string.
        made(unsafe { libc::openat(self.0.as_raw_fd(), name.as_ptr(), flags).into() })
    }

    pub fn metadata(&self) -> io::Result<std::fs::Metadata> {
        self.0.metadata()
    }

    /// A name for this place, as long as this value lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// The descriptor that a system call made, or the error that it left.
fn made(code: libc::c_long) -> io::Result<Place> {
    if code < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just opened it, and nothing else owns it.
    Ok(Place(unsafe { OwnedFd::from_raw_fd(code as libc::c_int) }.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_lead_nowhere_but_below_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let root = Place::root(folder.path()).unwrap();
        symlink("/etc", folder.path().join("absolute")).unwrap();
        symlink("../../../../../../../etc", folder.path().join("upwards")).unwrap();
        for link in ["/absolute", "upwards"] {
            let name = Path::new(link).join("passwd");
            assert!(root.at(&name).is_err(), "{link} leads to the file of the machine");
            assert!(root.step(&name).is_err(), "{link}");
        }
        let own = folder.path().join("etc");
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("passwd"), "own").unwrap();
        for name in ["/absolute/passwd", "etc/passwd"] {
            let found = root
                .at(Path::new(name))
                .map(|place| std::fs::read(place.path()).unwrap());
            // A kernel without openat2 refuses the link.
            assert!(
                found.as_ref().map_or(name.contains("absolute"), |text| text == b"own"),
                "{name}"
            );
        }
        let link = root.inside("absolute".as_ref()).unwrap().metadata().unwrap();
        assert!(link.is_symlink(), "a link itself is no folder");
    }
}
