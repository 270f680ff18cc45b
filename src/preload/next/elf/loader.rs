//! Finds the object that holds an address without a lock, by `_dl_find_object` of glibc 2.35 and later.

use super::object::{Object, Position, our_address};
use super::once;
use super::start::{self, LinkMap};
use std::ffi::{c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::AtomicPtr;

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
    let find = || start::c_library_function(c"_dl_find_object").unwrap_or(ABSENT);
    let function = once(&FUNCTION, find);
    // SAFETY: the function of this name has this signature.
    (function != ABSENT).then(|| unsafe { mem::transmute::<*mut c_void, FindObject>(function) })
}

fn ask(function: FindObject, address: *const c_void) -> Option<Found> {
    let mut found = MaybeUninit::<Found>::zeroed();
    // SAFETY: the structure is as large as glibc's. Its fields are numbers and pointers, of which zero is a value.
    unsafe { (function(address, found.as_mut_ptr()) == 0).then(|| found.assume_init()) }
}

/// A number that stands for the object that holds `address`: another object at the same address has another one, unless
/// it has the same size and the same place of its unwind table. 0 if no object holds the address. The outer `None` means
/// that the loader cannot tell.
pub fn stamp(address: *const c_void) -> Option<u64> {
    let Some(found) = ask(find_object()?, address) else {
        return Some(0);
    };
    let parts = [found.start as u64, found.end as u64, found.map as u64, found.others[0]];
    Some(
        parts.into_iter().fold(1, |sum: u64, part| {
            (sum.rotate_left(25) ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        }) | 1,
    )
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
