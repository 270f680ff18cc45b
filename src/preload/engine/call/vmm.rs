//! The virtual memory management functions: physical memory, mappings, reserved address space.
//!
//! The memory of a handle lives until its last reference *and* its last mapping are gone, in either order.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::os::fd::RawFd;

use crate::engine::call::booking;
use crate::engine::state::allocation::Key;
use crate::engine::state::location::Location;
use crate::engine::state::records;
use crate::engine::{Call, Engine};
use crate::next::{self, Handle};
use base::api::{Api, Class};
use base::cuda::{CudaResult, DriverError, POSIX_FILE_DESCRIPTOR};
use base::sync::lock;
use journal::format::Event;
use journal::writer::Claim;

/// The job's handles of physical memory, and where they are mapped.
#[derive(Default)]
pub struct Physical {
    handles: HashMap<Handle, Uses>,
    /// First address -> (bytes, handle).
    mappings: BTreeMap<u64, (u64, Handle)>,
}

#[derive(Default)]
struct Uses {
    references: u64,
    mappings: u64,
}

impl Physical {
    fn referenced(&mut self, handle: Handle) {
        self.handles.entry(handle).or_default().references += 1;
    }

    fn mapped(&mut self, address: u64, size: u64, handle: Handle) {
        self.mappings.insert(address, (size, handle));
        self.handles.entry(handle).or_default().mappings += 1;
    }

    /// An address where the handle is mapped.
    fn address_of(&self, handle: Handle) -> Option<u64> {
        let found = self.mappings.iter().find(|(_, (_, mapped))| *mapped == handle);
        found.map(|(&address, _)| address)
    }

    fn is_referenced(&self, handle: Handle) -> bool {
        self.handles.get(&handle).is_some_and(|uses| uses.references > 0)
    }

    /// The handle is mapped nowhere any more.
    fn mappings_lost(&mut self, handle: Handle) {
        self.mappings.retain(|_, (_, mapped)| *mapped != handle);
        if let Some(uses) = self.handles.get_mut(&handle) {
            uses.mappings = 0;
        }
    }

    /// The handle and all its mappings are gone.
    fn lost(&mut self, handle: Handle) {
        self.mappings_lost(handle);
        self.handles.remove(&handle);
    }

    /// Takes one use away. Returns whether it was the last one, so that the memory is free.
    fn dropped(&mut self, handle: Handle, take: impl FnOnce(&mut Uses)) -> bool {
        let Some(uses) = self.handles.get_mut(&handle) else {
            return false;
        };
        take(uses);
        let last = uses.references == 0 && uses.mappings == 0;
        if last {
            self.handles.remove(&handle);
        }
        last
    }

    /// Whether the next release of `handle` frees its memory.
    fn release_frees(&self, handle: Handle) -> bool {
        self.handles
            .get(&handle)
            .is_some_and(|uses| uses.references == 1 && uses.mappings == 0)
    }

    fn released(&mut self, handle: Handle) -> bool {
        self.dropped(handle, |uses| uses.references = uses.references.saturating_sub(1))
    }

    /// Every mapping in `size` bytes at `address` is gone. Returns the handles whose memory is free now.
    fn unmapped(&mut self, address: u64, size: u64) -> Vec<Handle> {
        let end = address.saturating_add(size);
        let inside: Vec<u64> = self.mappings.range(address..end).map(|(&start, _)| start).collect();
        let mut free = Vec::new();
        for start in inside {
            if let Some((_, handle)) = self.mappings.remove(&start)
                && self.dropped(handle, |uses| uses.mappings = uses.mappings.saturating_sub(1))
            {
                free.push(handle);
            }
        }
        free
    }
}

impl Engine {
    /// A device's primary context was reset. Takes those of the job's handles off the books that went with it. The
    /// header can be read either way (`primary_context_reset_keeps_vmm` in tests/assumptions), so the next layer is asked.
    pub fn forget_lost_physical(&self, device: i16, api: Api) {
        let held = self.state.ledger.select(|_, allocation| allocation.device == device);
        for (key, allocation) in held {
            let Key::Physical(handle) = key else { continue };
            let (mapped_at, is_referenced) = {
                let physical = lock(&self.physical);
                (physical.address_of(handle), physical.is_referenced(handle))
            };
            // A fault of the thread's own context says nothing about the memory.
            if mapped_at.is_some_and(|address| next::is_mapped(address) != Ok(false)) {
                continue;
            }
            // A handle that the job has released is known by its mapping alone.
            let is_known = if is_referenced {
                next::is_handle(handle)
            } else {
                Ok(false)
            };
            if is_known == Ok(true) {
                lock(&self.physical).mappings_lost(handle);
            }
            if is_known != Ok(false) {
                continue;
            }
            if self.state.ledger.remove(key).is_none() {
                continue;
            }
            lock(&self.physical).lost(handle);
            lock(&self.descriptors).handle_lost(handle);
            self.state.refund(&allocation);
            let record = records::freed(api, key, &allocation, true);
            self.state.records.write(record);
        }
    }
}

