//! Questions of the job about memory, devices and addresses, whose answers must take pools and limits into account.

use std::ffi::c_void;

use crate::engine::state::location::Location;
use crate::engine::{Call, Engine};
use crate::next::{self, CUdeviceptr};
use base::cuda::{CudaResult, DriverError, check};
use policy::device_memory::Available;

/// `CU_POINTER_ATTRIBUTE_CONTEXT`
const CONTEXT: u32 = 1;
/// `CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE`
const LEGACY_IPC_CAPABLE: u32 = 10;
/// `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`
const RANGE_START: u32 = 11;
/// `CU_POINTER_ATTRIBUTE_RANGE_SIZE`
const RANGE_SIZE: u32 = 12;
/// `CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES`
const ALLOWED_HANDLE_TYPES: u32 = 14;

/// An address at which no memory ever lies.
const UNALLOCATED: CUdeviceptr = 1;

impl Engine {
    /// The block that holds `address`, of a pool or imported from another process: first address and bytes.
    fn block_around(&self, address: u64) -> Option<(u64, u64)> {
        self.pools
            .block_at(address)
            .map(|block| (block.address, block.requested))
            .or_else(|| self.sharing.imported(address))
    }
}

impl Call {
    /// Free and total memory. Free is what the next layer says, reduced to the limit, plus what lies free in our
    /// segments: a request of that size would be served. Both pointers may be null, as CUDA allows.
    ///
    /// # Safety
    /// Each pointer is null or writable.
    pub unsafe fn memory_info(&self, free: *mut usize, total: *mut usize) -> CudaResult {
        self.refresh_pools();
        // SAFETY: the job's own arguments go to the function that the job called.
        check(unsafe { next::cuMemGetInfo_v2(free, total) })?;
        // SAFETY: the same contract, and the call has written what is not null.
        unsafe { self.correct_memory_info(free, total) };
        Ok(())
    }

    /// As `memory_info`, for the 32-bit function.
    ///
    /// # Safety
    /// Each pointer is null or writable.
    pub unsafe fn memory_info_v1(&self, free: *mut u32, total: *mut u32) -> CudaResult {
        self.refresh_pools();
        // SAFETY: the job's own arguments go to the function that the job called.
        check(unsafe { next::cuMemGetInfo(free, total) })?;
        // SAFETY: the same contract, and the call has written what is not null.
        unsafe { self.correct_memory_info(free, total) };
        Ok(())
    }

    /// # Safety
    /// Each pointer is null, or writable and was written.
    unsafe fn correct_memory_info<T>(&self, free: *mut T, total: *mut T)
    where
        T: Copy + TryFrom<u64>,
        u64: TryFrom<T>,
    {
        let Some(location) = Location::current() else {
            return;
        };
        let device = location.device;
        // What the driver holds for contexts is known from here on.
        self.engine.measure_if_due(device);
        let value = |out: *mut T| {
            // SAFETY: null or written, by contract.
            let written = unsafe { out.as_ref() };
            written.and_then(|&value| u64::try_from(value).ok()).unwrap_or(0)
        };
        let actual = Available {
            free: value(free),
            total: value(total),
        };
        let allowed = self.engine.state.limits.within(device, actual);
        let inside = self.engine.pools.free_inside(device).0;
        // Memory that a pool has obtained since the next layer answered is in both figures.
        let most = if total.is_null() { u64::MAX } else { allowed.total };
        let answers = [
            (free, allowed.free.saturating_add(inside).min(most)),
            (total, allowed.total),
        ];
        for (out, answer) in answers {
            // An answer that the type cannot hold is left out, and the next layer's answer stands.
            if let Ok(answer) = T::try_from(answer)
                && !out.is_null()
            {
                // SAFETY: the pointer is not null, and writable by contract.
                unsafe { *out = answer };
            }
        }
    }

    /// Reduces a device's total, which the next layer has answered with `result`, to the limit.
    ///
    /// # Safety
    /// `out` is null or writable, and was written if `result` is success.
    pub unsafe fn device_total<T: Copy + Ord + TryFrom<u64>>(
        &self,
        out: *mut T,
        device: i32,
        result: CudaResult,
    ) -> CudaResult {
        let limits = &self.engine.state.limits;
        if result.is_ok()
            && !out.is_null()
            && let Some(limit) = i16::try_from(device).ok().and_then(|device| limits.of(device)?.limit)
            // A limit that the type cannot hold is above every total of that type.
            && let Ok(limit) = T::try_from(limit)
        {
            // SAFETY: the pointer is not null, and the call has written it.
            unsafe { *out = (*out).min(limit) };
        }
        result
    }

    /// # Safety
    /// Each pointer is null or writable.
    pub unsafe fn address_range(&self, base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr) -> CudaResult {
        if let Some((first, bytes)) = self.engine.block_around(address) {
            if base.is_null() && size.is_null() {
                return Err(DriverError::INVALID_VALUE);
            }
            // SAFETY: a pointer that is not null is writable by contract.
            unsafe {
                if !base.is_null() {
                    *base = first;
                }
                if !size.is_null() {
                    *size = bytes as usize;
                }
            }
            return Ok(());
        }
        if self.engine.pools.is_pooled(address) {
            // Free space inside a segment is not an allocation of the job.
            return Err(DriverError::NOT_FOUND);
        }
        // SAFETY: the job's own arguments go to the function that the job called.
        check(unsafe { next::cuMemGetAddressRange_v2(base, size, address) })
    }

    /// The address to ask the next layer about when the job asks about `address`. For free space inside a segment this
    /// is an unallocated address, because the job has no allocation there.
    pub fn address_for_next_layer(&self, address: CUdeviceptr) -> CUdeviceptr {
        let pools = &self.engine.pools;
        if pools.is_pooled(address) && pools.block_at(address).is_none() {
            UNALLOCATED
        } else {
            address
        }
    }

    /// Corrects an attribute of `address` that the next layer answered for the whole segment: the job asked about a
    /// block.
    ///
    /// # Safety
    /// `out` is null, or points to a value of the type that `attribute` has.
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
        let engine = self.engine;
        let Some((first, bytes)) = engine.block_around(address) else {
            return;
        };
        // Mapped memory belongs to no context, but to the job a block belongs to the context it was allocated in.
        let context = engine.pools.possible_owner(address).map(|pool| pool.location.context);
        // SAFETY: the types are those of the attributes: `CUcontext`, `unsigned long long`, `CUdeviceptr`, `size_t`, and
        // `bool` as the driver writes it.
        unsafe {
            match attribute {
                CONTEXT => {
                    if let Some(context) = context {
                        out.cast::<u64>().write(context);
                    }
                }
                // None, as for memory of `cuMemAlloc`: the handles of a pool are not the job's to export.
                ALLOWED_HANDLE_TYPES => {
                    if context.is_some() {
                        out.cast::<u64>().write(0);
                    }
                }
                RANGE_START => out.cast::<u64>().write(first),
                RANGE_SIZE => out.cast::<usize>().write(bytes as usize),
                _ => {
                    if let Some(capable) = engine.sharing.is_shareable(&engine.pools, address) {
                        out.cast::<bool>().write(capable);
                    }
                }
            }
        }
    }
}
