//! The memory of the host that this process holds: what is resident and what is pinned. The keeper writes it into the
//! journal from time to time, and the engine writes it at failures, before a dump and at the end.
//!
//! Nothing here allocates or waits for the job.

use std::time::{Duration, Instant};

use super::State;
use base::api::Api;
use base::cuda::HOST_DEVICE;
use base::file::{self, FileId};
use journal::format::{Event, HostMemory, LARGEST_RANGE, RawRecord};

/// A change by more than this, and by more than a sixteenth, gets a record at the keeper's next look.
const CHANGE_BYTES: u64 = 64 << 20;
const CHANGE_SHARE: u64 = 16;
/// Without a change there is a record after this time.
const LONGEST: Duration = Duration::from_secs(60);

/// The last record that the keeper wrote.
#[derive(Default)]
pub struct HostWatch(Option<(Instant, HostMemory)>);

/// Whether so much changed that it is worth a record.
fn differs(before: u64, now: u64) -> bool {
    before.abs_diff(now) > CHANGE_BYTES.max(before / CHANGE_SHARE)
}

impl HostWatch {
    fn is_due(&self, now: Instant, memory: HostMemory) -> bool {
        self.0.is_none_or(|(at, before)| {
            now.duration_since(at) >= LONGEST
                || differs(before.resident, memory.resident)
                || differs(before.pinned, memory.pinned)
        })
    }
}

impl State {
    /// What the process holds of the host's memory; `None` if the kernel does not say.
    pub fn host_memory(&self) -> Option<HostMemory> {
        let resident = resident_bytes()?;
        let pinned = self.ledger.readings(HOST_DEVICE, None).allocated.current;
        Some(HostMemory { resident, pinned })
    }

    /// The record of what the process holds of the host's memory, if it uses a device and a journal is written.
    fn host_record(&self) -> Option<RawRecord> {
        self.records.path()?;
        self.measurements.used_devices().next()?;
        let memory = self.host_memory()?;
        Some(Event::Host(memory).encode(Api::Policy, HOST_DEVICE))
    }

    /// Writes down what the process holds of the host's memory, if it uses a device.
    pub fn note_host_memory(&self) {
        if let Some(record) = self.host_record() {
            self.records.write(record);
        }
    }

    /// The same at the end of the process, which may come in a signal handler: waits for no lock.
    pub fn note_host_memory_last(&self) {
        if let (Some(record), Some(journal)) = (self.host_record(), &self.records.journal) {
            journal.write_last(record);
        }
    }

    /// The keeper looks: writes the same down if it has changed much, or was not written for long. A look takes no slot of a
    /// full journal.
    pub fn look_at_host_memory(&self, watch: &mut HostWatch) {
        if !self.records.is_complete() {
            return;
        }
        let (now, memory) = (Instant::now(), self.host_memory());
        if let Some(memory) = memory.filter(|&memory| watch.is_due(now, memory)) {
            watch.0 = Some((now, memory));
            self.records.note(HOST_DEVICE, Event::Host(memory));
        }
    }
}

/// The memory of this machine; 0 if the kernel does not say. A control group may allow less.
pub fn machine_bytes() -> u64 {
    // SAFETY: `sysinfo` is plain data, valid if all zero.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a variable of this frame.
    match unsafe { libc::sysinfo(&mut info) } {
        0 => (info.totalram as u64).saturating_mul(u64::from(info.mem_unit)),
        _ => 0,
    }
}

/// A line that is read here is shorter.
const LONGEST_LINE: usize = 64;

/// The memory of this process that the kernel cannot take back without swap: anonymous and shared memory (`RssAnon` and
/// `RssShmem` of `/proc/self/status`, proc_pid_status(5)). Mapped pages of files are left out, such as those of the journal:
/// the kernel writes them to the file and drops them if it needs memory. A file in tmpfs is shared memory and counts.
/// `None` if the kernel does not say.
pub fn resident_bytes() -> Option<u64> {
    let mut found = Found::default();
    read(c"/proc/thread-self/status", |text| found.look(text));
    // Linux before 4.5 and some sandboxes do not tell the kinds apart there.
    let bytes = found.bytes().or_else(|| {
        let mut bytes = None;
        read(c"/proc/thread-self/statm", |text| {
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
    resident.saturating_sub(shared).checked_mul(file::page_size() as u64)
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
    fn a_record_is_due_after_a_change_or_a_while() {
        let of = |resident, pinned| HostMemory { resident, pinned };
        let (start, gib) = (Instant::now(), 1 << 30);
        let mut watch = HostWatch::default();
        assert!(watch.is_due(start, of(gib, 0)));
        watch.0 = Some((start, of(gib, 0)));
        assert!(!watch.is_due(start, of(gib + CHANGE_BYTES, 0)));
        assert!(watch.is_due(start, of(gib + CHANGE_BYTES + 1, 0)));
        assert!(watch.is_due(start, of(gib - CHANGE_BYTES - 1, 0)));
        assert!(watch.is_due(start, of(gib, CHANGE_BYTES + 1)));
        assert!(watch.is_due(start + LONGEST, of(gib, 0)));
        watch.0 = Some((start, of(64 * gib, 0)));
        assert!(!watch.is_due(start, of(67 * gib, 0)), "less than a sixteenth");
    }

    #[test]
    fn anonymous_and_shared_memory_count_and_files_do_not() {
        let mut found = Found::default();
        let text = b"Groups:\t4\nVmRSS:\t  43700 kB\nRssAnon:\t     436 kB\nRssFile:\t   43200 kB\nRssShmem:\t      64";
        assert!(!found.look(text), "the last line is cut");
        assert!(found.look(b"File:\t   43200 kB\nRssShmem:\t      64 kB\nVmData:\t"));
        assert_eq!(found.bytes(), Some(500 << 10));
        assert_eq!(
            unshared(b"9000 500 90 3 0 400 0\n"),
            Some(410 * file::page_size() as u64)
        );
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
