//! The memory of this process that the kernel cannot take back without swap: anonymous and shared memory
//! (`RssAnon` and `RssShmem` of `/proc/self/status`, proc_pid_status(5)). Mapped pages of files are left out, such as
//! those of the journal: the kernel writes them to the file and drops them if it needs memory. A file in tmpfs is shared
//! memory and counts.
//!
//! Nothing here allocates or waits: it may run in a signal handler.

use base::file::{self, FileId};
use journal::format::LARGEST_RANGE;

/// A line that is read here is shorter.
const LONGEST_LINE: usize = 64;

/// The resident memory of this process, mapped files left out; `None` if the kernel does not say.
pub fn resident_bytes() -> Option<u64> {
    let mut found = Found::default();
    read(c"/proc/self/status", |text| found.look(text));
    // Linux before 4.5 and some sandboxes do not tell the kinds apart there.
    let bytes = found.bytes().or_else(|| {
        let mut bytes = None;
        read(c"/proc/self/statm", |text| {
            bytes = unshared(text);
            true
        });
        bytes
    });
    bytes.filter(|&bytes| bytes <= LARGEST_RANGE)
}

/// The figures of `/proc/self/status`, in bytes.
#[derive(Default)]
struct Found {
    anonymous: Option<u64>,
    shared: Option<u64>,
}

impl Found {
    /// Takes what the text has, and returns whether everything is found. A line may be cut at the end of the text.
    fn look(&mut self, text: &[u8]) -> bool {
        self.anonymous = self.anonymous.or_else(|| kib(text, b"\nRssAnon:"));
        self.shared = self.shared.or_else(|| kib(text, b"\nRssShmem:"));
        self.bytes().is_some()
    }

    fn bytes(&self) -> Option<u64> {
        self.anonymous?.checked_add(self.shared?)
    }
}

/// The figure of a line such as `RssAnon:     436 kB`, in bytes; `None` if the text does not have the whole line.
fn kib(text: &[u8], name: &[u8]) -> Option<u64> {
    let start = text.windows(name.len()).position(|part| part == name)? + name.len();
    let end = start + text[start..].iter().position(|&byte| byte == b'\n')?;
    let line = std::str::from_utf8(&text[start..end]).ok()?;
    let number: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    number.checked_mul(1 << 10)
}

/// Resident pages less the shared ones, in bytes, from `/proc/self/statm` (proc_pid_statm(5)). This leaves shared memory
/// out too.
fn unshared(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let mut pages = text.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
    // SAFETY: the call takes a number.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    resident.saturating_sub(shared).checked_mul(page)
}

/// Shows `look` the file piece by piece until it returns true. A line of up to `LONGEST_LINE` bytes is in one piece.
fn read(path: &std::ffi::CStr, mut look: impl FnMut(&[u8]) -> bool) {
    let Ok(fd) = file::open(path, libc::O_RDONLY) else {
        return;
    };
    let id = FileId::of(fd).ok();
    let mut text = [0u8; 1024];
    let mut kept = 0;
    loop {
        let rest = &mut text[kept..];
        // SAFETY: the buffer is writable for its length.
        let length = unsafe { libc::read(fd, rest.as_mut_ptr().cast(), rest.len()) };
        let Some(length) = usize::try_from(length).ok().filter(|&length| length > 0) else {
            break;
        };
        let end = kept + length;
        if look(&text[..end]) {
            break;
        }
        let start = end.saturating_sub(LONGEST_LINE);
        text.copy_within(start..end, 0);
        kept = end - start;
    }
    // The job may have closed the descriptor, and have another file there.
    if id.is_some() && FileId::of(fd).ok() == id {
        // SAFETY: the descriptor is the one that was opened above.
        unsafe { libc::close(fd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_what_is_resident() {
        let (resident, all) = (resident_bytes().unwrap(), super::super::host::machine_bytes());
        assert!(resident > 50_000 && resident < all, "{resident} of {all}");
    }

    #[test]
    fn anonymous_and_shared_memory_count_and_files_do_not() {
        let mut found = Found::default();
        let text = b"Groups:\t4\nVmRSS:\t  43700 kB\nRssAnon:\t     436 kB\nRssFile:\t   43200 kB\nRssShmem:\t      64";
        assert!(!found.look(text), "the last line is cut");
        assert!(found.look(b"File:\t   43200 kB\nRssShmem:\t      64 kB\nVmData:\t"));
        assert_eq!(found.bytes(), Some(500 << 10));
        // SAFETY: the call takes a number.
        let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap();
        assert_eq!(unshared(b"9000 500 90 3 0 400 0\n"), Some(410 * page));
    }

    #[test]
    fn a_long_file_is_read_in_pieces_that_share_a_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines: String = (10_000..12_000).map(|line| format!("\nline {line}: 1 kB")).collect();
        std::fs::write(file.path(), &lines).unwrap();
        let path = std::ffi::CString::new(file.path().to_str().unwrap()).unwrap();
        for line in [10_000, 10_226, 10_227, 10_228, 11_500, 11_998] {
            let name = format!("\nline {line}:");
            let mut found = None;
            read(&path, |text| {
                found = kib(text, name.as_bytes());
                found.is_some()
            });
            assert_eq!(found, Some(1 << 10), "{line}");
        }
    }
}
