//! What glibc's loader (2.35 and later) says about an address without taking a lock.

use super::{Object, Place, our_address};
use std::ffi::{c_char, c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `struct link_map`, the part that `<link.h>` shows.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const c_void,
    next: *const LinkMap,
    previous: *const LinkMap,
}

/// `struct dl_find_object`
#[repr(C)]
struct Found {
    flags: u64,
    start: usize,
    end: usize,
    map: *const LinkMap,
    others: [u64; 10],
}

type FindObject = unsafe extern "C" fn(*const c_void, *mut Found) -> c_int;

fn find_object() -> Option<FindObject> {
    const ABSENT: *mut c_void = usize::MAX as *mut c_void;
    static FUNCTION: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut function = FUNCTION.load(Ordering::Acquire);
    if function.is_null() {
        function = super::find(|object| object.function(c"_dl_find_object")).unwrap_or(ABSENT);
        FUNCTION.store(function, Ordering::Release);
    }
    // SAFETY: the function of this name has this signature.
    (function != ABSENT).then(|| unsafe { mem::transmute::<*mut c_void, FindObject>(function) })
}

fn ask(function: FindObject, address: *const c_void) -> Option<Found> {
    let mut found = MaybeUninit::<Found>::zeroed();
    // SAFETY: the structure is as large as glibc's, and plain numbers and pointers, for which zero will do.
    unsafe { (function(address, found.as_mut_ptr()) == 0).then(|| found.assume_init()) }
}

/// The object around `address`, if any; `None` where that cannot be said in this way.
pub fn find(address: *const c_void) -> Option<Option<Object>> {
    let function = find_object()?;
    let ours = ask(function, our_address() as *const c_void)?.map;
    let Some(found) = ask(function, address) else {
        return Some(None);
    };
    // SAFETY: the loader's entry of a loaded object.
    let map = unsafe { &*found.map };
    // SAFETY: the loader says that the object is mapped there.
    let object = unsafe { Object::mapped_at(found.start, map.base, map.name, place(found.map, ours)) }?;
    Some(Some(object))
}

/// What stands in front of a preloaded library is never unloaded, so that this part of the list stays as it is.
fn place(map: *const LinkMap, ours: *const LinkMap) -> Place {
    let mut at = ours;
    while !at.is_null() {
        if at == map {
            return if at == ours { Place::Ours } else { Place::BeforeOurs };
        }
        // SAFETY: an entry of the loader's list, see above.
        at = unsafe { (*at).previous };
    }
    Place::BehindOurs
}
