//! The loader's list of objects, in load order.

use std::ffi::{c_int, c_void};

use libc::dl_phdr_info;

use super::object::Object;

struct Search<T, F> {
    pick: F,
    found: Option<T>,
    ours_seen: bool,
}

/// Goes through the loaded objects in load order until `pick` takes one. The loader's list is locked meanwhile, so `pick`
/// must not load or unload an object, and must not allocate.
pub fn find<T, F: FnMut(&Object) -> Option<T>>(pick: F) -> Option<T> {
    unsafe extern "C" fn visit<T, F: FnMut(&Object) -> Option<T>>(
        info: *mut dl_phdr_info,
        _size: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: `find` passes its search, to which there is no other reference during the call.
        let search = unsafe { &mut *search.cast::<Search<T, F>>() };
        // SAFETY: `dl_iterate_phdr` passed it to this callback.
        let object = unsafe { Object::new(info, search.ours_seen) };
        search.ours_seen |= object.is_ours();
        search.found = (search.pick)(&object);
        search.found.is_some().into()
    }
    let mut search = Search {
        pick,
        found: None,
        ours_seen: false,
    };
    // SAFETY: `visit` gets the search as the type that it has, and only during the call.
    unsafe { libc::dl_iterate_phdr(Some(visit::<T, F>), (&raw mut search).cast()) };
    search.found
}

/// A number that changes whenever an object is loaded or unloaded.
pub fn generation() -> u64 {
    unsafe extern "C" fn first(info: *mut dl_phdr_info, _size: usize, out: *mut c_void) -> c_int {
        // SAFETY: the loader passes its description, and `out` is the number below.
        unsafe { *out.cast::<u64>() = (*info).dlpi_adds.wrapping_add((*info).dlpi_subs) };
        1
    }
    let mut generation = 0u64;
    // SAFETY: `first` gets a pointer to the number that it fills, and only during the call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut generation).cast()) };
    generation
}
