//! Layers for GPU sharing, as far as they are known by the names of their files.

use std::path::Path;

/// A layer between job and driver.
#[derive(Debug, PartialEq, Eq)]
pub struct Layer {
    /// How the name of its file begins.
    file: &'static str,
    pub project: &'static str,
    pub does: &'static str,
    /// The variable that sets or lifts its limit; empty if it has none.
    pub variable: &'static str,
}

const fn layer(file: &'static str, project: &'static str, does: &'static str, variable: &'static str) -> Layer {
    Layer {
        file,
        project,
        does,
        variable,
    }
}

const LIMITS: &str = "limits memory and cores";
const MANAGES: &str = "turns device memory into managed memory, and takes turns";

const KNOWN: &[Layer] = &[
    layer("libvgpu.so", "HAMi-core", LIMITS, "CUDA_DEVICE_MEMORY_LIMIT"),
    layer("libvgpu-control.so", "vgpu-manager", LIMITS, "CUDA_MEM_LIMIT"),
    layer("libcuda-control.so", "vcuda (gpu-manager)", LIMITS, ""),
    layer("libnvshare.so", "nvshare", MANAGES, "NVSHARE_ENABLE_SINGLE_OVERSUB"),
    layer(
        "libgemhook.so",
        "Gemini (KubeShare)",
        "limits memory, and takes turns",
        "",
    ),
    layer("libcuda_limiter.so", "Tensor Fusion (vgpu.rs)", LIMITS, ""),
];

/// The layer whose file this is, if it is known.
pub fn known(path: &Path) -> Option<&'static Layer> {
    let name = path.file_name()?.to_string_lossy();
    // HAMi mounts its library in this folder, with the file name of the driver.
    let in_folder = path.starts_with("/usr/local/vgpu").then_some(&KNOWN[0]);
    KNOWN.iter().find(|layer| name.starts_with(layer.file)).or(in_folder)
}
