//! Layers for GPU sharing, as far as they are known by the names of their files.

use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    pub project: &'static str,
    pub does: &'static str,
    /// The variable that sets or lifts its limit; empty if there is none.
    pub variable: &'static str,
}

const LIMITS: &str = "limits memory and cores";
const MANAGES: &str = "turns device memory into managed memory, and takes turns";

/// How the name of a layer's file begins, and the layer.
const KNOWN: [(&str, [&str; 3]); 6] = [
    ("libvgpu.so", ["HAMi-core", LIMITS, "CUDA_DEVICE_MEMORY_LIMIT"]),
    ("libvgpu-control.so", ["vgpu-manager", LIMITS, "CUDA_MEM_LIMIT"]),
    ("libcuda-control.so", ["vcuda (gpu-manager)", LIMITS, ""]),
    ("libnvshare.so", ["nvshare", MANAGES, "NVSHARE_ENABLE_SINGLE_OVERSUB"]),
    (
        "libgemhook.so",
        ["Gemini (KubeShare)", "limits memory, and takes turns", ""],
    ),
    ("libcuda_limiter.so", ["Tensor Fusion (vgpu.rs)", LIMITS, ""]),
];

/// The layer whose file this is, if it is known.
pub fn known(path: impl AsRef<Path>) -> Option<Layer> {
    let name = path.as_ref().file_name()?.to_string_lossy();
    // HAMi mounts its library in this folder, with the file name of the driver.
    let in_folder = path.as_ref().starts_with("/usr/local/vgpu").then_some(&KNOWN[0]);
    let found = KNOWN.iter().find(|(file, _)| name.starts_with(file)).or(in_folder);
    found.map(|&(_, [project, does, variable])| Layer {
        project,
        does,
        variable,
    })
}
