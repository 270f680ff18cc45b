//! Finds the object that holds an address without a lock, by `_dl_find_object` of glibc 2.35 and later.

use super::list;
use super::object::{Object, Position, our_address};
use std::ffi::{c_char, c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The public part of `struct link_map` (`<link.h>`).
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
        function = list::find(|object| object.function(c"_dl_find_object")).unwrap_or(ABSENT);
        FUNCTION.store(function, Ordering::Release);
    }
    // SAFETY: the function of this name has this signature.
    (function != ABSENT).then(|| unsafe { mem::transmute::<*mut c_void, FindObject>(function) })
}

fn ask(function: FindObject, address: *const c_void) -> Option<Found> {
    let mut found = MaybeUninit::<Found>::zeroed();
    // SAFETY: the structure is as large as glibc's. Its fields are numbers and pointers, of which zero is a value.
    unsafe { (function(address, found.as_mut_ptr()) == 0).then(|| found.assume_init()) }
}

/// The object that holds `address`, if one does. The outer `None` means that the loader cannot tell.
pub fn find(address: *const c_void) -> Option<Option<Object>> {
    let function = find_object()?;
    let ours = ask(function, our_address() as *const c_void)?.map;
    let Some(found) = ask(function, address) else {
        return Some(None);
    };
    // SAFETY: the loader returned its entry of a loaded object.
    let map = unsafe { &*found.map };
    // SAFETY: the loader says that the object is mapped there.
    let object = unsafe { Object::mapped_at(found.start, map.base, map.name, position(found.map, ours)) }?;
    Some(Some(object))
}

/// The position of an object. Only the part of the list in front of ours is read. The objects there are never unloaded, so
/// that part does not change.
fn position(map: *const LinkMap, ours: *const LinkMap) -> Position {
    let mut at = ours;
    while !at.is_null() {
        if at == map {
            return if at == ours {
                Position::Ours
            } else {
                Position::BeforeOurs
            };
        }
        // SAFETY: it is an entry of the loader's list, and stays one (see above).
        at = unsafe { (*at).previous };
    }
    Position::BehindOurs
}
