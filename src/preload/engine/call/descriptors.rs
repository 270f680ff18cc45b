//! Physical memory that descriptors hold. "The memory allocation will be freed when all outstanding mappings to the memory are
//! unmapped and when all outstanding references to the handle (including it's shareable counterparts) are also released"
//! (cuda.h 13.5:13428).
//!
//! A descriptor is copied, sent and closed unseen. So the library *marks* exported memory: through the descriptor it locks a
//! byte of the descriptor's file, and shares that lock. The kernel keeps it until the last copy is closed, in any process. A
//! process under the library that imports the memory reads the mark (`/proc/self/fdinfo`) and shares the lock until it lets
//! the memory go. So whoever opened the file again can ask the kernel whether anybody has a reference.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

use crate::engine::state::allocation::{Allocation, Key};
use crate::engine::state::records;
use crate::engine::{Call, Engine};
use crate::next::Handle;
use base::api::Api;
use base::cuda::{CudaResult, POSIX_FILE_DESCRIPTOR};
use base::descriptor::Descriptor;
use base::file::FileId;
use base::locks::Owner;
use base::say::warn;
use base::sync::lock;
use base::units::size;
use journal::format::{Event, Traits};

/// Marks are this byte or later ones, which no file has.
const FIRST_MARK: i64 = 1 << 56;

/// A byte that is locked as long as anybody refers to the memory.
#[derive(Clone)]
struct Mark {
    /// The file, which this process opened for itself: this holds no memory.
    file: Arc<Descriptor>,
    byte: i64,
}

impl Mark {
    fn is(&self, other: &Mark) -> bool {
        self.byte == other.byte && self.file.file() == other.file.file()
    }

    /// Locks it through a descriptor. False if the system refuses such locks.
    fn lock(&self, fd: Option<RawFd>) -> bool {
        fd.is_some_and(|fd| Owner::OpenFile.share(fd, self.byte..self.byte + 1).is_ok())
    }

    fn is_locked(&self) -> bool {
        let found = |fd| Owner::OpenFile.finds_locked(fd, self.byte..self.byte + 1);
        self.file.number().is_some_and(|fd| found(fd) == Ok(true))
    }
}

#[derive(Default)]
struct Known {
    files: HashMap<FileId, Weak<Descriptor>>,
    exports: HashMap<Handle, Vec<Mark>>,
    imports: HashMap<Handle, Vec<Mark>>,
    /// Memory that this process obtained and whose handles it has released, by the key that it has since.
    left: Vec<(Key, Vec<Mark>)>,
}

impl Known {
    fn file(&mut self, fd: RawFd) -> Option<Arc<Descriptor>> {
        let id = FileId::of(fd).ok()?;
        if let Some(file) = self.files.get(&id).and_then(Weak::upgrade) {
            return Some(file);
        }
        let opened = File::open(format!("/proc/self/fd/{fd}")).ok()?;
        let file = Arc::new(Descriptor::from_new(opened.into()).ok()?);
        self.files.retain(|_, file| file.strong_count() > 0);
        self.files.insert(id, Arc::downgrade(&file));
        Some(file)
    }

    /// Whether a process, this one included, refers to memory with one of these marks.
    fn is_held(&self, marks: &[Mark]) -> bool {
        let imported = |mark: &Mark| self.imports.values().flatten().any(|other| other.is(mark));
        marks.iter().any(|mark| imported(mark) || mark.is_locked())
    }
}

#[derive(Default)]
pub struct Descriptors {
    /// Set once memory was exported or imported.
    is_used: AtomicBool,
    known: Mutex<Known>,
}

impl Descriptors {
    /// Marks the memory of a handle, for which the driver gave out this descriptor. False if that is not possible.
    fn exported(&self, handle: Handle, fd: RawFd) -> bool {
        self.is_used.store(true, Relaxed);
        let mut known = lock(&self.known);
        let Some(file) = known.file(fd) else { return false };
        let marks = known.exports.entry(handle).or_default();
        if let Some(mark) = marks.iter().find(|mark| mark.file.file() == file.file()) {
            return mark.lock(Some(fd));
        }
        let byte = FIRST_MARK + (RandomState::new().hash_one(handle) >> 16) as i64;
        marks.push(Mark { file, byte });
        marks[marks.len() - 1].lock(Some(fd))
    }

    /// Shares the locks of memory that came by this descriptor.
    fn imported(&self, handle: Handle, fd: RawFd) {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
        // The last two words are the first byte and the last one.
        let byte = |line: &str| line.rsplit(' ').next()?.parse().ok().filter(|&byte| byte >= FIRST_MARK);
        let bytes = text.lines().filter(|line| line.contains("OFDLCK")).filter_map(byte);
        let mut known = lock(&self.known);
        for byte in bytes {
            let Some(file) = known.file(fd) else { return };
            self.is_used.store(true, Relaxed);
            let mark = Mark { file, byte };
            mark.lock(mark.file.number());
            if !known.exports.contains_key(&handle) {
                known.imports.entry(handle).or_default().push(mark);
            }
        }
    }

