//! A library that a child of this program loads, and calls of its functions by name.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt::Display;
use std::mem::{self, MaybeUninit};
use std::ptr;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// A loaded library, which is never unloaded, and the function that finds its functions.
pub struct Library(*mut c_void, Dlsym);

// SAFETY: the handle is only given to functions of the loader, which any thread may call, and it is never closed.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// The error is in the loader's own words.
    pub fn open(name: &CStr) -> Result<Library, String> {
        // SAFETY: the name is a C string, and `dlerror` returns a C string of this thread.
        unsafe {
            let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            if !handle.is_null() {
                return Ok(Library(handle, libc::dlsym));
            }
            let error = libc::dlerror();
            let reason = if error.is_null() {
                c"no reason given"
            } else {
                CStr::from_ptr(error)
            };
            Err(reason.to_string_lossy().into_owned())
        }
    }

    /// All libraries of this process, in the order in which the loader searches them.
    pub fn of_this_process() -> Library {
        Library(libc::RTLD_DEFAULT, libc::dlsym)
    }

    /// A library whose functions the C library finds, and not the `dlsym` of a preloaded layer.
    pub fn behind_layers(path: &str) -> Option<Library> {
        // glibc's `dlsym`, before 2.34 and from then on.
        let places = [(c"libc.so.6", c"GLIBC_2.34"), (c"libdl.so.2", c"GLIBC_2.2.5")];
        let found = places.into_iter().find_map(|(library, version)| {
            let library = Library::open(library).ok()?;
            // SAFETY: the handle is from `dlopen`, and the names are C strings.
            let found = unsafe { libc::dlvsym(library.0, c"dlsym".as_ptr(), version.as_ptr()) };
            (!found.is_null()).then_some(found)
        })?;
        let library = Library::open(&CString::new(path).ok()?).ok()?;
        // SAFETY: `dlsym` has this signature.
        Some(Library(library.0, unsafe {
            mem::transmute::<*mut c_void, Dlsym>(found)
        }))
    }

    pub fn address(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is from `dlopen`, and the library is never unloaded.
        unsafe { self.1(self.0, name.as_ptr()) }
    }

    /// The function of this name; `None` if the library has no such function.
    ///
    /// # Safety
    /// `F` must be the type of a pointer to that function.
    pub unsafe fn function<F: Copy>(&self, name: &CStr) -> Option<F> {
        let address = self.address(name);
        // SAFETY: the caller names the right type, and a function pointer has the size of a pointer.
        (!address.is_null()).then(|| unsafe { mem::transmute_copy(&address) })
    }

    pub fn path(&self) -> Option<String> {
        /// The public part of `struct link_map` in `<link.h>`.
        #[repr(C)]
        struct LinkMap {
            base: usize,
            name: *const c_char,
        }
        let mut map: *const LinkMap = ptr::null();
        // SAFETY: the loader writes a pointer to its own entry, which lives as long as the library.
        unsafe {
            let found = libc::dlinfo(self.0, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) == 0;
            let named = found && !map.is_null() && !(*map).name.is_null();
            named.then(|| CStr::from_ptr((*map).name).to_string_lossy().into_owned())
        }
    }
}

/// The file whose mapping contains the address.
pub fn file_of(address: *mut c_void) -> Option<String> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the loader fills the structure in if it returns a value other than 0.
    unsafe {
        let found = !address.is_null() && libc::dladdr(address, info.as_mut_ptr()) != 0;
        let name = found
            .then(|| info.assume_init().dli_fname)
            .filter(|name| !name.is_null())?;
        Some(CStr::from_ptr(name).to_string_lossy().into_owned())
    }
}

/// The files that a process has mapped.
pub fn mapped_files(process: impl Display) -> BTreeSet<String> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let files = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    files.map(str::to_owned).collect()
}

/// The result of a call to a function that the driver does not have.
pub const NOT_FOUND: i32 = 500;

/// Calls the function of this name; `NOT_FOUND` if there is none.
macro_rules! call {
    ($library:expr, $name:ident($($argument:expr => $type:ty),*)) => {{
        // SAFETY: the signature is that of the public header, and the pointers are to local variables.
        unsafe {
            match $library.function::<unsafe extern "C" fn($($type),*) -> i32>(
                // The name contains no NUL.
                std::ffi::CStr::from_bytes_until_nul(concat!(stringify!($name), "\0").as_bytes()).unwrap_or(c"")
            ) {
                Some(function) => function($($argument),*),
                None => $crate::driver::NOT_FOUND,
            }
        }
    }};
}
pub(crate) use call;

/// A function of the driver that failed, and its result.
pub type Failed = (String, i32);

/// As `call`, with an error that names the function.
macro_rules! checked {
    ($library:expr, $name:ident($($arguments:tt)*)) => {
        match $crate::driver::call!($library, $name($($arguments)*)) {
            0 => Ok(()),
            code => Err((stringify!($name).trim_end_matches("_v2").to_owned(), code)),
        }
    };
}
pub(crate) use checked;
