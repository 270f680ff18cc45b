//! What the next layer is and can, as far as a few cheap questions tell.

use once_cell::race::OnceBool;

use base::verdict::Subject;

use super::contexts::device_name;
use super::driver;
use super::elf;
use super::signatures::{called, cuDriverGetVersion, hooked};
use super::slot::Function;

/// What stored answers about the next layer are found by.
pub fn subject_of(device: i32) -> Option<Subject> {
    let mut version = 0;
    // SAFETY: the pointer is to a variable of this frame.
    unsafe { cuDriverGetVersion(&mut version) };
    let answers = elf::object_of(hooked::cuMemAlloc_v2().get()?)?;
    Some(Subject::new(
        &device_name(device),
        version,
        &answers.path().to_string_lossy(),
    ))
}

/// A function that every policy calls, and that the next layer does not have.
pub fn missing_for_policies() -> Option<&'static str> {
    first_missing([
        called::cuEventCreate(),
        called::cuEventRecord(),
        called::cuEventQuery(),
        called::cuThreadExchangeStreamCaptureMode(),
        called::cuStreamIsCapturing(),
    ])
}

/// A function that mapping needs, and that the next layer does not have.
pub fn missing_for_mapping() -> Option<&'static str> {
    first_missing([
        called::cuMemGetAllocationGranularity(),
        hooked::cuMemAddressReserve(),
        hooked::cuMemAddressFree(),
        hooked::cuMemCreate(),
        hooked::cuMemMap(),
        hooked::cuMemSetAccess(),
        hooked::cuMemUnmap(),
        hooked::cuMemRelease(),
    ])
}

/// The library that answers `cuMemAlloc`, if another one answers `cuMemCreate`: a layer that does not see mapped memory.
pub fn layer_without_mapping() -> Option<String> {
    let answers = elf::object_of(hooked::cuMemAlloc_v2().get()?)?;
    let creates = elf::object_of(hooked::cuMemCreate().get()?)?;
    (answers.span() != creates.span()).then(|| answers.path().to_string_lossy().into_owned())
}

/// The layer that answers `cuMemAlloc`, if that is not the driver.
pub fn refusing_layer() -> Option<String> {
    let allocate = hooked::cuMemAlloc_v2();
    let answers = elf::object_of(allocate.get()?)?;
    driver::is_of_layer(allocate).then(|| answers.path().to_string_lossy().into_owned())
}

/// Whether a layer answers `cuMemGetInfo`.
pub fn shows_its_own_memory() -> bool {
    // No lock: a forked child must wait for no thread of its parent that is finding out.
    static FOUND: OnceBool = OnceBool::new();
    FOUND.get_or_init(|| driver::is_of_layer(hooked::cuMemGetInfo_v2()))
}

fn first_missing<const COUNT: usize>(functions: [Function; COUNT]) -> Option<&'static str> {
    let missing = functions.into_iter().find(|function| function.get().is_none())?;
    missing.name.to_str().ok()
}
