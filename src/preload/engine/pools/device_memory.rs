//! The live device memory that a policy works on: one context of one device.

use std::cell::Cell;

use crate::next::{self, CUcontext, CUmemAccessDesc, CUmemAllocationProp, SUCCESS};
use base::cuda::DriverError;
use policy::device_memory::{Available, DeviceMemory};

/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`
const VIRTUAL_MEMORY: u32 = 102;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`
const RDMA_OF_VIRTUAL_MEMORY: u32 = 110;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`, `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const PINNED: u32 = 1;
const LOCATION_DEVICE: u32 = 1;
const READ_WRITE: u32 = 3;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
const FILE_DESCRIPTOR: u32 = 1;

/// Who is told of every segment, and knows whether a capture is open.
pub trait Segments {
    /// Before memory is obtained: whether it may be. Memory that was not obtained, or went back, is `uncharge`d.
    fn charge(&self, size: u64) -> bool;
    fn uncharge(&self, size: u64);
    /// What of the device's free and total memory may be used.
    fn within_limit(&self, told: Available) -> Available;
    fn obtained(&self, address: u64, size: u64);
    /// Runs `free` for the segment at `address` and accounts for it; returns the CUDA result.
    fn give_back(&self, address: u64, free: &dyn Fn() -> i32) -> i32;
    fn capturing(&self) -> bool;
    /// A range of policy memory became usable, or was unmapped (see `DeviceMemory`).
    fn mapped(&self, address: u64, size: u64, moved: bool);
    fn unmapped(&self, address: u64, size: u64, moved: bool);
    /// Devices that may see this one's memory (`cuCtxEnablePeerAccess`).
    fn peers(&self) -> Vec<i32>;
    /// Chunks are used instead of virtual memory, because of `why`.
    fn in_chunks(&self, why: &str);
}

pub struct LiveMemory<'a> {
    device: i32,
    context: u64,
    segments: &'a dyn Segments,
}

impl<'a> LiveMemory<'a> {
    pub fn new(device: i32, context: u64, segments: &'a dyn Segments) -> Self {
        LiveMemory {
            device,
            context,
            segments,
        }
    }

    /// Physical memory on our device, that can be handed to another process where `shareable`, and that network cards can
    /// reach where `reachable`: what `cuMemAlloc` hands out is both.
    fn properties(&self, shareable: bool, reachable: bool) -> CUmemAllocationProp {
        // SAFETY: a plain C structure in which zero is a value of every field; the enums are written as numbers.
        unsafe {
            let mut properties: CUmemAllocationProp = std::mem::zeroed();
            (&raw mut properties.type_).cast::<u32>().write(PINNED);
            if shareable {
                (&raw mut properties.requestedHandleTypes)
                    .cast::<u32>()
                    .write(FILE_DESCRIPTOR);
            }
            properties.allocFlags.gpuDirectRDMACapable = u8::from(reachable);
            let location = &raw mut properties.location;
            (&raw mut (*location).type_).cast::<u32>().write(LOCATION_DEVICE);
            (*location).id = self.device;
            properties
        }
    }

    /// Obtains `size` bytes where that is allowed.
    fn charged(&self, size: u64, obtain: impl FnOnce() -> Result<(), DriverError>) -> Result<(), DriverError> {
        if !self.segments.charge(size) {
            return Err(DriverError::OUT_OF_MEMORY);
        }
        let obtained = obtain();
        if obtained.is_err() {
            self.segments.uncharge(size);
        }
        obtained
    }

    /// Whether our device has what this attribute tells of.
    fn has(&self, attribute: u32) -> bool {
        let value = Cell::new(0i32);
        // SAFETY: the cell lives through the call.
        let asked = unsafe { next::cuDeviceGetAttribute(value.as_ptr(), attribute, self.device) };
        asked == SUCCESS && value.get() != 0
    }

    /// Runs `work` with our context current: a block may be freed by a thread that has another one, or none.
    fn in_context(&self, work: impl FnMut() -> i32) -> i32 {
        in_context(self.context, work)
    }
}

/// Runs `work` with this context current.
pub fn in_context(context: u64, mut work: impl FnMut() -> i32) -> i32 {
    let wanted = context as CUcontext;
    let mut current: CUcontext = std::ptr::null_mut();
    // SAFETY: contexts are the driver's own; what is pushed here is popped here.
    unsafe {
        if next::cuCtxGetCurrent(&mut current) == SUCCESS && current == wanted {
            return work();
        }
        let pushed = next::cuCtxPushCurrent_v2(wanted);
        if pushed != SUCCESS {
            return pushed;
        }
        let result = work();
        next::cuCtxPopCurrent_v2(&mut current);
        result
    }
}

/// The device of a context.
pub fn device_of(context: u64) -> Option<i32> {
    let mut device = 0;
    // SAFETY: this frame's own value.
    let asked = in_context(context, || unsafe { next::cuCtxGetDevice(&mut device) });
    (asked == SUCCESS).then_some(device)
}

/// Reading and writing from a device.
pub fn access_of(device: i32) -> CUmemAccessDesc {
    // SAFETY: a plain C structure in which zero is a value of every field; the enums are written as numbers.
    unsafe {
        let mut access: CUmemAccessDesc = std::mem::zeroed();
        (&raw mut access.flags).cast::<u32>().write(READ_WRITE);
        let location = &raw mut access.location;
        (&raw mut (*location).type_).cast::<u32>().write(LOCATION_DEVICE);
        (*location).id = device;
        access
    }
}

fn checked(result: i32) -> Result<(), DriverError> {
    if result == SUCCESS {
        Ok(())
    } else {
        Err(DriverError(result))
    }
}

