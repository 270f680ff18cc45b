//! Whether NVML's answers in this process are those of a layer.
//!
//! Layers for GPU sharing answer NVML's functions too, so that programs see the layer's limit and book. A layer is preloaded
//! and exports the functions, or is installed as `libnvidia-ml.so.1` and loads NVIDIA's own library itself.

use std::ffi::{CStr, c_void};
use std::fs;
use std::mem::MaybeUninit;

/// How the names of NVML's files begin.
const NAME: &str = "libnvidia-ml.so";

/// The file of the layer that answers in this process, which has used NVML; `None` if NVML answers itself.
pub fn in_place() -> Option<String> {
    // SAFETY: the names are C strings. The library stays loaded, because this process has used it and unloads nothing.
    let function = unsafe {
        let library = libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        libc::dlsym(library, c"nvmlDeviceGetMemoryInfo".as_ptr())
    };
    let answers = real(&file_of(function)?);
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let files = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let is_nvml = |file: &&str| file.rsplit('/').next().is_some_and(|name| name.starts_with(NAME));
    let behind = files.filter(is_nvml).map(real).any(|file| file != answers);
    behind.then_some(answers)
}

fn real(path: &str) -> String {
    fs::canonicalize(path).map_or_else(|_| path.to_owned(), |path| path.to_string_lossy().into_owned())
}

/// The file whose mapping contains the address.
fn file_of(address: *mut c_void) -> Option<String> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the loader fills the structure in if it returns a value other than 0; zeros are valid in it.
    let name = unsafe {
        let found = !address.is_null() && libc::dladdr(address, info.as_mut_ptr()) != 0;
        found.then(|| info.assume_init().dli_fname)
    };
    let name = name.filter(|name| !name.is_null())?;
    // SAFETY: the name is a C string of the loader.
    Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}
