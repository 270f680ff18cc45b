//! A job as its journal describes it: the command, how the process ended, and the ledger of its memory.

use std::collections::BTreeSet;
use std::io;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;

use base::api::Api;
use base::cuda::HOST_DEVICE;
use base::identity;
use base::text::shown;
use base::units::size;
use journal::format::Record;
use journal::reader::{Device, Header, Journal, OpenError, Problem, Records, State, TensorFile};

use super::budget;
use super::device_ledger::DeviceLedger;
use super::held::{Caches, Held, now_ns};
use super::ledger::Ledger;
use super::tensor_records::{Merged, Tensors};
use crate::say::say;

/// The host in a journal that the library did not write, but `vramshim import`. Its process and its end are not known.
pub const IMPORTED: &str = "imported";

/// What is told in place of a damaged part of a header.
pub const NOT_KNOWN: &str = "not known (damaged)";

/// Another thread reads records ahead: so many portions with so many records.
const AHEAD: usize = 2;
const PORTION: usize = 1 << 10;

pub struct Job {
    pub path: PathBuf,
    pub header: Header,
    pub state: State,
    /// The time from start to exit; to now if the process runs on this machine; otherwise to the last sign of life.
    pub duration_ns: u64,
    pub lost: u64,
    /// Those of the lost events that were at the end of the file, which was cut short.
    pub cut_off: u64,
    pub unfinished: u64,
    /// Slots that are damaged; their records are left out.
    pub damaged: u64,
    pub ledger: Ledger,
    /// PyTorch's tensors, if they were recorded: the ledger has them as allocations, and PyTorch's segments as those of a
    /// framework's cache.
    pub tensors: Option<Tensors>,
    pub caches: Caches,
    /// PyTorch's tensors were to be recorded, and their file does not lie beside the journal.
    pub lacks_tensors: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{0}")]
    Open(OpenError),
    #[error("{}: cannot be read at byte {position}: {error}", shown(.path))]
    Read {
        path: PathBuf,
        position: u64,
        error: io::Error,
    },
    #[error("{}: left out: it has more live allocations than --max-memory {} has room for; give more", shown(.0), size(*.1))]
    OverBudget(PathBuf, u64),
}

impl LoadError {
    /// Whether the process has created the file but not finished the header. The journal is then not damaged.
    pub fn is_too_early(&self) -> bool {
        matches!(self, Self::Open(error) if matches!(error.problem, Problem::NotReady))
    }

    /// Whether the file does not exist, or no longer exists.
    pub fn is_missing(&self) -> bool {
        matches!(
            self,
            Self::Open(OpenError { problem: Problem::Io(error), .. }) if error.kind() == io::ErrorKind::NotFound
        )
    }
}

/// Looks at the records of a journal while the ledger is built from them.
pub trait Observer {
    /// The ledger has not seen the record yet.
    fn before(&mut self, _ledger: &Ledger, _record: &Record) {}

    /// The ledger has just seen the record.
    fn after(&mut self, _ledger: &Ledger, _record: &Record) {}
}

impl Job {
    /// Reads the whole journal. `progress` is called from time to time with the bytes read and the bytes in total.
    pub fn load(path: &Path, progress: impl FnMut(u64, u64)) -> Result<Job, LoadError> {
        let journal = Journal::open(path).map_err(LoadError::Open)?;
        Job::load_with(&journal, false, &mut [], progress)
    }

