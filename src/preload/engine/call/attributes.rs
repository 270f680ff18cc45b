//! What the driver says of an address, corrected for blocks: to the job a block is an allocation of `cuMemAlloc`.
//!
//! The next layer answers first, for the segment or the granule around the block. Then each answer that is not the one
//! for the block is replaced. The attributes and their types are those of `cuPointerGetAttribute` (cuda.h 13.0:14168,
//! 901).

use std::ffi::c_void;

use cudarc::driver::sys::CUpointer_attribute;

use crate::engine::state::location::Location;
use crate::engine::{Call, Engine};
use crate::next::{self, CUdeviceptr, CUmemLocation};
use base::cuda::{CudaResult, check};

/// Defines the attributes that are corrected.
macro_rules! corrected {
    ($($visible:vis $name:ident: $attribute:ident,)+) => {
        $($visible const $name: u32 = CUpointer_attribute::$attribute as u32;)+
        const CORRECTED: &[u32] = &[$($name),+];
    };
}

corrected! {
    CONTEXT: CU_POINTER_ATTRIBUTE_CONTEXT,
    P2P_TOKENS: CU_POINTER_ATTRIBUTE_P2P_TOKENS,
    pub SYNC_MEMOPS: CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
    BUFFER_ID: CU_POINTER_ATTRIBUTE_BUFFER_ID,
    LEGACY_IPC_CAPABLE: CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
    RANGE_START: CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
    RANGE_SIZE: CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    ALLOWED_HANDLE_TYPES: CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
    ACCESS_FLAGS: CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
    MAPPING_SIZE: CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
    MAPPING_START: CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
    MEMORY_BLOCK_ID: CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID,
}

/// `CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE` and `..._READWRITE`
const NO_ACCESS: u32 = 0;
const READ_WRITE: u32 = 3;

/// An address at which no memory ever lies.
pub(super) const UNALLOCATED: CUdeviceptr = 1;

impl Engine {
    /// The allocation of the job that holds `address`, if the library made it: a block of a pool, also while another
    /// thread's free of it waits, or a block of another process. First address and bytes.
    pub(super) fn allocation_around(&self, address: u64) -> Option<(u64, u64)> {
        self.live_allocation_around(address)
            .or_else(|| self.pools.leaving_at(address))
    }

    fn live_allocation_around(&self, address: u64) -> Option<(u64, u64)> {
        self.pools
            .block_at(address)
            .map(|block| (block.address, block.requested))
            .or_else(|| self.sharing.imports.find(address))
    }

    /// Whether work of the current context may touch memory of `owner` (cuda.h 13.0:3691: without access, the driver
    /// copies by another way).
    fn access_from_here(&self, owner: Location) -> u32 {
        match Location::current() {
            Some(here) if here.device == owner.device || self.state.peers.may_use(here, owner) => READ_WRITE,
            _ => NO_ACCESS,
        }
    }
}

impl Call {
    /// The address to ask the next layer about when the job asks about `address`. For free space inside a segment this
    /// is an unallocated address, because the job has no allocation there.
    pub fn address_for_next_layer(&self, address: CUdeviceptr) -> CUdeviceptr {
        let pools = &self.engine.pools;
        if pools.is_pooled(address) && pools.block_at(address).is_none() && pools.leaving_at(address).is_none() {
            UNALLOCATED
        } else {
            address
        }
    }

    /// Corrects an attribute of `address` that the next layer has answered.
    ///
    /// # Safety
    /// `out` is null, or points to a value of the type that `attribute` has.
    pub unsafe fn pointer_attribute(&self, out: *mut c_void, attribute: u32, address: CUdeviceptr) {
        if out.is_null() || !CORRECTED.contains(&attribute) {
            return;
        }
        let engine = self.engine;
        let live = engine.live_allocation_around(address);
        let Some((first, bytes)) = live.or_else(|| engine.pools.leaving_at(address)) else {
            return;
        };
        let owner = engine.pools.possible_owner(address).map(|pool| pool.location);
        let opened = || {
            engine
                .sharing
                .imports
                .location_of(address)
                .map(|(location, _)| location)
        };
        let context = owner.or_else(opened).map_or(0, |location| location.context);
        let registrations = &engine.state.registrations;
        // SAFETY: the types are those of the attributes: `CUcontext`, `unsigned long long`, `CUdeviceptr`, `size_t`,
        // `unsigned int`, and `bool` as the driver writes it.
        unsafe {
            match (attribute, owner) {
                // Mapped memory belongs to no context, but to the job a block belongs to the context it was allocated
                // in.
                (CONTEXT, Some(owner)) => out.cast::<u64>().write(owner.context),
                (SYNC_MEMOPS, Some(_)) => out.cast::<bool>().write(registrations.synchronises(first)),
                // What is noted for a block whose free has not returned would be taken for the next block's.
                (P2P_TOKENS, Some(_)) if live.is_none() => {}
                (BUFFER_ID | MEMORY_BLOCK_ID, _) if live.is_none() => out.cast::<u64>().write(registrations.new_id()),
                (P2P_TOKENS, Some(_)) => self.tokens_given(first, context),
                // Both identities are unique in the process. The physical memory behind a block has an identity too,
                // but a block can lie in several pieces of it.
                (BUFFER_ID | MEMORY_BLOCK_ID, _) => out.cast::<u64>().write(registrations.id(first, context)),
                // None, as for memory of `cuMemAlloc`: the handles of granules are not the job's to export.
                (ALLOWED_HANDLE_TYPES, Some(_)) => out.cast::<u64>().write(0),
                (ACCESS_FLAGS, Some(owner)) => out.cast::<u32>().write(engine.access_from_here(owner)),
                (RANGE_START | MAPPING_START, _) => out.cast::<u64>().write(first),
                (RANGE_SIZE | MAPPING_SIZE, _) => out.cast::<usize>().write(bytes as usize),
                (LEGACY_IPC_CAPABLE, _) => {
                    if let Some(capable) = engine.sharing.is_shareable(&engine.pools, address) {
                        out.cast::<bool>().write(capable);
                    }
                }
                _ => {}
            }
        }
    }

    /// `cuMemGetAccess`. To the job, a block is memory of `cuMemAlloc`, of which the driver tells no flags (`access_of_alloc`
    /// in tests/assumptions).
    ///
    /// # Safety
    /// `flags` is null or writable, and `location` null or readable.
    pub unsafe fn access_flags(
        &self,
        flags: *mut u64,
        location: *const CUmemLocation,
        address: CUdeviceptr,
    ) -> CudaResult {
        let asked = self.address_for_next_layer(address);
        // SAFETY: the job's own arguments, except for the address, which the function does not access.
        check(unsafe { next::cuMemGetAccess(flags, location, asked) })?;
        if self.engine.pools.is_pooled(address) && !flags.is_null() {
            // SAFETY: the call that succeeded has written it.
            unsafe { *flags = 0 };
        }
        Ok(())
    }

    /// The driver gave tokens for a block in a segment. It has set SYNC_MEMOPS by that (cuda.h 13.0:14240), for the
    /// whole segment and for good. The library keeps the attribute for the block alone.
    fn tokens_given(&self, block: u64, context: u64) {
        self.engine.state.registrations.set_synchronises(block, context, true);
        let off = 0u32;
        // SAFETY: the pointer is to a variable of this frame. If the call fails, the segment synchronises more than it
        // must.
        let _ = check(unsafe { next::cuPointerSetAttribute((&raw const off).cast(), SYNC_MEMOPS, block) });
    }
}
