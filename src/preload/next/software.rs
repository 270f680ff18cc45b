//! The software that the job uses, for the journal's header: frameworks, CUDA runtime and driver, with their versions, and
//! the layers before the driver, by their files.
//!
//! A framework is known by a library of its own that is loaded. Its version is read from a Python file of its package,
//! which lies at a known place beside the library; no code of the framework is run.

use std::ffi::{CStr, OsStr, c_void};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{c_name, cuDriverGetVersion, elf, layer_in_front, refusing_layer, symbols};

/// How frameworks are known: by the begin of the name of a library's file. The version is what a variable has in a Python file,
/// whose path begins at the library's folder; both are empty if none is known.
// Seen in the wheels of torch 2.12, paddlepaddle-gpu 2.6.2, jax-cuda12-plugin 0.10.2 and onnxruntime-gpu 1.23.2.
const FRAMEWORKS: &[(&str, &str, &str, &str)] = &[
    ("PyTorch", "libtorch_cuda.so", "../version.py", "__version__"),
    ("PaddlePaddle", "libpaddle.so", "../version/__init__.py", "full_version"),
    ("JAX", "xla_cuda_plugin.so", "version.py", "_version"),
    (
        "ONNX Runtime",
        "libonnxruntime_providers_cuda.so",
        "build_and_package_info.py",
        "__version__",
    ),
    ("TensorFlow", "libtensorflow_cc.so", "", ""),
];

/// A file with a version is shorter than this.
const LONGEST_FILE: u64 = 64 << 10;

/// `name=value` of the software, NUL-separated.
pub fn in_use() -> Vec<u8> {
    let mut text = Vec::new();
    let mut add = |name: &str, value: &str| {
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        text.extend(value.bytes().filter(|byte| !byte.is_ascii_control()));
        text.push(0);
    };
    // In a forked child the lock of the loader's list may be held for ever.
    if !symbols::in_forked_child() {
        for (name, library, file, variable) in FRAMEWORKS {
            if let Some(library) = path_of(library) {
                let version = version(&library, file, variable).unwrap_or_default();
                add("framework", format!("{name} {version}").trim_end());
            }
        }
        for version in runtime_versions() {
            add("runtime", &dotted(version));
        }
    }
    if let Some(layer) = refusing_layer() {
        add("layer", &layer);
    }
    if let Some(front) = layer_in_front() {
        add("layer_in_front", &front.path);
    }
    let mut driver = 0;
    // SAFETY: the pointer is to a variable of this frame.
    if unsafe { cuDriverGetVersion(&mut driver) } == 0 && driver > 0 {
        add("driver", &dotted(driver));
    }
    if let Some(kernel) = begin_of(Path::new("/sys/module/nvidia/version")) {
        add("kernel_driver", kernel.trim());
    }
    text
}

/// A version as CUDA writes it into a number: 13.2 is 13020.
fn dotted(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// The path of the first loaded object whose file's name begins like this.
fn path_of(begin: &str) -> Option<PathBuf> {
    // The path is copied, because nothing may be allocated while the loader's list is locked.
    let mut path = vec![0u8; libc::PATH_MAX as usize];
    let length = elf::find(|object| {
        let bytes = object.path().to_bytes();
        let fits = object.file_name().starts_with(begin.as_bytes()) && bytes.len() <= path.len();
        fits.then(|| path[..bytes.len()].copy_from_slice(bytes))?;
        Some(bytes.len())
    })?;
    Some(PathBuf::from(OsStr::from_bytes(&path[..length])))
}

/// The most runtimes that are looked at; a process with two is rare.
const RUNTIMES: usize = 8;

/// What the runtimes in use say of their versions. A runtime that is linked into another library is not found.
///
/// Several can be loaded: the simulated GPU preloads one of each major version, and a package can bring one of its own. A
/// runtime is in use if a loaded object names it as a library that it needs. A runtime that is only looked up at run time
/// is needed by none. If that is so of all runtimes, any of them may be in use, and all are told.
fn runtime_versions() -> Vec<i32> {
    // Nothing may be allocated while the loader's list is locked.
    // With each, whether another loaded object was linked with it.
    let mut found: [Option<(elf::Object, bool)>; RUNTIMES] = [None; RUNTIMES];
    elf::find(|object| -> Option<()> {
        if !object.is_ours() && object.is_called(b"libcudart.so") {
            *found.iter_mut().find(|place| place.is_none())? = Some((*object, false));
        }
        None
    });
    elf::find(|object| -> Option<()> {
        for name in object.needed() {
            for (runtime, is_needed) in found.iter_mut().flatten() {
                *is_needed |= runtime.answers_to(name.to_bytes());
            }
        }
        None
    });
    let found = || found.iter().flatten();
    let some_needed = found().any(|&(_, is_needed)| is_needed);
    let in_use = found().filter(|&&(_, is_needed)| is_needed || !some_needed);
    let mut versions: Vec<i32> = in_use.filter_map(|(runtime, _)| version_of(runtime)).collect();
    versions.sort_unstable();
    versions.dedup();
    versions
}

fn version_of(runtime: &elf::Object) -> Option<i32> {
    const NAME: &CStr = c_name!(cudaRuntimeGetVersion);
    let function = runtime.function(NAME)?;
    let mut version = 0;
    // SAFETY: the runtime's function of this name has the C signature that the public header gives it, and the pointer
    // is to a variable of this frame.
    let result = unsafe {
        let function = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut i32) -> i32>(function);
        function(&mut version)
    };
    (result == 0 && version > 0).then_some(version)
}

fn version(library: &Path, file: &str, variable: &str) -> Option<String> {
    if file.is_empty() {
        return None;
    }
    let text = begin_of(&library.parent()?.join(file))?;
    text.lines().find_map(|line| version_in(line, variable))
}

/// The text that a line of Python assigns to `variable`.
fn version_in(line: &str, variable: &str) -> Option<String> {
    let value = line.strip_prefix(variable)?.trim_start().strip_prefix('=')?.trim();
    let value = value.strip_prefix(['\'', '"'])?;
    let end = value.find(['\'', '"'])?;
    Some(value[..end.min(64)].to_owned())
}

fn begin_of(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(LONGEST_FILE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_an_assignment() {
        let found = |line| version_in(line, "__version__");
        assert_eq!(found("__version__ = '2.12.0+cu130'").as_deref(), Some("2.12.0+cu130"));
        assert_eq!(found("__version__=\"0.5.3\"  # built").as_deref(), Some("0.5.3"));
        assert_eq!(found("__version__ = other"), None);
        assert_eq!(found("__all__ = ['__version__']"), None);
        assert_eq!(found("__version__ = 'torn"), None);
        assert_eq!((dotted(13020), dotted(12080)), ("13.2".to_owned(), "12.8".to_owned()));
    }
}