    /// The same, and shows the records to observers: those of the journal, with PyTorch's tensors if they were recorded. A
    /// file of tensors that cannot be read is named on stderr.
    /// If they need `sums_alone`, the ledger does not follow where memory is free.
    pub fn load_with(
        journal: &Journal,
        sums_alone: bool,
        observers: &mut [&mut dyn Observer],
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Job, LoadError> {
        let path = journal.path();
        let unread = |position, error| {
            let path = path.to_owned();
            LoadError::Read { path, position, error }
        };
        let tensors = Tensors::beside(journal).unwrap_or_else(|error| {
            say!("the tensors beside {} cannot be read: {error}", shown(path));
            None
        });
        let tensors = tensors.filter(Tensors::has_segments);
        let mut ledger = Ledger::default();
        for (device, ranges) in tensors.iter().flat_map(Tensors::private) {
            ledger.devices.entry(device).or_default().private = ranges.clone();
        }
        ledger.has_sums_alone = sums_alone;
        let mut merged = Merged::of(journal, tensors.as_ref()).map_err(|error| unread(0, error))?;
        let (ahead, portions) = sync_channel(AHEAD);
        let (read, failed) = thread::scope(|scope| {
            let reader = thread::Builder::new().spawn_scoped(scope, move || {
                let mut failed = None;
                loop {
                    let mut portion = Vec::with_capacity(PORTION);
                    let read = merged.by_ref().take(PORTION);
                    portion.extend(read.map_while(|record| record.map_err(|error| failed = Some(error)).ok()));
                    let is_last = portion.len() < PORTION;
                    if ahead.send((portion, merged.records.position())).is_err() || is_last {
                        return (merged.records, failed);
                    }
                }
            });
            let reader = reader.map_err(|error| unread(0, error))?;
            let mut number = 0;
            for (mut portion, position) in portions {
                for record in &mut portion {
                    if tensors.is_some() {
                        // Slots tell records of one time apart, and tensors have none.
                        record.slot = number;
                        record.time_ns = record.time_ns.max(ledger.last_ns);
                        number += 1;
                    }
                    for observer in observers.iter_mut() {
                        observer.before(&ledger, record);
                    }
                    ledger.apply(record);
                    check_budget(path)?;
                    for observer in observers.iter_mut() {
                        observer.after(&ledger, record);
                    }
                }
                progress(position, journal.size());
            }
            reader.join().map_err(|panic| resume_unwind(panic))
        })?;
        if let Some(error) = failed {
            return Err(unread(read.position(), error));
        }
        ledger.end();
        let mut job = Job::of(journal, ledger, &read);
        job.lacks_tensors = tensors.is_none()
            && job.caches().is_some()
            && job.setting("VRAMSHIM_TORCH") == Some("record")
            && !TensorFile::beside(path).exists();
        job.tensors = tensors;
        let (serves, has_tensors) = (job.makes(Api::vramshim_torch_alloc), job.tensors.is_some());
        job.caches = Caches::read(&job.path, &job.header, job.state, serves, has_tensors);
        Ok(job)
    }

    /// When the process could not write an event for the first time; `None` if that never happened.
    pub fn lost_from_ns(&self) -> Option<u64> {
        (self.lost > self.cut_off).then_some(self.header.lost_first_ns)
    }

    /// How many events were lost, if the first of them may have been before this time.
    pub fn lost_from_before(&self, time_ns: u64) -> u64 {
        if self.header.lost_first_ns <= time_ns {
            self.lost
        } else {
            0
        }
    }

    pub fn setting(&self, variable: &str) -> Option<&str> {
        self.header.variable(variable)
    }

    pub fn sets_torch(&self, setting: &str) -> bool {
        let names = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"].into_iter();
        names
            .filter_map(|name| self.setting(name))
            .any(|value| value.contains(setting))
    }

    pub fn limit_is_of_group(&self) -> bool {
        match self.setting("VRAMSHIM_LIMIT_SCOPE") {
            Some("group") => true,
            Some("process") => false,
            _ => self
                .setting("VRAMSHIM_ACCOUNTS")
                .is_some_and(|folder| !folder.is_empty()),
        }
    }

    pub fn lost_because(&self) -> String {
        match (self.lost_from_ns(), self.header.lost_errno) {
            (None, _) => "the file was cut short".to_owned(),
            (Some(_), 0) => "the journal reached its size limit".to_owned(),
            (Some(_), errno) => io::Error::from_raw_os_error(errno).to_string(),
        }
    }

    fn of(journal: &Journal, ledger: Ledger, read: &Records) -> Job {
        let mut job = Job {
            path: journal.path().to_owned(),
            header: journal.header().clone(),
            state: journal.state(),
            duration_ns: 0,
            lost: journal.lost(),
            cut_off: journal.cut_off(),
            unfinished: read.unfinished(),
            damaged: read.damaged(),
            ledger,
            tensors: None,
            caches: Caches::default(),
            lacks_tensors: false,
        };
        job.duration_ns = match job.state {
            State::Running if job.header.boot_id == identity::boot_id() => {
                now_ns().saturating_sub(job.header.wall_start_ns)
            }
            State::Exited(_) if job.header.knows_end() => journal.ended_ns().unwrap_or(0).max(job.ledger.last_ns),
            _ => journal.alive_ns().max(job.ledger.last_ns),
        };
        job
    }

    fn makes(&self, api: Api) -> bool {
        self.ledger.apis.contains_key(&api.number())
    }

    pub fn held(&self, device: i16) -> Held {
        let ledger = self.ledger.devices.get(&device);
        let all = ledger.map(|ledger| ledger.all).unwrap_or_default();
        let changed_ns = ledger.map(|ledger| ledger.changed_ns);
        (self.caches).held(device, all.allocated.current, all.reserved.current, changed_ns)
    }

    /// Every device that the job saw or used, in order of numbers: number, entry in the journal's header, and ledger.
    pub fn devices(&self) -> Vec<(i16, Option<&Device>, Option<&DeviceLedger>)> {
        let used = self.ledger.devices.keys().copied();
        let ordinals: BTreeSet<i16> = self.header.ordinals().chain(used).collect();
        let of_gpus = ordinals.into_iter().filter(|&ordinal| ordinal != HOST_DEVICE);
        of_gpus
            .map(|ordinal| (ordinal, self.header.device(ordinal), self.ledger.devices.get(&ordinal)))
            .collect()
    }

    /// Whether PyTorch told its tensors by snapshots, between which more may have been live.
    pub fn has_snapshots(&self) -> bool {
        self.tensors.as_ref().is_some_and(|tensors| tensors.snapshots)
    }

    /// Whether more may have been live than is told: by PyTorch's tensors, or before an imported trace.
    pub fn tells_at_least(&self) -> bool {
        self.ledger.begins_late || self.tensors.as_ref().is_some_and(|tensors| tensors.tells_at_least())
    }

    /// Whether the records tell what was obtained of a device. An imported log has requests alone.
    pub fn knows_reserved(&self, ledger: &DeviceLedger) -> bool {
        let all = &ledger.all;
        all.reserved.peak > 0 || all.allocated.peak == 0 && !self.is_imported()
    }

    /// The framework whose own cache stands between its tensors and the library.
    pub fn cache_owner(&self) -> Option<&'static str> {
        let asks_for_tensors = self.sets_torch("backend:cudaMallocAsync")
            || self.makes(Api::vramshim_torch_alloc)
            || self.tensors.is_none() && self.makes(Api::torch_alloc);
        (self.header.uses("PyTorch") && !asks_for_tensors).then_some("PyTorch")
    }

