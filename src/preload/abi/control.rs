//! The exported functions `vramshim_*`, by which a job asks the library about itself.
//!
//! One contract for all (`shim.h`): a pointer to text is null or a C string, `out` and `value` are null or writable, and a
//! `buffer` is null or has `capacity` writable bytes.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::engine::control::{commands, names};
use crate::engine::{self, Limit, Stats};
use base::api::{Api, Class};

/// Copies `text` and a NUL into `buffer`, cut to `capacity`. Returns the bytes that the whole text needs with its NUL.
///
/// # Safety
/// `buffer` is null or has `capacity` writable bytes.
pub(super) unsafe fn copy_out(text: &[u8], buffer: *mut c_char, capacity: usize) -> usize {
    if !buffer.is_null() && capacity > 0 {
        let length = text.len().min(capacity - 1);
        // SAFETY: the buffer has `capacity` bytes by contract, and `length` + 1 is at most that.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), length);
            *buffer.add(length) = 0;
        }
    }
    text.len() + 1
}

#[unsafe(no_mangle)]
pub extern "C" fn vramshim_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramshim_stats(device: i32, out: *mut Stats) -> i32 {
    let stats = engine::running().map_or(Some(Stats::default()), |engine| engine.stats(device, None));
    // SAFETY: the same contract.
    unsafe { give(out, stats) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramshim_class_stats(device: i32, class: *const c_char, out: *mut Stats) -> i32 {
    // SAFETY: the same contract.
    let name = unsafe { text_of(class) };
    let Some(&class) = Class::ALL.iter().find(|class| Some(class.name()) == name) else {
        return -1;
    };
    let stats = engine::running().map_or(Some(Stats::default()), |engine| engine.stats(device, Some(class)));
    // SAFETY: the same contract.
    unsafe { give(out, stats) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramshim_limit(device: i32, out: *mut Limit) -> i32 {
    let limit = engine::running().map_or(Some(Limit::default()), |engine| engine.limit(device));
    // SAFETY: the same contract.
    unsafe { give(out, limit) }
}

/// # Safety
/// `out` is null or writable.
unsafe fn give<T>(out: *mut T, stats: Option<T>) -> i32 {
    match stats {
        Some(stats) if !out.is_null() => {
            // SAFETY: the pointer is not null, and writable by contract.
            unsafe { *out = stats };
            0
        }
        _ => -1,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramshim_account(buffer: *mut c_char, capacity: usize) -> usize {
    let text = engine::running().map_or_else(|| "{\"totals\":[]}".to_owned(), |engine| engine.totals_as_json());
    // SAFETY: the same contract.
    unsafe { copy_out(text.as_bytes(), buffer, capacity) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramshim_journal_path(buffer: *mut c_char, capacity: usize) -> usize {
    let path = engine::running().and_then(|engine| engine.journal_path());
    // SAFETY: the same contract.
    unsafe { copy_out(path.map_or(&[], |path| path.as_os_str().as_bytes()), buffer, capacity) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramshim_stat(name: *const c_char, value: *mut u64) -> i32 {
    if value.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: the same contract.
    let Some(name) = (unsafe { text_of(name) }) else {
        return libc::EINVAL;
    };
    errno_of(names::stat(engine::running(), name).map(|figure| {
        // SAFETY: the pointer is not null, and writable by contract.
        unsafe { *value = figure };
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramshim_stat_names(buffer: *mut c_char, capacity: usize) -> usize {
    let names = names::stat_names(engine::running());
    // SAFETY: the same contract.
    unsafe { copy_out(names.join("\n").as_bytes(), buffer, capacity) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramshim_dump(path: *const c_char) -> i32 {
    // SAFETY: the same contract.
    match unsafe { string_of(path) } {
        Some(path) => errno_of(commands::dump(
            engine::running(),
            Path::new(OsStr::from_bytes(path.to_bytes())),
        )),
        None => libc::EINVAL,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramshim_set(name: *const c_char, value: *const c_char) -> i32 {
    // SAFETY: the same contract.
    let (name, value) = unsafe { (text_of(name), text_of(value)) };
    match (name, value) {
        (Some(name), Some(value)) => errno_of(commands::set(engine::running(), name, value)),
        _ => libc::EINVAL,
    }
}

/// # Safety
/// `text` is null or a C string that outlives the result.
unsafe fn string_of<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: a pointer that is not null is a C string by contract.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// The text of a C string; `None` if the pointer is null, or the text is no UTF-8.
///
/// # Safety
/// As `string_of`.
unsafe fn text_of<'a>(text: *const c_char) -> Option<&'a str> {
    // SAFETY: the same contract.
    unsafe { string_of(text) }?.to_str().ok()
}

fn errno_of(result: Result<(), i32>) -> i32 {
    result.err().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramshim_mark(text: *const c_char) {
    // SAFETY: the same contract.
    if let Some(text) = unsafe { string_of(text) } {
        engine::marks::instant(Api::vramshim_mark, text.to_bytes());
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramshim_host_refused(call: *const c_char, size: u64, bound: u64) {
    // SAFETY: the same contract.
    if let Some(call) = unsafe { string_of(call) } {
        engine::refused_by_host_guard(call, size, bound);
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn vramshim_trim(device: i32) -> u64 {
    match (engine::running(), i16::try_from(device)) {
        (Some(engine), Ok(device)) => engine.release_idle(device),
        _ => 0,
    }
}
