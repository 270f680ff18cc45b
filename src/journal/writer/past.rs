//! Writes the journal of a job that is over, from events with known times: for journals made from other programs' files,
//! and for tests. No process and no clock is asked, so the same events give the same bytes.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use base::cuda::MAX_DEVICES;

use super::header::{About, write_about, write_device, write_end, write_software};
use crate::format::{Device, HEADER_SIZE, Header, RawRecord, check, commit_word};

/// A journal of the past that is being written.
pub struct PastJournal {
    file: BufWriter<File>,
    /// The bytes of a `Header`, in words so that they are aligned.
    header: Vec<u64>,
    slots: u64,
    last_ns: u64,
}

impl PastJournal {
    /// Creates the file, which must not exist. At most `MAX_DEVICES` devices are written.
    pub fn create(path: &Path, about: &About, devices: &[Device]) -> io::Result<PastJournal> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create_new(path)?);
        let mut words = vec![0u64; HEADER_SIZE / 8];
        let header = words.as_mut_ptr().cast::<Header>();
        // SAFETY: the words have the size and the alignment of a header, are zero, and only this thread has them.
        unsafe {
            write_about(header, about);
            for (place, device) in devices.iter().take(MAX_DEVICES).enumerate() {
                write_device(header, place, device);
            }
            if !about.software.is_empty() {
                write_software(header, &about.software);
            }
        }
        file.write_all(&[0; HEADER_SIZE])?;
        Ok(PastJournal {
            file,
            header: words,
            slots: 0,
            last_ns: 0,
        })
    }

    /// Adds an event (`Event::encode`). `time_ns` is in nanoseconds since `wall_start_ns`. A reader
    /// hands records out in the order of their times if each comes at most 65,536 records too late.
    pub fn push(&mut self, time_ns: u64, tid: u32, record: RawRecord) -> io::Result<()> {
        let record = record.at(time_ns, tid);
        self.file.write_all(&commit_word(self.slots, &record).to_le_bytes())?;
        self.file.write_all(&record.to_bytes())?;
        self.slots += 1;
        self.last_ns = self.last_ns.max(time_ns);
        Ok(())
    }

    /// Completes the file. `exit` has the exit status and its time; `None` stands for a job that was killed.
    pub fn finish(mut self, exit: Option<(i32, u64)>) -> io::Result<()> {
        let header = self.header.as_mut_ptr().cast::<Header>();
        // SAFETY: the words are a header that `create` filled, and only this thread has them.
        unsafe {
            if let Some((status, time_ns)) = exit {
                write_end(header, status, time_ns);
            }
            (*header).alive_ms.store(check::pack(self.last_ns / 1_000_000), Relaxed);
            (*header).claimed.store(self.slots, Relaxed);
            (*header).slots.store(check::pack(self.slots), Relaxed);
            (*header).ready.store(1, Relaxed);
        }
        self.file.seek(SeekFrom::Start(0))?;
        let bytes: Vec<u8> = self.header.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.file.write_all(&bytes)?;
        self.file.flush()
    }

    pub fn len(&self) -> u64 {
        self.slots
    }

    pub fn is_empty(&self) -> bool {
        self.slots == 0
    }
}
