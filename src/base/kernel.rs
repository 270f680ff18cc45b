//! What the kernel has loaded that decides how memory of a GPU can be registered.

/// The module that registers memory for network cards where there is no dma-buf, under NVIDIA's name and under
/// Mellanox's older one.
const PEER_MEMORY: [&std::ffi::CStr; 2] = [c"/sys/module/nvidia_peermem", c"/sys/module/nv_peer_mem"];

/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`
pub const DMA_BUF_SUPPORTED: u32 = 124;

/// Why `auto_growth` maps no memory on a device that can: network cards could not register it (FlagCX#521,
/// mscclpp#657).
pub const PEER_MEMORY_WITHOUT_DMA_BUF: &str = concat!(
    "network cards register memory by nvidia_peermem here, because the driver has no dma-bufs (those need its open ",
    "kernel modules), and nvidia_peermem cannot register mapped memory"
);

/// Whether network cards register memory of a device by the module alone. `dma_buf` is the device's answer for
/// `DMA_BUF_SUPPORTED`.
pub fn needs_memory_of_cu_mem_alloc(dma_buf: bool) -> bool {
    // SAFETY: the names are C strings.
    !dma_buf
        && PEER_MEMORY
            .iter()
            .any(|module| unsafe { libc::access(module.as_ptr(), libc::F_OK) } == 0)
}
