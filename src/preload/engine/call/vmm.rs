//! Physical memory of the virtual memory management API: a handle lives until its last reference *and* its last mapping
//! are gone, whichever comes last.

use std::collections::{BTreeMap, HashMap};

use crate::engine::state::ledger::Key;
use crate::engine::{Call, Place, booking, lock};
use crate::next::{self, CUmemAllocationProp, Handle, INVALID_VALUE, SUCCESS};
use base::api::Class;
use base::cuda::HOST_DEVICE;
use journal::format::Event;
use journal::writer::Claim;

/// `CU_MEM_LOCATION_TYPE_DEVICE`
const LOCATION_DEVICE: u32 = 1;

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

    /// Takes one use away; true when it was the last and the memory is free.
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

    /// Every mapping in `size` bytes at `address` is gone; the handles whose memory went with it.
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

impl Call {
    /// # Safety
    /// As `cuMemCreate`: `properties` is null or readable, `out` null or writable.
    pub unsafe fn create_physical(
        &self,
        out: *mut Handle,
        size: usize,
        properties: *const CUmemAllocationProp,
        flags: u64,
    ) -> i32 {
        // The device is the one named in the properties, whatever context is current.
        let device = if properties.is_null() {
            HOST_DEVICE
        } else {
            // SAFETY: readable by contract; the enum is read as a number.
            unsafe {
                let location = &raw const (*properties).location;
                match (&raw const (*location).type_).cast::<u32>().read() {
                    LOCATION_DEVICE => (*location).id as i16,
                    _ => HOST_DEVICE,
                }
            }
        };
        let place = Place { device, context: 0 };
        // SAFETY: the job's own arguments.
        let ask = || unsafe { next::cuMemCreate(out, size, properties, flags) };
        self.obtain(Class::Vmm, Some(place), size as u64, ask, || {
            // SAFETY: written by the call that succeeded.
            let handle = unsafe { *out };
            lock(&self.engine.physical).referenced(handle);
            (
                Key::Physical(handle),
                booking(Class::Vmm, place, size as u64, size as u64),
            )
        })
    }

    /// # Safety
    /// `out` is null or writable.
    pub unsafe fn import_physical(&self, out: *mut Handle, ask: impl Fn() -> i32) -> i32 {
        let place = Place::current().unwrap_or(Place::HOST).without_context();
        let result = ask();
        if result != SUCCESS || out.is_null() {
            self.failed(Class::Imported, Some(place), 0, result);
            return result;
        }
        // SAFETY: written by the call that succeeded.
        let handle = unsafe { *out };
        lock(&self.engine.physical).referenced(handle);
        // A handle of our own that came back through its file descriptor is counted already.
        if self.engine.ledger.get(Key::Physical(handle)).is_none() {
            self.book(Key::Physical(handle), booking(Class::Imported, place, 0, 0));
        }
        result
    }

    /// # Safety
    /// `out` is null or writable.
    pub unsafe fn retain_physical(&self, out: *mut Handle, address: u64, ask: impl Fn() -> i32) -> i32 {
        // To the job this is memory of `cuMemAlloc`, which has no handle; ours holds other blocks as well.
        if self.engine.is_pooled(address) {
            return INVALID_VALUE;
        }
        let result = ask();
        if result == SUCCESS && !out.is_null() {
            // SAFETY: written by the call that succeeded.
            lock(&self.engine.physical).referenced(unsafe { *out });
        }
        result
    }

    pub fn release_physical(&self, handle: Handle, ask: impl FnOnce() -> i32) -> i32 {
        // Held across the call: the driver may give the same handle out again the moment it is free.
        let mut physical = lock(&self.engine.physical);
        let claim = if physical.release_frees(handle) {
            self.engine.claim()
        } else {
            None
        };
        let result = ask();
        if result != SUCCESS {
            self.free_failed(claim, Key::Physical(handle), result);
        } else if physical.released(handle) {
            self.physical_gone(claim, handle);
        }
        result
    }

    fn physical_gone(&self, claim: Option<Claim>, handle: Handle) {
        let key = Key::Physical(handle);
        if let Some(allocation) = self.engine.ledger.remove(key) {
            self.engine.refund_allocation(&allocation);
            self.engine.freed(claim, self.api(), key, &allocation, false);
        }
    }

    pub fn map_physical(&self, address: u64, size: u64, handle: Handle, ask: impl FnOnce() -> i32) -> i32 {
        let mut physical = lock(&self.engine.physical);
        let result = ask();
        if result == SUCCESS {
            physical.mapped(address, size, handle);
            drop(physical);
            self.mapping(Event::Map { address, size, handle });
        }
        result
    }

    pub fn unmap_physical(&self, address: u64, size: u64, ask: impl FnOnce() -> i32) -> i32 {
        let mut physical = lock(&self.engine.physical);
        let result = ask();
        if result == SUCCESS {
            // No other thread can be given these handles before the lock is released: creating takes it as well.
            for handle in physical.unmapped(address, size) {
                self.physical_gone(self.engine.claim(), handle);
            }
            drop(physical);
            self.mapping(Event::Unmap { address, size });
        }
        result
    }

    fn mapping(&self, event: Event) {
        let device = Place::current().map_or(HOST_DEVICE, |place| place.device);
        self.engine.write(self.api(), device, event);
    }

    /// # Safety
    /// `out` is null or writable.
    pub unsafe fn reserve_range(&self, out: *mut u64, size: usize, ask: impl Fn() -> i32) -> i32 {
        let place = Place::current().unwrap_or(Place::HOST).without_context();
        self.obtain(Class::AddressRange, Some(place), size as u64, ask, || {
            // SAFETY: written by the call that succeeded.
            let key = Key::Range(unsafe { *out });
            (key, booking(Class::AddressRange, place, size as u64, size as u64))
        })
    }

    pub fn free_range(&self, address: u64, ask: impl FnOnce() -> i32) -> i32 {
        self.give_back(Key::Range(address), ask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_free_when_the_last_reference_and_the_last_mapping_are_gone() {
        let mut physical = Physical::default();
        physical.referenced(7);
        physical.mapped(0x1000, 0x1000, 7);
        physical.mapped(0x4000, 0x1000, 7);
        assert!(!physical.released(7));
        assert!(physical.unmapped(0x1000, 0x1000).is_empty());
        assert_eq!(physical.unmapped(0x0, 0x10_000), [7]);
        assert!(!physical.released(7), "an unknown handle frees nothing");
    }
}
