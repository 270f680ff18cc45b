//! Questions of the job whose answers must know about pooled blocks.

use std::ffi::c_void;

use crate::engine::{Call, Engine, Place};
use crate::next::{self, CUdeviceptr, INVALID_VALUE, SUCCESS};
use base::cuda::HOST_DEVICE;
use policy::device_memory::Available;

/// `CU_POINTER_ATTRIBUTE_CONTEXT`, `..._RANGE_START_ADDR`, `..._RANGE_SIZE`, `..._IS_LEGACY_CUDA_IPC_CAPABLE`,
/// `..._ALLOWED_HANDLE_TYPES`
const CONTEXT: u32 = 1;
const RANGE_START: u32 = 11;
const RANGE_SIZE: u32 = 12;
const LEGACY_IPC_CAPABLE: u32 = 10;
const ALLOWED_HANDLE_TYPES: u32 = 14;

/// An address at which nothing ever is.
const NOWHERE: CUdeviceptr = 1;

impl Engine {
    /// The block that `address` lies in, of a policy or of another process: first address and bytes.
    fn block_around(&self, address: u64) -> Option<(u64, u64)> {
        self.pooled_block(address)
            .map(|block| (block.address, block.requested))
            .or_else(|| self.sharing.imported(address))
    }

    pub(crate) fn device_of(&self, context: u64) -> i16 {
        self.pools_device(context).unwrap_or_else(|| {
            let held = self.ledger.select(|_, allocation| allocation.context == context);
            held.iter()
                .map(|(_, allocation)| allocation.device)
                .find(|&device| device != HOST_DEVICE)
                .unwrap_or(HOST_DEVICE)
        })
    }
}

impl Call {
    /// Free memory as the layer below tells it and the limit allows it, plus what lies free in our segments: a request of
    /// that size would be served. Both pointers may be null, as CUDA allows.
    ///
    /// # Safety
    /// Each pointer is null or writable.
    pub unsafe fn memory_info(&self, free: *mut usize, total: *mut usize) -> i32 {
        self.refresh_pools();
        // SAFETY: the job's own arguments.
        let result = unsafe { next::cuMemGetInfo_v2(free, total) };
        // SAFETY: the same contract.
        unsafe { self.correct_information(result, free, total) }
    }

    /// As `memory_info`, of the 32-bit function.
    ///
    /// # Safety
    /// Each pointer is null or writable.
    pub unsafe fn memory_info_v1(&self, free: *mut u32, total: *mut u32) -> i32 {
        self.refresh_pools();
        // SAFETY: the job's own arguments.
        let result = unsafe { next::cuMemGetInfo(free, total) };
        // SAFETY: the same contract.
        unsafe { self.correct_information(result, free, total) }
    }

    /// # Safety
    /// Each pointer is null or writable, and was written where `result` is success.
    unsafe fn correct_information<T>(&self, result: i32, free: *mut T, total: *mut T) -> i32
    where
        T: Copy + TryFrom<u64>,
        u64: TryFrom<T>,
    {
        let Some(place) = Place::current().filter(|_| result == SUCCESS) else {
            return result;
        };
        // What contexts take is known from then on.
        self.engine.saw_device(place.device);
        let value = |out: *mut T| {
            // SAFETY: written where not null.
            let told = unsafe { out.as_ref() };
            told.and_then(|&value| u64::try_from(value).ok()).unwrap_or(0)
        };
        let told = Available {
            free: value(free),
            total: value(total),
        };
        let allowed = self.engine.within_limit(place.device, told);
        let inside = self.engine.free_inside(place.device).0;
        let answers = [(free, allowed.free.saturating_add(inside)), (total, allowed.total)];
        for (out, answer) in answers {
            // What the type cannot hold stays as it was told.
            if let Ok(answer) = T::try_from(answer)
                && !out.is_null()
            {
                // SAFETY: not null, and writable by contract.
                unsafe { *out = answer };
            }
        }
        result
    }

    /// # Safety
    /// Each pointer is null or writable.
    pub unsafe fn address_range(&self, base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr) -> i32 {
        if let Some((first, bytes)) = self.engine.block_around(address) {
            if base.is_null() && size.is_null() {
                return INVALID_VALUE;
            }
            // SAFETY: written only where not null.
            unsafe {
                if !base.is_null() {
                    *base = first;
                }
                if !size.is_null() {
                    *size = bytes as usize;
                }
            }
            return SUCCESS;
        }
        if self.engine.is_pooled(address) {
            // Free space inside a segment: no allocation, as far as the job is concerned.
            return next::NOT_FOUND;
        }
        // SAFETY: the job's own arguments.
        unsafe { next::cuMemGetAddressRange_v2(base, size, address) }
    }

    /// The address that the layer below is asked about: for what lies free in our segments one that is none, because that
    /// is what it is to the job.
    pub fn asked_about(&self, address: CUdeviceptr) -> CUdeviceptr {
        match self.engine.is_pooled(address) && self.engine.pooled_block(address).is_none() {
            true => NOWHERE,
            false => address,
        }
    }

    /// Corrects the attributes that describe the segment where the job asks about a block.
    ///
    /// # Safety
    /// `out` points to what `attribute` defines.
    pub unsafe fn pointer_attribute(&self, out: *mut c_void, attribute: u32, address: CUdeviceptr) {
        let corrected = [
            CONTEXT,
            RANGE_START,
            RANGE_SIZE,
            LEGACY_IPC_CAPABLE,
            ALLOWED_HANDLE_TYPES,
        ];
        if out.is_null() || !corrected.contains(&attribute) {
            return;
        }
        let Some((first, bytes)) = self.engine.block_around(address) else {
            return;
        };
        // Mapped memory belongs to no context; the block belongs to the one that it was allocated in.
        let context = self.engine.pools.perhaps_of(address).map(|pool| pool.place.context);
        let capable = if attribute != LEGACY_IPC_CAPABLE {
            None
        } else if self.engine.sharing.imported(address).is_some() {
            // Only the process that it belongs to can share it.
            Some(false)
        } else {
            self.engine.shareable(address)
        };
        // SAFETY: the types these attributes have (`CUcontext`, `CUdeviceptr`, `size_t`, `bool` as the
        // driver writes it, `unsigned long long`).
        unsafe {
            match attribute {
                CONTEXT => {
                    if let Some(context) = context {
                        out.cast::<u64>().write(context);
                    }
                }
                // As of what `cuMemAlloc` hands out: granules have some, which are not the job's to export.
                ALLOWED_HANDLE_TYPES => {
                    if context.is_some() {
                        out.cast::<u64>().write(0);
                    }
                }
                RANGE_START => out.cast::<u64>().write(first),
                RANGE_SIZE => out.cast::<usize>().write(bytes as usize),
                _ => {
                    if let Some(capable) = capable {
                        out.cast::<bool>().write(capable);
                    }
                }
            }
        }
    }
}
