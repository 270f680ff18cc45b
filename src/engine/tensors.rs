//! Requests that name a device and a stream instead of coming from a context (`vramshim_torch_*`). What was freed on a
//! stream can be used on it again without waiting, because work on one stream runs in order.

use std::ptr;

use super::suballocation::Freed;
use super::{Call, Place};
use crate::api::Class;
use crate::ledger::Key;
use crate::real::{self, CUcontext, NOT_PERMITTED, SUCCESS};

/// `CU_STREAM_LEGACY` is the default stream, 0; `CU_STREAM_PER_THREAD` is a different stream in each thread.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// What tells streams apart; `None` where the handle does not.
fn identity(stream: usize) -> Option<u64> {
    match stream {
        LEGACY => Some(0),
        PER_THREAD => None,
        handle => Some(handle as u64),
    }
}

/// Runs `work` with a context of this device current: the current one where it is, else the primary one.
fn on_device(device: i32, work: impl FnOnce() -> Result<u64, i32>) -> Result<u64, i32> {
    if Place::current().is_some_and(|place| i32::from(place.device) == device) {
        return work();
    }
    let checked = |result: i32| if result == SUCCESS { Ok(()) } else { Err(result) };
    let mut context: CUcontext = ptr::null_mut();
    // SAFETY: this frame's own values; what is retained and pushed here is popped and released here.
    unsafe {
        checked(real::cuDevicePrimaryCtxRetain(&mut context, device))?;
        let result = checked(real::cuCtxPushCurrent_v2(context)).and_then(|()| {
            let result = work();
            real::cuCtxPopCurrent_v2(&mut context);
            result
        });
        real::cuDevicePrimaryCtxRelease_v2(device);
        result
    }
}

impl Call {
    pub fn allocate_for_stream(&self, size: usize, device: i32, stream: usize) -> Result<u64, i32> {
        if self.engine.refuses {
            return Err(NOT_PERMITTED);
        }
        on_device(device, || match self.pool() {
            Some(pool) => self.allocate_in(pool, size as u64, identity(stream)),
            None => {
                let mut address = 0u64;
                let out = &raw mut address;
                // SAFETY: this frame's own value.
                let below = || unsafe { real::cuMemAlloc_v2(out, size) };
                // SAFETY: as above, written by the call that succeeded.
                match self.obtain_direct(Class::Linear, Place::current(), size as u64, below, || unsafe { *out }) {
                    SUCCESS => Ok(address),
                    problem => Err(problem),
                }
            }
        })
    }

    pub fn free_for_stream(&self, address: u64, device: i32, stream: usize) {
        let free = || {
            let result = match self.free_pooled(address, identity(stream)) {
                Freed::Answer(result) => result,
                Freed::NotOurs(claim) => {
                    // SAFETY: what this allocator handed out and no pool has, the driver did.
                    self.give_back_claimed(claim, Key::Address(address), || unsafe { real::cuMemFree_v2(address) })
                }
            };
            if result == SUCCESS { Ok(0) } else { Err(result) }
        };
        if let Err(problem) = on_device(device, free) {
            tracing::error!("vramshim_torch_free({address:#x}): CUDA error {problem}");
        }
    }

    /// Says why PyTorch gets no memory.
    pub fn say_refused(&self, size: u64, device: i32, problem: i32) {
        let device = device as i16;
        let held = self.engine.ledger.readings(device, None);
        tracing::error!(
            "vramshim_torch_alloc: no {size} bytes on GPU {device} (CUDA error {problem}): {} bytes are allocated and {} \
             reserved. PyTorch gets a null pointer, which it may not notice before it uses the tensor",
            held.allocated.current,
            held.reserved.current,
        );
    }
}