    /// The last reference and the last mapping of a handle here are gone. Returns the key that its memory has from now on, if
    /// this process marked it and others refer to it.
    pub(super) fn handle_gone(&self, handle: Handle) -> Option<Key> {
        if !self.is_used.load(Relaxed) {
            return None;
        }
        let mut known = lock(&self.known);
        for mark in known.imports.remove(&handle).unwrap_or_default() {
            if let Some(fd) = mark.file.number()
                && !known.imports.values().flatten().any(|other| other.is(&mark))
            {
                Owner::OpenFile.unlock(fd, mark.byte..mark.byte + 1);
            }
        }
        let marks = known.exports.remove(&handle)?;
        let key = Key::Object(marks.first()?.byte as u64);
        known.is_held(&marks).then(|| known.left.push((key, marks)))?;
        Some(key)
    }

    /// The keys of the memory that nobody refers to any more.
    fn take_unheld(&self) -> Vec<Key> {
        let mut known = lock(&self.known);
        let (held, unheld) = std::mem::take(&mut known.left)
            .into_iter()
            .partition(|(_, marks)| known.is_held(marks));
        known.left = held;
        unheld.into_iter().map(|(key, _): (_, Vec<Mark>)| key).collect()
    }
}

impl Engine {
    /// Takes memory off the books whose last descriptor was closed.
    pub(super) fn refund_closed_descriptors(&self, api: Api) {
        if !self.descriptors.is_used.load(Relaxed) {
            return;
        }
        for key in self.descriptors.take_unheld() {
            if let Some(allocation) = self.state.ledger.remove(key) {
                self.state.refund(&allocation);
                self.state.records.write(records::freed(api, key, &allocation, false));
            }
        }
    }

    /// Memory stays on the books under this key: only others refer to it.
    pub(super) fn keep_for_descriptors(&self, key: Key, allocation: Allocation, api: Api) {
        let traits = Traits {
            exported: Some(1),
            ..Traits::default()
        };
        self.state
            .records
            .write(Event::Traits(traits).encode(api, allocation.device));
        self.state.records.write(records::obtained(api, key, &allocation));
        self.state.ledger.insert(key, allocation);
    }

    /// Says once that a limit counts memory that only descriptors hold, if it does.
    pub(super) fn tell_of_descriptors(&self, device: i16) {
        static TOLD: AtomicBool = AtomicBool::new(false);
        let keys: Vec<Key> = lock(&self.descriptors.known).left.iter().map(|(key, _)| *key).collect();
        let held = keys
            .iter()
            .filter_map(|&key| self.state.ledger.get(key))
            .filter(|one| one.device == device);
        let bytes = held.map(|one| one.reserved()).sum();
        if bytes > 0 && !TOLD.swap(true, Relaxed) {
            warn!(
                "GPU {device}: {} of what counts towards the limit are memory whose handles the job released, and that descriptors \
                 hold which it exported (cuMemExportToShareableHandle). It is free when each process that has them closes them",
                size(bytes)
            );
        }
    }
}

impl Call {
    /// # Safety
    /// A successful `ask` has written what `cuMemExportToShareableHandle` writes for this kind of handle.
    pub unsafe fn export_physical(
        &self,
        out: *mut libc::c_void,
        handle: Handle,
        kind: u32,
        ask: impl FnOnce() -> CudaResult,
    ) -> CudaResult {
        static TOLD: AtomicBool = AtomicBool::new(false);
        ask()?;
        // SAFETY: by contract; such a handle is a number (cuda.h 13.5:4397).
        let is_marked =
            kind == POSIX_FILE_DESCRIPTOR && self.engine.descriptors.exported(handle, unsafe { *out.cast() });
        let of = self.engine.state.ledger.get(Key::Physical(handle));
        let has_limit = of.is_some_and(|allocation| self.engine.state.limits.of(allocation.device).is_some());
        if !is_marked && has_limit && !TOLD.swap(true, Relaxed) {
            warn!(
                "the job exports memory by handles that cannot be followed. What only such handles hold is outside the limit: \
                 docs/limits.md"
            );
        }
        Ok(())
    }

    pub(super) fn imported_by_descriptor(&self, handle: Handle, os_handle: *mut libc::c_void, kind: u32) {
        if kind == POSIX_FILE_DESCRIPTOR {
            self.engine.descriptors.imported(handle, os_handle as usize as RawFd);
        }
    }
}
