//! The loader's list of objects, in load order.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::AtomicPtr;

use libc::dl_phdr_info;

use super::object::Object;
use super::{once, start};

type Visit = unsafe extern "C" fn(*mut dl_phdr_info, usize, *mut c_void) -> c_int;
type Iterate = unsafe extern "C" fn(Option<Visit>, *mut c_void) -> c_int;

/// The C library's own `dl_iterate_phdr`. If the name were bound by the loader, the call could reach a function of the same
/// name in the program or in another library, as with ThreadSanitizer. Such a function asks `dlsym` for the next one at its
/// first call. That question comes to our `dlsym`, which needs the list to answer, and so on without end.
fn iterate() -> Iterate {
    static FUNCTION: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let own = || start::c_library_function(c"dl_iterate_phdr");
    let function = once(&FUNCTION, || own().unwrap_or(libc::dl_iterate_phdr as *mut c_void));
    // SAFETY: the function of this name has this signature.
    unsafe { mem::transmute::<*mut c_void, Iterate>(function) }
}

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
    unsafe { iterate()(Some(visit::<T, F>), (&raw mut search).cast()) };
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
    unsafe { iterate()(Some(first), (&raw mut generation).cast()) };
    generation
}
