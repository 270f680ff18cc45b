//! Names for the numbers in a journal: CUDA's result codes, the API of a call, the class of an allocation, a device.
//!
//! The list has the result codes that allocation calls return. For these codes driver and runtime use the same numbers.

use base::api::{Api, Class, is_of_host_guard};
use base::uuid::uuid_text;
use journal::format::{Frame, MarkKind};
use serde_json::{Value, json};

use super::scene::is_out_of_memory;

/// Whether a device of this name is a MIG instance, that is, a part of a card. CUDA adds the instance's profile to the
/// card's name: the manual of condor_gpu_discovery shows `NVIDIA A100-SXM4-40GB MIG 1g.5gb`, with the 4864 MiB of the
/// part.
pub fn is_mig_instance(device: &str) -> bool {
    device.contains(" MIG ")
}

/// The name of a result code, or its number if this version of the program does not know the code.
pub fn result_name(result: i32) -> String {
    let name = match result {
        0 => "CUDA_SUCCESS",
        1 => "CUDA_ERROR_INVALID_VALUE",
        2 => "CUDA_ERROR_OUT_OF_MEMORY",
        3 => "CUDA_ERROR_NOT_INITIALIZED",
        4 => "CUDA_ERROR_DEINITIALIZED",
        46 => "CUDA_ERROR_DEVICE_UNAVAILABLE",
        100 => "CUDA_ERROR_NO_DEVICE",
        101 => "CUDA_ERROR_INVALID_DEVICE",
        200 => "CUDA_ERROR_INVALID_IMAGE",
        201 => "CUDA_ERROR_INVALID_CONTEXT",
        205 => "CUDA_ERROR_MAP_FAILED",
        206 => "CUDA_ERROR_UNMAP_FAILED",
        207 => "CUDA_ERROR_ARRAY_IS_MAPPED",
        208 => "CUDA_ERROR_ALREADY_MAPPED",
        211 => "CUDA_ERROR_NOT_MAPPED",
        214 => "CUDA_ERROR_ECC_UNCORRECTABLE",
        217 => "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        304 => "CUDA_ERROR_OPERATING_SYSTEM",
        400 => "CUDA_ERROR_INVALID_HANDLE",
        401 => "CUDA_ERROR_ILLEGAL_STATE",
        500 => "CUDA_ERROR_NOT_FOUND",
        600 => "CUDA_ERROR_NOT_READY",
        700 => "CUDA_ERROR_ILLEGAL_ADDRESS",
        701 => "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        702 => "CUDA_ERROR_LAUNCH_TIMEOUT",
        708 => "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
        709 => "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        710 => "CUDA_ERROR_ASSERT",
        712 => "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        713 => "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        719 => "CUDA_ERROR_LAUNCH_FAILED",
        800 => "CUDA_ERROR_NOT_PERMITTED",
        801 => "CUDA_ERROR_NOT_SUPPORTED",
        802 => "CUDA_ERROR_SYSTEM_NOT_READY",
        803 => "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        804 => "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        900 => "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        901 => "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        906 => "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        908 => "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        909 => "CUDA_ERROR_TIMEOUT",
        999 => "CUDA_ERROR_UNKNOWN",
        _ => return format!("CUDA result {result}"),
    };
    name.to_owned()
}

/// What the caller of an API got that failed with a result: the host guard gives an errno.
pub fn failed_with(api: u16, result: i32) -> String {
    if is_of_host_guard(api) && is_out_of_memory(result) {
        "ENOMEM".to_owned()
    } else {
        result_name(result)
    }
}

pub fn api_name(api: u16) -> String {
    Api::from_number(api).map_or_else(|| format!("api {api}"), |api| api.name().to_owned())
}

pub fn class_name(class: u8) -> String {
    Class::from_number(class).map_or_else(|| format!("class {class}"), |class| class.name().to_owned())
}

pub fn frame_as_json(frame: &Frame) -> Value {
    json!({ "file": &*frame.file, "line": frame.line, "function": &*frame.function })
}

/// The UUID of a device as CUDA's tools write it; `None` if the driver gave none.
pub fn device_uuid(bytes: &[u8; 16]) -> Option<String> {
    (*bytes != [0; 16]).then(|| uuid_text(*bytes))
}

pub fn mark_name(kind: MarkKind) -> &'static str {
    match kind {
        MarkKind::Instant => "mark",
        MarkKind::Begin => "begin",
        MarkKind::End => "end",
    }
}
