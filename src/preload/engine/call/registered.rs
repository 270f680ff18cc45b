//! Memory that other devices and processes come to know: exports to a file descriptor, SYNC_MEMOPS.
//!
//! The physical memory behind a block stays the same until it is freed, because no policy moves memory.
//!
//! SYNC_MEMOPS makes synchronous copies and fills end before they return, so that a network card never sends old bytes
//! (cuda.h 13.0:14811, ucx#4188). The driver keeps it for a whole allocation, and refuses it for mapped memory
//! (ucx#9895, libfabric#12853). The library keeps it for the block under every policy, and does what it promises:
//! after each synchronous operation on such a block it waits for the operation's stream. The flag of the context that
//! does the same (CU_CTX_SYNC_MEMOPS) would concern all memory, and to set it takes a lock of the driver's that
//! launches hold (ucx#11705).

use std::ffi::c_void;

use super::attributes::SYNC_MEMOPS;
use crate::engine::{Call, Engine};
use crate::next::{self, CUstream};
use base::cuda::{CudaResult, DriverError, STREAM_LEGACY, STREAM_PER_THREAD, check};
use base::file::page_size;

impl Engine {
    /// A block is about to be freed: what the job asked for it ends.
    #[inline]
    pub(super) fn block_leaves(&self, address: u64) {
        self.sharing.exports.block_freed(address);
        self.state.registrations.block_freed(address);
    }
}

impl Call {
    /// `cuMemGetHandleForAddressRange`: `size` bytes at `address` become known to another device.
    pub fn export_range(&self, address: u64, size: usize, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let pools = &self.engine.pools;
        if !pools.is_pooled(address) {
            return ask();
        }
        // The rest of the last page belongs to an allocation of the driver's, but not the memory behind that: cuda.h
        // 13.0:12570 wants address and size aligned to pages.
        let holds_range = pools.block_at(address).is_some_and(|block| {
            let end = (block.address + block.requested).next_multiple_of(page_size() as u64);
            address.checked_add(size as u64).is_some_and(|wanted| wanted <= end)
        });
        if !holds_range {
            return Err(DriverError::INVALID_VALUE);
        }
        ask()
    }

    /// `cuPointerSetAttribute`.
    ///
    /// # Safety
    /// `value` is null, or points to a value of the type that `attribute` has.
    pub unsafe fn set_pointer_attribute(
        &self,
        value: *const c_void,
        attribute: u32,
        address: u64,
        ask: impl FnOnce() -> CudaResult,
    ) -> CudaResult {
        let pools = &self.engine.pools;
        if !pools.is_pooled(address) {
            return ask();
        }
        // No other attribute can be set.
        if attribute != SYNC_MEMOPS || value.is_null() {
            return Err(DriverError::INVALID_VALUE);
        }
        let (Some(pool), Some(block)) = (pools.possible_owner(address), pools.block_at(address)) else {
            return Err(DriverError::INVALID_VALUE);
        };
        if next::current_context()?.is_null() {
            return Err(DriverError::INVALID_CONTEXT);
        }
        // SAFETY: the value of this attribute is an unsigned int (cuda.h 13.0:14821).
        let wanted = unsafe { value.cast::<u32>().read() } != 0;
        let context = pool.location.context;
        self.engine
            .state
            .registrations
            .set_synchronises(block.address, context, wanted);
        if wanted {
            self.wait_for_synchronous_operations(context);
        }
        Ok(())
    }

    /// Synchronous operations that began earlier are done when SYNC_MEMOPS is set (cuda.h 13.0:14815). They are on the
    /// default streams of the block's context and of the caller's. A wait for a default stream breaks a capture, so
    /// none is made while one is open. The operations are over soon in any case.
    fn wait_for_synchronous_operations(&self, context: u64) {
        if self.engine.state.captures.any_open() {
            return;
        }
        let wait = || {
            let waits = [STREAM_LEGACY, STREAM_PER_THREAD].map(|stream| {
                // SAFETY: these handles stand for default streams of the current context.
                check(unsafe { next::cuStreamSynchronize(stream as CUstream) })
            });
            waits.into_iter().collect::<CudaResult>()
        };
        // The job learns of a fault of earlier work from its own calls.
        let _ = next::in_context(context, wait);
        if next::current_context().is_ok_and(|current| current as u64 != context) {
            let _ = wait();
        }
    }

    /// A synchronous operation on these addresses has returned `result`. If one of them lies in a block with
    /// SYNC_MEMOPS, waits until the operation is done. `per_thread` is its variant: the default stream of the thread,
    /// or the legacy one.
    pub fn end_synchronous(&self, addresses: &[u64], per_thread: bool, result: CudaResult) -> CudaResult {
        let (pools, registrations) = (&self.engine.pools, &self.engine.state.registrations);
        if result.is_err() || !registrations.any_synchronises() {
            return result;
        }
        let concerns = |&address: &u64| {
            pools
                .block_at(address)
                .is_some_and(|block| registrations.synchronises(block.address))
        };
        if !addresses.iter().any(concerns) {
            return result;
        }
        let stream = if per_thread { STREAM_PER_THREAD } else { STREAM_LEGACY };
        // SAFETY: the handle stands for a default stream of the current context.
        check(unsafe { next::cuStreamSynchronize(stream as CUstream) })
    }
}
