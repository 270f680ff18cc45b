//! Writes the journal of a job that is over, from events with known times: for journals made from other programs' files,
//! and for tests. No process and no clock is asked, so the same events give the same bytes.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::mem::offset_of;
use std::path::Path;

use base::cuda::MAX_DEVICES;

use crate::format::header::{device_check, fixed_check, pair_check};
use crate::format::{
    DeviceEntry, Ended, HEADER_SIZE, Header, MAGIC, RawRecord, SLOT_SIZE, VERSION, check, commit_word,
};

/// What the header says of the job.
#[derive(Clone, Debug, Default)]
pub struct About {
    pub pid: u32,
    pub parent_pid: u32,
    /// Nanoseconds since 1970.
    pub wall_start_ns: u64,
    pub strategy: String,
    pub host: String,
    /// The name of the job; may be empty.
    pub job: String,
    /// Arguments of the process, NUL-separated.
    pub command_line: Vec<u8>,
    /// `NAME=value`, NUL-separated.
    pub environment: Vec<u8>,
    /// `name=value` of frameworks, runtime and driver, NUL-separated.
    pub software: Vec<u8>,
}

/// A device of the job.
#[derive(Clone, Debug, Default)]
pub struct PastDevice {
    pub ordinal: i32,
    /// Bytes.
    pub total_memory: u64,
    pub uuid: [u8; 16],
    pub name: String,
    /// Bytes.
    pub limit: Option<u64>,
}

/// A journal of the past that is being written.
pub struct PastJournal {
    file: BufWriter<File>,
    header: Vec<u8>,
    slots: u64,
    last_ns: u64,
}

impl PastJournal {
    /// Creates the file, which must not exist. At most `MAX_DEVICES` devices are written.
    pub fn create(path: &Path, about: &About, devices: &[PastDevice]) -> io::Result<PastJournal> {
        let file = File::create_new(path)?;
        let mut header = vec![0; HEADER_SIZE];
        write_about(&mut header, about);
        for (place, device) in devices.iter().take(MAX_DEVICES).enumerate() {
            write_device(&mut header, place, device);
        }
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&header)?;
        Ok(PastJournal {
            file,
            header,
            slots: 0,
            last_ns: 0,
        })
    }

    /// Adds an event (`Event::encode`). `time_ns` is in nanoseconds since `wall_start_ns`. Events that come in the order
    /// of their times are read fastest.
    pub fn push(&mut self, time_ns: u64, tid: u32, mut record: RawRecord) -> io::Result<()> {
        (record.time_ns, record.tid) = (time_ns, tid);
        self.file.write_all(&commit_word(self.slots, &record).to_le_bytes())?;
        self.file.write_all(&record.to_bytes())?;
        self.slots += 1;
        self.last_ns = self.last_ns.max(time_ns);
        Ok(())
    }

    /// Completes the file. `exit` has the exit status and its time; `None` stands for a job that was killed.
    pub fn finish(mut self, exit: Option<(i32, u64)>) -> io::Result<()> {
        let header = &mut self.header;
        if let Some((status, time_ns)) = exit {
            put(header, offset_of!(Header, exit_status), &status.to_le_bytes());
            put(header, offset_of!(Header, ended_ns), &time_ns.to_le_bytes());
            put(
                header,
                offset_of!(Header, end_check),
                &pair_check(status, time_ns).to_le_bytes(),
            );
            put(header, offset_of!(Header, ended), &(Ended::Exit as u32).to_le_bytes());
        }
        let alive_ms = check::pack(self.last_ns / 1_000_000);
        put(header, offset_of!(Header, alive_ms), &alive_ms.to_le_bytes());
        put(header, offset_of!(Header, claimed), &self.slots.to_le_bytes());
        put(
            header,
            offset_of!(Header, slots),
            &check::pack(self.slots).to_le_bytes(),
        );
        put(header, offset_of!(Header, ready), &1u32.to_le_bytes());
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&self.header)?;
        self.file.flush()
    }

    /// The number of events so far.
    pub fn len(&self) -> u64 {
        self.slots
    }

    pub fn is_empty(&self) -> bool {
        self.slots == 0
    }
}

/// Puts `bytes` at `offset` of the header.
fn put(header: &mut [u8], offset: usize, bytes: &[u8]) {
    header[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// Puts as many of `bytes` at `offset` as the field has `room` for.
fn put_cut(header: &mut [u8], offset: usize, room: usize, bytes: &[u8]) {
    put(header, offset, &bytes[..bytes.len().min(room)]);
}

fn write_about(header: &mut [u8], about: &About) {
    put(header, offset_of!(Header, magic), &MAGIC);
    put(header, offset_of!(Header, version), &VERSION.to_le_bytes());
    put(
        header,
        offset_of!(Header, header_size),
        &(HEADER_SIZE as u32).to_le_bytes(),
    );
    put(
        header,
        offset_of!(Header, record_size),
        &(SLOT_SIZE as u32).to_le_bytes(),
    );
    put(header, offset_of!(Header, pid), &about.pid.to_le_bytes());
    put(header, offset_of!(Header, parent_pid), &about.parent_pid.to_le_bytes());
    put(
        header,
        offset_of!(Header, wall_start_ns),
        &about.wall_start_ns.to_le_bytes(),
    );
    put_cut(header, offset_of!(Header, strategy), 32, about.strategy.as_bytes());
    put_cut(header, offset_of!(Header, host), 64, about.host.as_bytes());
    put_cut(header, offset_of!(Header, job), 128, about.job.as_bytes());
    put_cut(header, offset_of!(Header, command_line), 4096, &about.command_line);
    put_cut(header, offset_of!(Header, environment), 4096, &about.environment);
    let fixed = fixed_check(header);
    put(header, offset_of!(Header, fixed_check), &fixed.to_le_bytes());
    if !about.software.is_empty() {
        put_cut(header, offset_of!(Header, software), 1024, &about.software);
        let from = offset_of!(Header, software);
        let software = check::of_bytes([&header[from..from + 1024]]);
        put(header, offset_of!(Header, software_check), &software.to_le_bytes());
    }
}

fn write_device(header: &mut [u8], place: usize, device: &PastDevice) {
    let from = offset_of!(Header, devices) + place * size_of::<DeviceEntry>();
    put(header, from + offset_of!(DeviceEntry, present), &1u32.to_le_bytes());
    put(
        header,
        from + offset_of!(DeviceEntry, ordinal),
        &device.ordinal.to_le_bytes(),
    );
    put(
        header,
        from + offset_of!(DeviceEntry, total_memory),
        &device.total_memory.to_le_bytes(),
    );
    put(header, from + offset_of!(DeviceEntry, uuid), &device.uuid);
    put_cut(header, from + offset_of!(DeviceEntry, name), 64, device.name.as_bytes());
    let limit = device.limit.unwrap_or(0);
    let check = device_check(&header[from..from + size_of::<DeviceEntry>()], limit);
    put(
        header,
        offset_of!(Header, limits) + place * size_of::<u64>(),
        &limit.to_le_bytes(),
    );
    put(
        header,
        offset_of!(Header, device_checks) + place * size_of::<u64>(),
        &check.to_le_bytes(),
    );
    put(
        header,
        offset_of!(Header, device_count),
        &(place as u32 + 1).to_le_bytes(),
    );
}