impl Call {
    /// `cuMemCreate` on `device`, whatever context is current. `handle` reads what a successful `ask` wrote, here and below.
    pub fn create_physical(
        &self,
        device: i16,
        size: u64,
        handle: impl FnOnce() -> Handle,
        ask: impl Fn() -> CudaResult,
    ) -> CudaResult {
        let location = Location { device, context: 0 };
        self.obtain_direct(Class::Vmm, Some(location), size, ask, || {
            let handle = handle();
            lock(&self.engine.physical).referenced(handle);
            Key::Physical(handle)
        })
    }

    pub fn import_physical(
        &self,
        handle: impl FnOnce() -> Handle,
        (os_handle, kind): (*mut c_void, u32),
        ask: impl Fn() -> CudaResult,
    ) -> CudaResult {
        let location = Location::of_device_here();
        ask().inspect_err(|&problem| self.failed(Class::Imported, Some(location), 0, problem, None))?;
        let handle = handle();
        lock(&self.engine.physical).referenced(handle);
        if kind == POSIX_FILE_DESCRIPTOR {
            lock(&self.engine.descriptors).note(handle, os_handle as usize as RawFd, true);
        }
        // A handle of this process that came back through its file descriptor is counted already.
        if self.engine.state.ledger.get(Key::Physical(handle)).is_none() {
            self.book(Key::Physical(handle), booking::entry(Class::Imported, location, 0, 0));
        }
        Ok(())
    }

    pub fn retain_physical(
        &self,
        handle: impl FnOnce() -> Handle,
        address: u64,
        ask: impl Fn() -> CudaResult,
    ) -> CudaResult {
        // To the job, a block is memory of `cuMemAlloc`, which has no handle. The pool's handle covers other blocks too.
        self.unless_pooled(address, ask)?;
        lock(&self.engine.physical).referenced(handle());
        Ok(())
    }

    /// To the job, a block is memory of `cuMemAlloc`, which it did not map.
    pub fn unless_pooled(&self, address: u64, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        if self.engine.pools.is_pooled(address) {
            Err(DriverError::INVALID_VALUE)
        } else {
            ask()
        }
    }

    pub fn release_physical(&self, handle: Handle, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        // The lock is held across the call: as soon as the handle is free, the driver may give it out again.
        let mut physical = lock(&self.engine.physical);
        let is_known = || self.engine.state.ledger.get(Key::Physical(handle)).is_some();
        let claim = if physical.release_frees(handle) && is_known() {
            self.engine.state.records.claim()
        } else {
            None
        };
        let result = ask();
        if result.is_err() {
            self.free_failed(claim, Key::Physical(handle), result);
        } else if physical.released(handle) {
            self.physical_gone(claim, handle);
        }
        result
    }

    /// The memory of a handle is free. `claim` is the slot of the record, if one was claimed before the call.
    fn physical_gone(&self, claim: Option<Claim>, handle: Handle) {
        let (key, state) = (Key::Physical(handle), self.engine.state);
        let kept = lock(&self.engine.descriptors).handle_gone(handle);
        if let Some(allocation) = state.ledger.remove(key) {
            let claim = claim.or_else(|| state.records.claim());
            let record = records::freed(self.api(), key, &allocation, false);
            if kept.is_none() {
                state.refund(&allocation);
            }
            state.records.commit(claim, record);
            if let Some(kept) = kept {
                self.engine.keep_for_descriptors(kept, allocation, self.api());
            }
        } else if claim.is_some() {
            // A claimed slot must be filled.
            self.free_failed(claim, key, Ok(()));
        }
    }

    pub fn map_physical(
        &self,
        address: u64,
        size: u64,
        handle: Handle,
        ask: impl FnOnce() -> CudaResult,
    ) -> CudaResult {
        let mut physical = lock(&self.engine.physical);
        ask()?;
        physical.mapped(address, size, handle);
        drop(physical);
        let record = Event::Map { address, size, handle }.encode(self.api(), Location::device_here());
        self.engine.state.records.write(record);
        Ok(())
    }

    pub fn unmap_physical(&self, address: u64, size: u64, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let mut physical = lock(&self.engine.physical);
        ask()?;
        // Creating a handle takes the same lock, so until it is released no thread can be given one of these again.
        for handle in physical.unmapped(address, size) {
            self.physical_gone(None, handle);
        }
        drop(physical);
        let record = Event::Unmap { address, size }.encode(self.api(), Location::device_here());
        self.engine.state.records.write(record);
        Ok(())
    }
}
