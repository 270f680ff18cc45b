//! Frees that the next layer refuses, although the ledger has the memory.
//!
//! HAMi-core has one list of allocations for `cuMemFree` and another for `cuMemFreeAsync` (`remove_chunk` and
//! `remove_chunk_async` in its `allocator.c`). A free whose list lacks the address answers -1 and frees nothing
//! (HAMi-core#93). So `cuMemFree` refuses stream-ordered memory there, `cuMemFreeAsync` linear memory, and both refuse memory
//! of the job's own pools, which the layer hands through without a charge. The job would lose that memory for good.
//!
//! CUDA's own codes are not negative. So only a negative answer is taken for the refusal of a layer; all others stand.

use once_cell::race::OnceBool;

use crate::engine::call::attributes::UNALLOCATED;
use crate::engine::state::allocation::Allocation;
use crate::engine::state::captures::relaxed;
use crate::engine::state::location::Location;
use crate::next::{self, CUstream, driver, hooked};
use base::api::Class;
use base::cuda::{CudaResult, DriverError, check};

/// What is learnt of whether the next layer charges for memory of one kind of pool. Only a layer that refuses a free needs
/// it, so a job without a layer asks nothing.
pub struct Learning(OnceBool);

impl Learning {
    /// Of the job's own pools (`is_explicit`), or of the pools that each device has.
    pub fn about_pools(is_explicit: bool) -> &'static Learning {
        static LEARNT: [Learning; 2] = [const { Learning(OnceBool::new()) }; 2];
        &LEARNT[usize::from(is_explicit)]
    }

    /// `None` as long as it is not known.
    pub fn learnt(&self) -> Option<bool> {
        self.0.get()
    }

    /// Runs `ask`, which obtains `size` bytes, and learns whether the layer charged for them, if that can be seen.
    pub fn watch(&self, size: u64, ask: &impl Fn() -> CudaResult) -> CudaResult {
        if self.learnt().is_some() {
            return ask();
        }
        let Some(before) = left_by_limit() else { return ask() };
        ask()?;
        if let Some(after) = left_by_limit() {
            // Another thread may have learnt it meanwhile.
            let _ = self.0.set(after + size / 2 <= before);
        }
        Ok(())
    }
}

/// The free bytes that a layer tells, if its limit leaves less than the device has. Otherwise the driver's figure is
/// the smaller one, and says nothing of what the layer charges.
fn left_by_limit() -> Option<u64> {
    let of_driver = driver::information_behind_layer()?.free;
    let free = next::information().ok()?.free;
    (free < of_driver).then_some(free)
}

/// The free of one allocation.
pub struct Freeing {
    pub address: u64,
    /// The stream of `cuMemFreeAsync`; `None` for `cuMemFree`.
    pub stream: Option<CUstream>,
    /// Whether the next layer charged for the allocation, if that is known.
    pub is_charged: Option<bool>,
}

/// The driver's refusal of any free, whatever the address: in a thread without a context, or in a host function of a stream
/// (cuda.h 13.0, `cuLaunchHostFunc`). `None` if it objects to the address alone, as with a context. `current` is the thread's
/// context, `stream` that of `cuMemFreeAsync`.
pub fn refusal_of_any_free(current: Option<Location>, stream: Option<usize>) -> Option<DriverError> {
    if current.is_some() {
        return None;
    }
    let freed = relaxed(|| {
        // SAFETY: no memory lies at this address, so nothing is freed. The stream is the job's own.
        check(unsafe {
            match stream {
                Some(stream) => next::cuMemFreeAsync(UNALLOCATED, stream as CUstream),
                None => next::cuMemFree_v2(UNALLOCATED),
            }
        })
    });
    freed
        .err()
        .filter(|&error| error.0 >= 0 && error != DriverError::INVALID_VALUE)
}

impl Freeing {
    /// Frees an allocation of the ledger after the next layer's answer to the job's own call. If that was a layer's
    /// refusal, asks the layer's other function, and then the driver itself if the layer never charged for the memory. What
    /// the layer has on its books stays there, because the layer would count it for ever.
    pub fn after_refusal(&self, allocation: Option<&Allocation>, refusal: DriverError) -> CudaResult {
        if refusal.0 >= 0 {
            return Err(refusal);
        }
        let Some(allocation) = allocation else {
            return Err(self.answer_for_unknown(refusal));
        };
        let freed = self.by_other_function(allocation.class).or_else(|_| {
            if !self.is_uncharged(allocation.class) {
                return Err(refusal);
            }
            // SAFETY: the job's own arguments, for memory that is live and that no layer has on its books.
            unsafe { driver::free_behind_layer(self.address, self.stream) }
        });
        freed.map_err(|_| refusal)
    }

    /// The answer for an address that neither the ledger nor the layer has. If the driver has no memory there either, it is
    /// the driver's own answer: `CUDA_ERROR_INVALID_VALUE` (cuda.h, `cuMemFree`). Programs know what that means.
    fn answer_for_unknown(&self, refusal: DriverError) -> DriverError {
        let (mut base, mut size) = (0, 0);
        // SAFETY: both pointers are to variables of this frame.
        let asked = relaxed(|| check(unsafe { next::cuMemGetAddressRange_v2(&mut base, &mut size, self.address) }));
        match asked {
            Err(DriverError::INVALID_VALUE | DriverError::NOT_FOUND) => DriverError::INVALID_VALUE,
            _ => refusal,
        }
    }

    /// Stream-ordered and linear memory go back by either function (`free_async_of_alloc` in tests/assumptions). `cuMemFree`
    /// does not wait for the uses of stream-ordered memory; the caller has done so (cuda.h, `cuMemFree`).
    fn by_other_function(&self, class: Class) -> CudaResult {
        match self.stream {
            None if class == Class::Async => {
                // SAFETY: the memory is live, and the caller has waited for its uses, as `cuMemFree` demands.
                relaxed(|| check(unsafe { next::cuMemFreeAsync(self.address, std::ptr::null_mut()) }))
            }
            // The wait is for memory that only the layer can free.
            Some(stream) if matches!(class, Class::Async | Class::Linear) && self.is_charged != Some(false) => {
                // SAFETY: the stream is the job's own. The memory is live, and nothing uses it after the wait.
                relaxed(|| unsafe {
                    check(next::cuStreamSynchronize(stream))?;
                    check(next::cuMemFree_v2(self.address))
                })
            }
            _ => Err(DriverError::NOT_SUPPORTED),
        }
    }

    /// Whether the layer never charged for the memory: because it belongs to another process or API, or was seen to come
    /// without a charge, or because the layer has no hook for the function that hands it out.
    fn is_uncharged(&self, class: Class) -> bool {
        match class {
            Class::Imported => true,
            Class::Async => self.is_charged == Some(false),
            Class::Linear => !driver::is_of_layer(hooked::cuMemAlloc_v2()),
            Class::Pitched => !driver::is_of_layer(hooked::cuMemAllocPitch_v2()),
            Class::Managed => !driver::is_of_layer(hooked::cuMemAllocManaged()),
            _ => false,
        }
    }
}
