//! The objects that a program starts with, up to the C library: read from the loader's list without its lock, and without a
//! look-up by name.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use super::object::{Object, Position};

/// The public part of `struct link_map` (`<link.h>`).
#[repr(C)]
pub struct LinkMap {
    pub base: usize,
    pub name: *const c_char,
    pub dynamic: *const c_void,
    pub next: *const LinkMap,
    pub previous: *const LinkMap,
}

/// The first part of `struct r_debug` (`<link.h>`).
#[repr(C)]
struct Debug {
    version: c_int,
    map: *const LinkMap,
}

unsafe extern "C" {
    /// The loader's own variable.
    #[link_name = "_r_debug"]
    static LOADER: Debug;
}

unsafe extern "C" {
    /// The dynamic section of our own object, which the linker names so.
    #[link_name = "_DYNAMIC"]
    static OUR_DYNAMIC: u8;
}

/// The objects in load order from the first one on that `start` accepts, up to the C library. The loader's list is read
/// without its lock: no object is ever unloaded that a program starts with, and the C library is among these.
fn objects_from(start: impl Fn(&LinkMap) -> bool) -> impl Iterator<Item = Object> {
    // SAFETY: the loader filled the variable in before it ran any code of ours.
    let mut at = unsafe { LOADER.map };
    let maps = std::iter::from_fn(move || {
        // SAFETY: it is null, or an entry of the loader's list, and stays one (see above).
        let map = unsafe { at.as_ref() }?;
        at = if is_c_library(map) { ptr::null() } else { map.next };
        Some(map)
    });
    maps.skip_while(move |map| !start(map)).filter_map(|map| {
        // The program's base may be 0, and no object is mapped there.
        let mapped = map.base != 0;
        // SAFETY: the loader mapped the first segment of the object at its base.
        mapped.then(|| unsafe { Object::mapped_at(map.base, map.base, map.name, Position::BehindOurs) })?
    })
}

fn is_c_library(map: &LinkMap) -> bool {
    if map.name.is_null() {
        return false;
    }
    // SAFETY: the loader's own string.
    let path = unsafe { CStr::from_ptr(map.name) }.to_bytes();
    let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    // `libc-2.31.so` before glibc 2.34.
    file.starts_with(b"libc.so") || file.starts_with(b"libc-2.")
}

/// A function of the C library itself.
pub fn c_library_function(name: &CStr) -> Option<*mut c_void> {
    objects_from(is_c_library).find_map(|library| library.function(name))
}

/// The first function of this name behind ours, up to the C library. `None` if the library was not preloaded.
pub fn next_function(name: &CStr) -> Option<*mut c_void> {
    let ours = |map: &LinkMap| map.dynamic == (&raw const OUR_DYNAMIC).cast();
    objects_from(ours).skip(1).find_map(|object| object.function(name))
}
