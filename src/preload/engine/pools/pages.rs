//! A table of 2 MiB pages that tells without a lock who may own an address.
//!
//! The memory of several owners can share a page if a policy works in chunks. So the entry of a page is one possible
//! owner, or it is marked as shared. A possible owner knows whether an address is its own; for a shared page, the lists
//! of ranges in `registry` must be searched.

use std::ptr;

// The model of this table (`pages_model`) has other atomics here.
use super::atomic::{AtomicPtr, Ordering};

const PAGE_BITS: u32 = 21;

type Leaf<P, const ENTRIES: usize> = [AtomicPtr<P>; ENTRIES];

/// `LEAVES` leaves of `ENTRIES` pages each: by default the 2^50 bytes below which CUDA's addresses lie.
pub struct Pages<P: 'static, const ENTRIES: usize = { 1 << 14 }, const LEAVES: usize = { 1 << 15 }> {
    top: Box<[AtomicPtr<Leaf<P, ENTRIES>>]>,
}

/// Who may own the addresses of one page.
pub enum Page<P: 'static> {
    Unowned,
    /// No other owner has memory here.
    MaybeOf(&'static P),
    /// Several owners have memory here.
    Shared,
}

impl<P, const ENTRIES: usize, const LEAVES: usize> Default for Pages<P, ENTRIES, LEAVES> {
    fn default() -> Self {
        Pages { top: unowned(LEAVES) }
    }
}

fn unowned<T>(count: usize) -> Box<[AtomicPtr<T>]> {
    (0..count).map(|_| AtomicPtr::new(ptr::null_mut())).collect()
}

/// The entry of a shared page. It is never dereferenced.
fn shared<P>() -> *mut P {
    ptr::without_provenance_mut(align_of::<P>())
}

impl<P, const ENTRIES: usize, const LEAVES: usize> Pages<P, ENTRIES, LEAVES> {
    pub const PAGE_BYTES: u64 = 1 << PAGE_BITS;

    #[inline]
    pub fn at(&self, address: u64) -> Page<P> {
        let page = address >> PAGE_BITS;
        let Some(top) = self.top.get(page as usize / ENTRIES) else {
            return Page::Unowned;
        };
        let leaf = top.load(Ordering::Acquire);
        if leaf.is_null() {
            return Page::Unowned;
        }
        // SAFETY: a leaf is never freed, and its address is stored after it is complete.
        let entry = unsafe { &(&*leaf)[page as usize % ENTRIES] };
        let owner = entry.load(Ordering::Acquire);
        if owner.is_null() {
            Page::Unowned
        } else if owner == shared() {
            Page::Shared
        } else {
            // SAFETY: every other entry was made from a reference that lives for ever.
            Page::MaybeOf(unsafe { &*owner })
        }
    }

    /// Sets the entry of every page that a range touches. `owner_of` makes it from the old entry and the page's first
    /// address. The caller holds the lock of the list of segments.
    pub fn set(&self, address: u64, size: u64, owner_of: impl Fn(Page<P>, u64) -> Page<P>) {
        let last = (address + size - 1) >> PAGE_BITS;
        for page in address >> PAGE_BITS..=last {
            let Some(top) = self.top.get(page as usize / ENTRIES) else {
                return;
            };
            let mut leaf = top.load(Ordering::Acquire);
            if leaf.is_null() {
                // Never on the stack: a thread of the job may have little of it. The slice has a leaf's length.
                leaf = Box::into_raw(unowned::<P>(ENTRIES)).cast();
                top.store(leaf, Ordering::Release);
            }
            let start = page << PAGE_BITS;
            let value = match owner_of(self.at(start), start) {
                Page::Unowned => ptr::null_mut(),
                Page::MaybeOf(owner) => ptr::from_ref(owner).cast_mut(),
                Page::Shared => shared(),
            };
            // SAFETY: a leaf is never freed.
            unsafe { &(&*leaf)[page as usize % ENTRIES] }.store(value, Ordering::Release);
        }
    }
}
