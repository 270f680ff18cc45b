//! Questions of the job about memory and devices, whose answers must take pools and limits into account.

use crate::engine::Call;
use crate::engine::pools::pool::Pool;
use crate::engine::state::location::Location;
use crate::next::{self, CUdeviceptr};
use base::cuda::{CudaResult, DriverError, HOST_DEVICE, check};
use base::mutant;
use base::shortage::MemInfo;

impl Call {
    /// Free and total memory, from the answer that `ask` gets of the next layer. Free is what the next layer still gives,
    /// reduced to the limit, plus what lies free in our segments: a request of that size would be served. Both pointers may
    /// be null, as CUDA allows. The next layer gets variables of ours: some layers write to what the job may leave null
    /// (HAMi-core#234, #333).
    ///
    /// # Safety
    /// Each pointer is null or writable.
    pub unsafe fn memory_info<T>(&self, free: *mut T, total: *mut T, ask: impl Fn(*mut T, *mut T) -> i32) -> CudaResult
    where
        T: Copy + Default + TryFrom<u64>,
        u64: TryFrom<T>,
    {
        self.refresh_pools();
        self.engine.refund_closed_descriptors(HOST_DEVICE, self.api());
        let mut told = (T::default(), T::default());
        check(ask(&mut told.0, &mut told.1))?;
        let answer = self.corrected(told.0, told.1);
        for (out, value) in [(free, answer.0), (total, answer.1)] {
            // SAFETY: null or writable, by contract.
            if let Some(out) = unsafe { out.as_mut() } {
                *out = value;
            }
        }
        Ok(())
    }

    /// Free and total memory as the job is told them. A figure that the type cannot hold stays as the next layer told it.
    fn corrected<T>(&self, free: T, total: T) -> (T, T)
    where
        T: Copy + TryFrom<u64>,
        u64: TryFrom<T>,
    {
        let Some(Location { device, .. }) = Location::current() else {
            return (free, total);
        };
        // What the driver holds for contexts is known from here on.
        self.engine.measure_if_due(device);
        let bytes = |value: T| u64::try_from(value).unwrap_or(0);
        let actual = MemInfo {
            free: self.still_given(device, bytes(free), size_of::<T>() == size_of::<usize>()),
            total: bytes(total),
        };
        let allowed = self.engine.state.limits.within(device, actual);
        let inside = self.engine.pools.free_inside(device).0;
        // Memory that a pool has obtained since the next layer answered is in both figures.
        let served = allowed.free.saturating_add(inside).min(allowed.total);
        (
            T::try_from(served).unwrap_or(free),
            T::try_from(allowed.total).unwrap_or(total),
        )
    }

    /// What a layer that shows `free` bytes still gives to the pools. Without pools the job is told what it is told over the
    /// layer alone. `is_whole`: the figure is not cut to 32 bits.
    fn still_given(&self, device: i16, free: u64, is_whole: bool) -> u64 {
        let state = self.engine.state;
        if !next::shows_its_own_memory() || self.engine.pools.of_device(device).is_empty() {
            return free;
        }
        if is_whole {
            state.shown.saw(device, free, state.linear_reserved(device));
        }
        state.given(device, free)
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
        if let Some((first, bytes)) = self.engine.allocation_around(address) {
            self.engine
                .pools
                .possible_owner(address)
                .map_or(Ok(()), Pool::check_fault)?;
            if base.is_null() && size.is_null() {
                return Err(DriverError::INVALID_VALUE);
            }
            // SAFETY: a pointer that is not null is writable by contract.
            unsafe {
                if !base.is_null() {
                    *base = first;
                }
                if !size.is_null() {
                    // Mutant 7: a wrong range.
                    *size = bytes as usize + usize::from(mutant::is(7));
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
}
