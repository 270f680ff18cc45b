//! The folder of the journals, if the job names none, and that of the Python part.
//!
//! Journals go to the working folder, where users look for them. Clusters often have that on a network, where a journal costs
//! much and can harm the job: what a `cudaMalloc` allocates on disk goes over the network, and a mapped file that the
//! server cannot write raises SIGBUS. Then the folder is on the machine itself.

use std::path::{Path, PathBuf};

use base::filesystem::{self, private_folder};
use base::identity::effective_user;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultFolder {
    pub path: PathBuf,
    /// The remote file system of the working folder, if the journals are elsewhere because of it.
    pub avoids: Option<&'static str>,
}

/// The default folder of the job `job`. Makes the user's own folder on the machine if the journals belong there.
pub fn default_folder(job: &str) -> DefaultFolder {
    let here = std::path::absolute(".").unwrap_or_else(|_| PathBuf::from("."));
    let temporary = std::env::var_os("TMPDIR").map(PathBuf::from);
    let others = temporary
        .into_iter()
        .chain(["/tmp", "/var/tmp", "/dev/shm"].map(PathBuf::from));
    choose(job, &here, others, filesystem::remote, own_folder)
}

/// Chooses among the working folder and `others`. `remote` names the remote file system of a folder, and `own_folder`
/// makes the user's folder in another one.
fn choose(
    job: &str,
    here: &Path,
    others: impl Iterator<Item = PathBuf>,
    remote: impl Fn(&Path) -> Option<&'static str>,
    own_folder: impl Fn(&Path) -> Option<PathBuf>,
) -> DefaultFolder {
    let name = format!("vramshim-{job}");
    let avoids = remote(here);
    let mut local = others.filter(|folder| folder.is_absolute() && folder.is_dir() && remote(folder).is_none());
    let (path, avoids) = match avoids.and_then(|_| local.find_map(|folder| own_folder(&folder))) {
        Some(own) => (own.join(name), avoids),
        None => (PathBuf::from(name), None),
    };
    DefaultFolder { path, avoids }
}

/// The folder `vramshim-UID` in a folder that others may write too. `None` if it is not the user's alone.
fn own_folder(folder: &Path) -> Option<PathBuf> {
    let own = folder.join(format!("vramshim-{}", effective_user()));
    private_folder(&own).is_ok_and(|is_private| is_private).then_some(own)
}

/// The folder that holds the Python package `vramshim`: `python` beside the library at this path or one folder above it, or
/// the sources that the library was built from. `None` if the package is in none of these folders.
pub fn python_folder(library: &Path) -> Option<PathBuf> {
    let library = library.canonicalize().ok()?;
    let places = ["python", "../python", "../../src/python"].map(|place| library.with_file_name(place));
    let found = places.iter().find(|place| place.join("vramshim/startup.py").is_file());
    found?.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::filesystem::{Storage, kind};

    const EXT4: u32 = 0xef53;
    const NFS: u32 = 0x6969;
    const LUSTRE: u32 = 0x0bd0_0bd0;
    const TMPFS: u32 = 0x0102_1994;

    /// What is chosen if the working folder, /tmp and /dev have file systems with these numbers.
    fn chosen(here: u32, tmp: u32, dev: u32) -> DefaultFolder {
        let number = |folder: &Path| match folder.to_str() {
            Some("/home") => here,
            Some("/tmp") => tmp,
            _ => dev,
        };
        let remote = |folder: &Path| {
            let kind = kind(number(folder)).filter(|kind| kind.storage == Storage::Remote);
            kind.map(|kind| kind.name)
        };
        let others = ["relative", "/nowhere/at/all", "/tmp", "/dev"].map(PathBuf::from);
        choose("train", Path::new("/home"), others.into_iter(), remote, |folder| {
            Some(folder.join("own"))
        })
    }

    #[test]
    fn journals_are_on_the_machine_if_the_working_folder_is_not() {
        let folder = |path: &str, avoids| {
            let path = path.into();
            DefaultFolder { path, avoids }
        };
        let here = folder("vramshim-train", None);
        assert_eq!(chosen(EXT4, EXT4, TMPFS), here);
        assert_eq!(chosen(TMPFS, EXT4, TMPFS), here);
        assert_eq!(chosen(NFS, EXT4, TMPFS), folder("/tmp/own/vramshim-train", Some("NFS")));
        assert_eq!(
            chosen(LUSTRE, NFS, TMPFS),
            folder("/dev/own/vramshim-train", Some("Lustre"))
        );
        assert_eq!(chosen(NFS, LUSTRE, NFS), here);
    }
}