    /// The same, if its tensors are not known. The job's requests are then for segments of the cache.
    pub fn caches(&self) -> Option<&'static str> {
        self.cache_owner().filter(|_| self.tensors.is_none())
    }

    pub fn host_memory(&self) -> Option<&DeviceLedger> {
        self.ledger.devices.get(&HOST_DEVICE)
    }

    pub fn knows_times(&self) -> bool {
        knows_times(&self.header)
    }

    pub fn is_imported(&self) -> bool {
        is_imported(&self.header)
    }

    /// When the process began, and when it ended, in nanoseconds since 1970.
    pub fn span(&self) -> (u64, u64) {
        let began_ns = self.header.wall_start_ns;
        (began_ns, began_ns.saturating_add(self.duration_ns))
    }

    pub fn title(&self) -> String {
        title(&self.header)
    }
}

/// An error if what is kept of journals by now is more than `--max-memory`.
#[inline]
pub fn check_budget(path: &Path) -> Result<(), LoadError> {
    if budget::is_exceeded() {
        return Err(LoadError::OverBudget(path.to_owned(), budget::most()));
    }
    Ok(())
}

pub fn is_imported(header: &Header) -> bool {
    header.pid == 0 && header.host == IMPORTED
}

/// Whether the times are those of a clock. A log without times has only an order.
pub fn knows_times(header: &Header) -> bool {
    !is_imported(header) || header.wall_start_ns > 0
}

pub fn title(header: &Header) -> String {
    if !header.knows_process() {
        return format!("name {NOT_KNOWN}");
    }
    let command = header.command_line.join(" ");
    match (header.job.as_str(), command.as_str()) {
        ("", "") => format!("process {}", header.pid),
        ("", command) => command.to_owned(),
        (job, _) => job.to_owned(),
    }
}
