//! Structures that the job passes to driver functions, as `cuda.h` lays them out, and that the library reads or writes.

use std::ffi::c_void;

use cudarc::driver::sys::{CUarray, CUcontext, CUdeviceptr};

/// `CUDA_ARRAY_DESCRIPTOR`; its extents are `u32` in the 32-bit functions, and `usize` in the others.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ArrayDescriptor<N> {
    pub width: N,
    pub height: N,
    pub format: u32,
    pub channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Array3dDescriptor<N> {
    pub width: N,
    pub height: N,
    pub depth: N,
    pub format: u32,
    pub channels: u32,
    pub flags: u32,
}

const _: () = assert!(size_of::<ArrayDescriptor<usize>>() == size_of::<cudarc::driver::sys::CUDA_ARRAY_DESCRIPTOR>());
const _: () =
    assert!(size_of::<Array3dDescriptor<usize>>() == size_of::<cudarc::driver::sys::CUDA_ARRAY3D_DESCRIPTOR>());

/// One end of `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Side2d {
    x: usize,
    y: usize,
    kind: u32,
    host: *const c_void,
    device: CUdeviceptr,
    array: CUarray,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy2d {
    from: Side2d,
    to: Side2d,
    width: usize,
    height: usize,
}

/// One end of `CUDA_MEMCPY3D`, and of `CUDA_MEMCPY3D_PEER`, which has a context where the other has a reserved pointer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Side {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    pub kind: u32,
    host: *const c_void,
    device: CUdeviceptr,
    pub array: CUarray,
    context: CUcontext,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy3d {
    pub from: Side,
    pub to: Side,
    width: usize,
    height: usize,
    depth: usize,
}

/// `CUDA_MEMCPY_NODE_PARAMS`
#[repr(C)]
pub struct MemcpyNode {
    flags: i32,
    reserved: i32,
    pub context: CUcontext,
    pub copy: Copy3d,
}

const _: () = assert!(size_of::<Copy2d>() == size_of::<cudarc::driver::sys::CUDA_MEMCPY2D>());
const _: () = assert!(size_of::<Copy3d>() == size_of::<cudarc::driver::sys::CUDA_MEMCPY3D>());
const _: () = assert!(size_of::<Copy3d>() == size_of::<cudarc::driver::sys::CUDA_MEMCPY3D_PEER>());

/// `CUDA_MEMCPY_BATCH_NODE_PARAMS`, up to the context (cuda.h 13.5:5128)
#[repr(C)]
pub struct BatchNode {
    pub count: usize,
    pub to: *const CUdeviceptr,
    pub from: *const CUdeviceptr,
    sizes: *mut usize,
    attributes: *mut c_void,
    indices: *mut usize,
    attribute_count: usize,
    pub context: CUcontext,
}

/// `CUmemcpy3DOperand`: an address or an array, and how the rows lie there
#[repr(C)]
pub struct Operand {
    pub kind: u32,
    pub place: u64,
    layout: [u64; 3],
}

/// `CUDA_MEMCPY3D_BATCH_OP`
#[repr(C)]
pub struct Operation3d {
    pub from: Operand,
    pub to: Operand,
    extent: [usize; 3],
    order: u32,
    flags: u32,
}

const _: () = assert!(size_of::<Operand>() == size_of::<cudarc::driver::sys::CUmemcpy3DOperand>());
const _: () = assert!(size_of::<Operation3d>() == size_of::<cudarc::driver::sys::CUDA_MEMCPY3D_BATCH_OP>());

impl Operand {
    /// `CU_MEMCPY_OPERAND_TYPE_ARRAY`
    pub const ARRAY: u32 = 2;
}

impl Side {
    /// `CU_MEMORYTYPE_DEVICE`
    pub const DEVICE: u32 = 2;
    /// `CU_MEMORYTYPE_ARRAY`
    pub const ARRAY: u32 = 3;
    /// `CU_MEMORYTYPE_UNIFIED`
    pub const UNIFIED: u32 = 4;

    /// The first byte that is copied; 0 if it has no address of a device.
    pub fn address(&self) -> u64 {
        let rows = self.y.wrapping_add(self.z.wrapping_mul(self.height));
        let offset = self.x.wrapping_add(rows.wrapping_mul(self.pitch));
        match self.kind {
            Side::DEVICE | Side::UNIFIED => self.device.wrapping_add(offset as u64),
            _ => 0,
        }
    }

    /// Makes this the end of a copy between contexts. Its memory is in `context`, and is memory of a device.
    pub fn between_contexts(&mut self, context: CUcontext) {
        self.context = context;
        if self.kind == Side::UNIFIED {
            self.kind = Side::DEVICE;
        }
    }
}

impl From<Side2d> for Side {
    fn from(side: Side2d) -> Side {
        Side {
            x: side.x,
            y: side.y,
            z: 0,
            level: 0,
            kind: side.kind,
            host: side.host,
            device: side.device,
            array: side.array,
            context: std::ptr::null_mut(),
            pitch: side.pitch,
            height: 0,
        }
    }
}

impl From<Copy2d> for Copy3d {
    fn from(copy: Copy2d) -> Copy3d {
        Copy3d {
            from: copy.from.into(),
            to: copy.to.into(),
            width: copy.width,
            height: copy.height,
            depth: 1,
        }
    }
}
