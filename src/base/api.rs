//! Names that the library and the program share: the functions whose calls a journal records (`Api`), and the kinds of
//! memory (`Class`). Journals store the names as numbers, so a number is never given to another name.

macro_rules! vocabulary {
    ($(#[$doc:meta])* $name:ident, $code:ident: $repr:ident { $($number:literal $variant:ident $text:literal,)+ }) => {
        $crate::named! {
            $(#[$doc])*
            #[allow(non_camel_case_types)] // CUDA's own spelling, so that a name can be searched for
            #[repr($repr)]
            pub enum $name { $($variant = $number => $text,)+ }
        }

        impl $name {
            #[inline(always)]
            pub const fn number(self) -> $repr {
                self as $repr
            }

            /// The entry with this number; `None` if this version does not know the number.
            pub const fn from_number(number: $repr) -> Option<Self> {
                match number { $($number => Some($name::$variant),)+ _ => None }
            }
        }

        #[doc = concat!("The number of a `", stringify!($name), "` in a journal. A newer library may have written a ")]
        #[doc = "number that this version does not know."]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $code($repr);

        impl $code {
            #[inline(always)]
            pub const fn number(self) -> $repr {
                self.0
            }

            /// The entry with this number, if this version knows the number.
            pub const fn known(self) -> Option<$name> {
                $name::from_number(self.0)
            }
        }

        impl From<$name> for $code {
            #[inline(always)]
            fn from(known: $name) -> Self {
                $code(known.number())
            }
        }

        impl From<$repr> for $code {
            fn from(number: $repr) -> Self {
                $code(number)
            }
        }
    };
}

vocabulary! {
    /// The kind of memory of an allocation.
    Class, ClassCode: u8 {
        1 Linear "linear",
        2 Pitched "pitched",
        3 Managed "managed",
        4 Host "host",
        5 HostRegistered "host_registered",
        6 Async "async",
        7 Vmm "vmm",
        8 Array "array",
        9 Mipmap "mipmap",
        10 Imported "imported",
        11 Graph "graph",
        12 AddressRange "address_range",
    }
}

impl Class {
    /// Whether bytes of this class count towards a device's requested, allocated and reserved totals. Host memory has a
    /// total of its own, imported memory belongs to another process, and an address range holds no memory.
    pub const fn is_device_memory(self) -> bool {
        !matches!(
            self,
            Class::Host | Class::HostRegistered | Class::Imported | Class::AddressRange
        )
    }
}

vocabulary! {
    /// The function that the job called, by its name in source code: `cuMemAlloc` stands for `cuMemAlloc_v2` and the
    /// per-thread-stream variants. `_v1` marks the 32-bit functions. If a function calls another, the outer one counts.
    Api, ApiCode: u16 {
        1 cuMemAlloc "cuMemAlloc",
        2 cuMemAlloc_v1 "cuMemAlloc_v1",
        3 cuMemAllocPitch "cuMemAllocPitch",
        4 cuMemAllocManaged "cuMemAllocManaged",
        5 cuMemFree "cuMemFree",
        6 cuMemFree_v1 "cuMemFree_v1",
        7 cuMemAllocHost "cuMemAllocHost",
        8 cuMemHostAlloc "cuMemHostAlloc",
        9 cuMemFreeHost "cuMemFreeHost",
        10 cuMemHostRegister "cuMemHostRegister",
        11 cuMemHostUnregister "cuMemHostUnregister",
        12 cuMemAllocAsync "cuMemAllocAsync",
        13 cuMemAllocFromPoolAsync "cuMemAllocFromPoolAsync",
        14 cuMemFreeAsync "cuMemFreeAsync",
        15 cuMemPoolCreate "cuMemPoolCreate",
        16 cuMemPoolDestroy "cuMemPoolDestroy",
        17 cuMemPoolTrimTo "cuMemPoolTrimTo",
        18 cuMemPoolImportPointer "cuMemPoolImportPointer",
        19 cuMemAddressReserve "cuMemAddressReserve",
        20 cuMemAddressFree "cuMemAddressFree",
        21 cuMemCreate "cuMemCreate",
        22 cuMemRelease "cuMemRelease",
        23 cuMemMap "cuMemMap",
        24 cuMemUnmap "cuMemUnmap",
        25 cuMemRetainAllocationHandle "cuMemRetainAllocationHandle",
        26 cuMemImportFromShareableHandle "cuMemImportFromShareableHandle",
        27 cuArrayCreate "cuArrayCreate",
        28 cuArray3DCreate "cuArray3DCreate",
        29 cuArrayDestroy "cuArrayDestroy",
        30 cuMipmappedArrayCreate "cuMipmappedArrayCreate",
        31 cuMipmappedArrayDestroy "cuMipmappedArrayDestroy",
        32 cuIpcOpenMemHandle "cuIpcOpenMemHandle",
        33 cuIpcCloseMemHandle "cuIpcCloseMemHandle",
        34 cuImportExternalMemory "cuImportExternalMemory",
        35 cuDestroyExternalMemory "cuDestroyExternalMemory",
        36 cuGraphLaunch "cuGraphLaunch",
        37 cuDeviceGraphMemTrim "cuDeviceGraphMemTrim",
        38 cuCtxDestroy "cuCtxDestroy",
        39 cuDevicePrimaryCtxRelease "cuDevicePrimaryCtxRelease",
        40 cuDevicePrimaryCtxReset "cuDevicePrimaryCtxReset",
        41 cuIpcGetMemHandle "cuIpcGetMemHandle",
        42 cuMemPoolSetAttribute "cuMemPoolSetAttribute",
        43 cuGraphExecDestroy "cuGraphExecDestroy",
        44 cuMemGetInfo "cuMemGetInfo",
        45 cuGraphAddMemAllocNode "cuGraphAddMemAllocNode",
        46 cuCtxCreate "cuCtxCreate",
        47 cuMulticastCreate "cuMulticastCreate",

        200 cudaMalloc "cudaMalloc",
        201 cudaFree "cudaFree",
        202 cudaMallocPitch "cudaMallocPitch",
        203 cudaMalloc3D "cudaMalloc3D",
        204 cudaMallocManaged "cudaMallocManaged",
        205 cudaMallocHost "cudaMallocHost",
        206 cudaHostAlloc "cudaHostAlloc",
        207 cudaFreeHost "cudaFreeHost",
        208 cudaHostRegister "cudaHostRegister",
        209 cudaHostUnregister "cudaHostUnregister",
        210 cudaMallocAsync "cudaMallocAsync",
        211 cudaMallocFromPoolAsync "cudaMallocFromPoolAsync",
        212 cudaFreeAsync "cudaFreeAsync",
        213 cudaMemPoolCreate "cudaMemPoolCreate",
        214 cudaMemPoolDestroy "cudaMemPoolDestroy",
        215 cudaMemPoolTrimTo "cudaMemPoolTrimTo",
        216 cudaMemPoolSetAttribute "cudaMemPoolSetAttribute",
        217 cudaMemPoolImportPointer "cudaMemPoolImportPointer",
        218 cudaMallocArray "cudaMallocArray",
        219 cudaMalloc3DArray "cudaMalloc3DArray",
        220 cudaFreeArray "cudaFreeArray",
        221 cudaMallocMipmappedArray "cudaMallocMipmappedArray",
        222 cudaFreeMipmappedArray "cudaFreeMipmappedArray",
        223 cudaIpcOpenMemHandle "cudaIpcOpenMemHandle",
        224 cudaIpcCloseMemHandle "cudaIpcCloseMemHandle",
        225 cudaIpcGetMemHandle "cudaIpcGetMemHandle",
        226 cudaImportExternalMemory "cudaImportExternalMemory",
        227 cudaDestroyExternalMemory "cudaDestroyExternalMemory",
        228 cudaGraphLaunch "cudaGraphLaunch",
        229 cudaDeviceGraphMemTrim "cudaDeviceGraphMemTrim",
        230 cudaDeviceReset "cudaDeviceReset",
        231 cudaGraphExecDestroy "cudaGraphExecDestroy",
        232 cudaMemGetInfo "cudaMemGetInfo",
        233 cudaGraphAddMemAllocNode "cudaGraphAddMemAllocNode",

        300 vramshim_torch_alloc "vramshim_torch_alloc",
        301 vramshim_torch_free "vramshim_torch_free",
        310 vramshim_mark "vramshim_mark",
        311 nvtxMark "nvtxMark",
        312 nvtxRangePush "nvtxRangePush",
        313 nvtxRangePop "nvtxRangePop",
        314 nvtxRangeStart "nvtxRangeStart",
        315 nvtxRangeEnd "nvtxRangeEnd",

        // Calls of other allocators, in journals that were made from their files, and in exports.
        320 torch_alloc "torch.alloc",
        321 torch_free "torch.free",
        322 rmm_allocate "rmm.allocate",
        323 rmm_deallocate "rmm.deallocate",
        324 torch_segment_alloc "torch.segment_alloc",
        325 torch_segment_free "torch.segment_free",
        // What was there before PyTorch recorded.
        326 torch_before "torch.alloc (before the trace)",

        // Calls for host memory that the host guard refused.
        330 malloc "malloc",
        331 calloc "calloc",
        332 realloc "realloc",
        333 reallocarray "reallocarray",
        334 memalign "memalign",
        335 aligned_alloc "aligned_alloc",
        336 posix_memalign "posix_memalign",
        337 mmap "mmap",

        // Steps of the library itself, not calls of the job.
        400 Policy "(policy)",
        401 IdleRelease "(idle release)",
    }
}

/// Whether the host guard guards the call of this number, which is one for host memory.
pub const fn is_of_host_guard(api: u16) -> bool {
    Api::malloc.number() <= api && api <= Api::mmap.number()
}

/// 0 stands for no entry.
const _: () = assert!(Class::from_number(0).is_none() && Api::from_number(0).is_none());