impl DeviceMemory for LiveMemory<'_> {
    fn allocate(&self, size: u64) -> Result<u64, DriverError> {
        let bytes = usize::try_from(size).map_err(|_| DriverError::OUT_OF_MEMORY)?;
        let address = Cell::new(0u64);
        self.charged(size, || {
            // SAFETY: the cell lives through the call.
            checked(self.in_context(|| unsafe { next::cuMemAlloc_v2(address.as_ptr(), bytes) }))
        })?;
        self.segments.obtained(address.get(), size);
        Ok(address.get())
    }

    fn free(&self, address: u64) -> Result<(), DriverError> {
        // SAFETY: the policy gives back what `allocate` gave it.
        let free = || self.in_context(|| unsafe { next::cuMemFree_v2(address) });
        checked(self.segments.give_back(address, &free))
    }

    fn synchronise(&self) -> Result<(), DriverError> {
        // SAFETY: takes nothing but the current context.
        checked(self.in_context(|| unsafe { next::cuCtxSynchronize() }))
    }

    fn may_synchronise(&self) -> bool {
        !self.segments.capturing()
    }

    fn available(&self) -> Result<Available, DriverError> {
        let (free, total) = (Cell::new(0usize), Cell::new(0usize));
        // SAFETY: both cells live through the call.
        checked(self.in_context(|| unsafe { next::cuMemGetInfo_v2(free.as_ptr(), total.as_ptr()) }))?;
        Ok(self.segments.within_limit(Available {
            free: free.get() as u64,
            total: total.get() as u64,
        }))
    }

    fn granularity(&self) -> Option<u64> {
        let supported = Cell::new(0i32);
        let granularity = Cell::new(0usize);
        let properties = self.properties(false, false);
        // SAFETY: the cells and the properties live through the calls. 0 is the least granularity, not the advised one.
        let asked = checked(self.in_context(|| unsafe {
            match next::cuDeviceGetAttribute(supported.as_ptr(), VIRTUAL_MEMORY, self.device) {
                SUCCESS if supported.get() != 0 => {
                    next::cuMemGetAllocationGranularity(granularity.as_ptr(), &properties, 0)
                }
                SUCCESS => DriverError::NOT_SUPPORTED.0,
                problem => problem,
            }
        }));
        match asked {
            Ok(()) if granularity.get() > 0 => Some(granularity.get() as u64),
            Ok(()) | Err(DriverError::NOT_SUPPORTED) => {
                self.segments
                    .in_chunks("the driver has no virtual memory management for it");
                None
            }
            Err(problem) => {
                self.no_virtual_memory(problem);
                None
            }
        }
    }

    fn reserve(&self, size: u64, alignment: u64) -> Result<u64, DriverError> {
        let address = Cell::new(0u64);
        let (size, alignment) = (size as usize, alignment as usize);
        // SAFETY: the cell lives through the call.
        let reserve = || unsafe { next::cuMemAddressReserve(address.as_ptr(), size, alignment, 0, 0) };
        checked(self.in_context(reserve))?;
        Ok(address.get())
    }

    fn create(&self, size: u64) -> Result<u64, DriverError> {
        let handle = Cell::new(0u64);
        let create = |shareable: bool, reachable: bool| {
            let properties = self.properties(shareable, reachable);
            // SAFETY: cell and properties live through the call.
            checked(self.in_context(|| unsafe { next::cuMemCreate(handle.as_ptr(), size as usize, &properties, 0) }))
        };
        let reachable = self.has(RDMA_OF_VIRTUAL_MEMORY);
        // Where memory can be neither shared nor reached it is memory still.
        let wishes = [(true, reachable), (true, false), (false, false)];
        self.charged(size, || {
            let mut result = Err(DriverError::NOT_SUPPORTED);
            for (shareable, reachable) in wishes {
                result = create(shareable, reachable);
                if matches!(result, Ok(()) | Err(DriverError::OUT_OF_MEMORY)) {
                    break;
                }
            }
            result
        })?;
        Ok(handle.get())
    }

    fn release(&self, handle: u64, size: u64) -> Result<(), DriverError> {
        // SAFETY: a handle that `create` returned and nobody released.
        checked(self.in_context(|| unsafe { next::cuMemRelease(handle) }))?;
        self.segments.uncharge(size);
        Ok(())
    }

    fn map(&self, address: u64, size: u64, handle: u64) -> Result<(), DriverError> {
        // SAFETY: an address in a range that `reserve` returned, and a live handle.
        checked(self.in_context(|| unsafe { next::cuMemMap(address, size as usize, 0, handle, 0) }))
    }

    fn unmap(&self, address: u64, size: u64) -> Result<(), DriverError> {
        // SAFETY: whole mappings of ours, which no work uses any more: the policy has synchronised.
        checked(self.in_context(|| unsafe { next::cuMemUnmap(address, size as usize) }))
    }

    fn allow_access(&self, address: u64, size: u64) -> Result<(), DriverError> {
        let all: Vec<CUmemAccessDesc> = std::iter::once(self.device)
            .chain(self.segments.peers())
            .map(access_of)
            .collect();
        // SAFETY: the descriptions live through the call.
        let allow = || unsafe { next::cuMemSetAccess(address, size as usize, all.as_ptr(), all.len()) };
        checked(self.in_context(allow))
    }

    fn mapped(&self, address: u64, size: u64, moved: bool) {
        self.segments.mapped(address, size, moved);
    }

    fn unmapped(&self, address: u64, size: u64, moved: bool) {
        self.segments.unmapped(address, size, moved);
    }

    fn no_virtual_memory(&self, why: DriverError) {
        self.segments.in_chunks(&format!(
            "virtual memory management fails here with CUDA error {}",
            why.0
        ));
    }
}
