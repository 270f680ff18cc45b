//! Physical memory that descriptors hold. "The memory allocation will be freed when all outstanding mappings to the memory are
//! unmapped and when all outstanding references to the handle (including it's shareable counterparts) are also released"
//! (cuda.h 13.5:13428).
//!
//! A descriptor is copied, sent and closed unseen. So the library *marks* exported memory: through the descriptor it locks a
//! byte of the descriptor's file, and shares that lock. The kernel keeps it until the last copy is closed, in any process. A
//! process under the library that imports the memory reads the mark (`/proc/self/fdinfo`) and shares the lock until it lets
//! the memory go. So a process that has opened the file again can ask the kernel whether any process has a reference.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use crate::engine::call::stream_ordered::trim_pools;
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

/// Marks are this byte or later ones, which no file has.
const FIRST_MARK: i64 = 1 << 56;

/// A byte that is locked as long as anybody refers to the memory.
struct Mark {
    /// The file, which this process opened for itself: this holds no memory.
    file: Arc<Descriptor>,
    byte: i64,
    /// Whether the memory is that of another process.
    is_imported: bool,
}

/// The marks of the handles that this process exported or imported.
#[derive(Default)]
pub struct Descriptors {
    files: Vec<Weak<Descriptor>>,
    marks: HashMap<Handle, Mark>,
    /// Memory of this process whose handles it has released, by the key that it has since.
    left: HashMap<u64, Mark>,
}

impl Descriptors {
    fn mark(&mut self, fd: RawFd, byte: i64, is_imported: bool) -> Option<Mark> {
        let id = FileId::of(fd).ok()?;
        let known = self.files.iter().filter_map(Weak::upgrade).find(|file| file.file == id);
        let file = known.or_else(|| {
            let opened = File::open(format!("/proc/thread-self/fd/{fd}")).ok()?;
            let file = Arc::new(Descriptor::from_new(opened.into()).ok()?);
            self.files.retain(|file| file.strong_count() > 0);
            self.files.push(Arc::downgrade(&file));
            Some(file)
        })?;
        Some(Mark {
            file,
            byte,
            is_imported,
        })
    }

