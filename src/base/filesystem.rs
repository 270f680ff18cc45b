//! Whether a folder is on another machine, or behind a process in user space. A mapped file can fail there when its pages
//! are written back, and the process that mapped the file gets SIGBUS.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The name of the remote file system with this `f_type` of statfs(2); `None` if that is not known to be remote. The
/// numbers are from the kernel's `linux/magic.h`, statfs(2), and the file systems' own sources.
pub fn remote_name(f_type: u32) -> Option<&'static str> {
    Some(match f_type {
        0x6969 => "NFS",
        0x6573_5546 => "FUSE",
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => "SMB",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x1983_0326 => "BeeGFS",
        0x00c3_6400 => "Ceph",
        0xaad7_aaea => "PanFS",
        0x2003_0528 => "OrangeFS",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x0102_1997 => "9P",
        _ => return None,
    })
}

/// The name of the remote file system that a folder is on, or would be on once it exists; `None` if that is not known
/// to be remote.
pub fn remote(folder: &Path) -> Option<&'static str> {
    let existing = folder.ancestors().find(|path| path.exists())?;
    let path = CString::new(existing.as_os_str().as_bytes()).ok()?;
    // SAFETY: statfs is plain data, and the call writes it.
    let f_type = unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        (libc::statfs(path.as_ptr(), &mut about) == 0).then_some(about.f_type as u32)?
    };
    remote_name(f_type)
}
