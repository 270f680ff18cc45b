//! Which pool an address belongs to, found without a lock: a table of 2 MiB pages, filled as memory is obtained.
//!
//! A page can hold memory of several owners where a policy works in chunks. So a page says "perhaps of this pool", which
//! then knows exactly, or "ask the list of segments".

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::engine::pools::Pool;

const PAGE_BITS: u32 = 21;
const LEAF_BITS: u32 = 14;
const TOP_BITS: u32 = 15;

type Leaf = [AtomicPtr<Pool>; 1 << LEAF_BITS];

pub struct Pages {
    top: Box<[AtomicPtr<Leaf>]>,
}

/// What a page says of the addresses in it.
#[derive(Clone, Copy)]
pub enum Page {
    Nobody,
    Perhaps(&'static Pool),
    Several,
}

impl Default for Pages {
    fn default() -> Self {
        Pages {
            top: (0..1 << TOP_BITS).map(|_| AtomicPtr::default()).collect(),
        }
    }
}

/// Stands for several pools. Never read through.
fn several() -> *mut Pool {
    ptr::without_provenance_mut(align_of::<Pool>())
}

impl Pages {
    #[inline]
    pub fn at(&self, address: u64) -> Page {
        let page = address >> PAGE_BITS;
        let Some(top) = self.top.get((page >> LEAF_BITS) as usize) else {
            return Page::Nobody;
        };
        let leaf = top.load(Ordering::Acquire);
        if leaf.is_null() {
            return Page::Nobody;
        }
        // SAFETY: a leaf is never freed, and whole before its address is stored.
        let entry = unsafe { &(&*leaf)[page as usize & ((1 << LEAF_BITS) - 1)] };
        let pool = entry.load(Ordering::Acquire);
        if pool.is_null() {
            Page::Nobody
        } else if pool == several() {
            Page::Several
        } else {
            // SAFETY: pools are never freed, and only addresses of pools are stored.
            Page::Perhaps(unsafe { &*pool })
        }
    }

    /// Every page of a range, with what it says from now on. The caller holds the lock of the list of segments.
    pub fn set(&self, address: u64, size: u64, says: impl Fn(Page, u64) -> Page) {
        let last = (address + size - 1) >> PAGE_BITS;
        for page in address >> PAGE_BITS..=last {
            let Some(top) = self.top.get((page >> LEAF_BITS) as usize) else {
                return;
            };
            let mut leaf = top.load(Ordering::Acquire);
            if leaf.is_null() {
                let fresh: Box<Leaf> = Box::new([const { AtomicPtr::new(ptr::null_mut()) }; 1 << LEAF_BITS]);
                leaf = Box::into_raw(fresh);
                top.store(leaf, Ordering::Release);
            }
            let start = page << PAGE_BITS;
            let value = match says(self.at(start), start) {
                Page::Nobody => ptr::null_mut(),
                Page::Perhaps(pool) => ptr::from_ref(pool).cast_mut(),
                Page::Several => several(),
            };
            // SAFETY: as in `at`.
            unsafe { &(&*leaf)[page as usize & ((1 << LEAF_BITS) - 1)] }.store(value, Ordering::Release);
        }
    }

    pub const SIZE: u64 = 1 << PAGE_BITS;
}