    /// Marks the memory of a handle, for which the driver gave out this descriptor; or, if it came by this descriptor, shares
    /// the lock of its mark. `None` if that is not possible.
    pub(super) fn note(&mut self, handle: Handle, fd: RawFd, is_imported: bool) -> Option<()> {
        if !self.marks.contains_key(&handle) {
            // The last two words of a line are the first byte and the last one.
            let of_lock = |line: &str| line.rsplit(' ').next()?.parse().ok().filter(|&byte| byte >= FIRST_MARK);
            let locks = |text: String| text.lines().filter(|line| line.contains("OFDLCK")).find_map(of_lock);
            let byte = match is_imported {
                true => locks(std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{fd}")).ok()?)?,
                false => FIRST_MARK + (RandomState::new().hash_one(handle) >> 16) as i64,
            };
            let mark = self.mark(fd, byte, is_imported)?;
            self.marks.insert(handle, mark);
        }
        let Mark { file, byte, .. } = &self.marks[&handle];
        let is_its_file = FileId::of(fd) == Ok(file.file);
        let through = if is_imported { file.number()? } else { fd };
        is_its_file.then(|| Owner::OpenFile.share(through, *byte..byte + 1).ok())?
    }

    /// Whether this process imported the memory, and has it.
    fn has_imported(&self, mark: &Mark) -> bool {
        let is_same = |other: &Mark| other.byte == mark.byte && other.file.file == mark.file.file;
        self.marks.values().any(|other| other.is_imported && is_same(other))
    }

    /// Whether a process, this one included, refers to the memory.
    fn is_held(&self, mark: &Mark) -> bool {
        let finds = |fd| Owner::OpenFile.finds_locked(fd, mark.byte..mark.byte + 1) == Ok(true);
        self.has_imported(mark) || mark.file.number().is_some_and(finds)
    }

    /// The last reference and the last mapping of a handle here are gone. Returns the key that its memory has from now on, if
    /// it is this process's and others refer to it.
    pub(super) fn handle_gone(&mut self, handle: Handle) -> Option<Key> {
        let mark = self.marks.remove(&handle)?;
        if mark.is_imported
            && !self.has_imported(&mark)
            && let Some(fd) = mark.file.number()
        {
            Owner::OpenFile.unlock(fd, mark.byte..mark.byte + 1);
        }
        let is_left = !mark.is_imported && self.is_held(&mark);
        let key = mark.byte as u64;
        is_left.then(|| self.left.insert(key, mark))?;
        Some(Key::Object(key))
    }

    /// As `handle_gone`, for memory that the driver has freed although descriptors refer to it.
    pub(super) fn handle_lost(&mut self, handle: Handle) {
        if let Some(Key::Object(key)) = self.handle_gone(handle) {
            self.left.remove(&key);
        }
    }
}

impl Engine {
    /// Takes memory off the books whose last descriptor was closed. Returns the bytes that were on this device.
    pub(super) fn refund_closed_descriptors(&self, device: i16, api: Api) -> u64 {
        let mut known = lock(&self.descriptors);
        let keys: Vec<u64> = known
            .left
            .keys()
            .copied()
            // What another thread has not booked yet stays.
            .filter(|&key| self.state.ledger.get(Key::Object(key)).is_some() && !known.is_held(&known.left[&key]))
            .collect();
        let closed = keys.iter().filter(|key| known.left.remove(key).is_some());
        let gone = closed.filter_map(|&key| Some((Key::Object(key), self.state.ledger.remove(Key::Object(key))?)));
        let mut bytes = 0;
        for (key, allocation) in gone {
            self.state.refund(&allocation);
            self.state.records.write(records::freed(api, key, &allocation, false));
            bytes += if allocation.device == device {
                allocation.reserved()
            } else {
                0
            };
        }
        bytes
    }

    /// Memory stays on the books under this key: only others refer to it. The keeper looks for its end if a process asks.
    pub(super) fn keep_for_descriptors(&'static self, key: Key, allocation: Allocation, api: Api) {
        static TOLD: AtomicBool = AtomicBool::new(false);
        let device = allocation.device;
        self.state.records.write(records::obtained(api, key, &allocation));
        self.state.ledger.insert(key, allocation);
        self.pools.keep_driver_pools(device, trim_pools);
        if self.state.limits.of(device).is_some() && !TOLD.swap(true, Relaxed) {
            let bytes = size(allocation.reserved());
            warn!(
                "GPU {device}: the job released {bytes} that exported descriptors hold; they count until all are closed"
            );
        }
    }
}

impl Call {
    /// `cuMemExportToShareableHandle`
    ///
    /// # Safety
    /// The arguments are the job's own, and a successful `ask` has written a handle of this kind.
    pub unsafe fn export_physical(
        &self,
        (out, handle, kind): (*mut c_void, Handle, u32),
        ask: impl FnOnce() -> CudaResult,
    ) -> CudaResult {
        static TOLD: AtomicBool = AtomicBool::new(false);
        ask()?;
        // SAFETY: by contract; such a handle is a number (cuda.h 13.5:4397).
        let mark = || lock(&self.engine.descriptors).note(handle, unsafe { *out.cast() }, false);
        let is_marked = kind == POSIX_FILE_DESCRIPTOR && mark().is_some();
        let is_limited = |device| self.engine.state.limits.of(device).is_some();
        let allocation = self.engine.state.ledger.get(Key::Physical(handle));
        if !is_marked && allocation.is_some_and(|one| is_limited(one.device)) && !TOLD.swap(true, Relaxed) {
            warn!("exported handles cannot be followed here: what only such handles hold is outside the limit");
        }
        Ok(())
    }
}
