//! What kind of file system a folder is on, and folders that one user alone can enter.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use crate::file::c_path;
use crate::identity::effective_user;

/// Where the files of a file system are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    Memory,
    /// On another machine, or behind a process in user space. A mapped file can fail there when its pages are written
    /// back, and the process that mapped the file gets SIGBUS.
    Remote,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub name: &'static str,
    pub storage: Storage,
}

/// The file system with this `f_type` of statfs(2), if it is known to be in memory, on a network or in user space. The
/// numbers are from the kernel's `linux/magic.h`, statfs(2), and the file systems' own sources.
pub fn kind(f_type: u32) -> Option<Kind> {
    let (name, storage) = match f_type {
        0x0102_1994 => ("tmpfs", Storage::Memory),
        0x8584_58f6 => ("ramfs", Storage::Memory),
        0x6969 => ("NFS", Storage::Remote),
        0x6573_5546 => ("FUSE", Storage::Remote),
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => ("SMB", Storage::Remote),
        0x0bd0_0bd0 => ("Lustre", Storage::Remote),
        0x4750_4653 => ("GPFS", Storage::Remote),
        0x1983_0326 => ("BeeGFS", Storage::Remote),
        0x00c3_6400 => ("Ceph", Storage::Remote),
        0xaad7_aaea => ("PanFS", Storage::Remote),
        0x2003_0528 => ("OrangeFS", Storage::Remote),
        0x5346_414f | 0x6b41_4653 => ("AFS", Storage::Remote),
        0x7375_7245 => ("Coda", Storage::Remote),
        0x0116_1970 => ("GFS2", Storage::Remote),
        0x7461_636f => ("OCFS2", Storage::Remote),
        0x0102_1997 => ("9P", Storage::Remote),
        _ => return None,
    };
    Some(Kind { name, storage })
}

/// The kind of the file system that a folder is on, if it is one of those that `kind` knows.
pub fn kind_of(folder: &Path) -> Option<Kind> {
    let path = c_path(folder).ok()?;
    // SAFETY: statfs is plain data, and the call writes it.
    let f_type = unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        (libc::statfs(path.as_ptr(), &mut about) == 0).then_some(about.f_type as u32)?
    };
    kind(f_type)
}

/// The name of the remote file system that a folder is on, or would be on once it exists; `None` if that is not known
/// to be remote.
pub fn remote(folder: &Path) -> Option<&'static str> {
    let existing = folder.ancestors().find(|path| path.exists())?;
    kind_of(existing)
        .filter(|kind| kind.storage == Storage::Remote)
        .map(|kind| kind.name)
}

/// Makes sure that `folder` is there, and that this user alone can enter it. A missing folder is made. Returns false if the
/// name is a link, a file, or a folder that another user owns or can enter.
pub fn private_folder(folder: &Path) -> io::Result<bool> {
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = std::fs::symlink_metadata(folder)?;
    Ok(found.is_dir() && found.uid() == effective_user() && found.mode() & 0o077 == 0)
}
