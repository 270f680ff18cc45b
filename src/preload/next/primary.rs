//! The primary contexts of devices, which come and go while other threads look at them.
//!
//! The last release of a primary context destroys it, and the next retain makes another one, often with the same handle.
//! Whether a release was the last one is known only after it. So no thread retains, releases or resets the context of a
//! device while another one does, or asks for it: what belonged to the old context leaves the books before there can be
//! a new one. The driver has such a turn of its own, but it ends with each call.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::results::{retried, told};
use super::signatures::{self, CUcontext};
use base::cuda::{CudaResult, MAX_DEVICES, check};
use base::sync::lock;

type Turns = [Mutex<()>; MAX_DEVICES];

static FIRST: Turns = [const { Mutex::new(()) }; MAX_DEVICES];
/// The locks of this process; null stands for `FIRST`.
static CURRENT: AtomicPtr<Turns> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// The devices whose turn the thread has, one bit each.
    static HAS: Cell<u64> = const { Cell::new(0) };
}

const _: () = assert!(MAX_DEVICES <= u64::BITS as usize);

/// The thread's turn at the primary context of a device, until this is dropped.
pub struct Turn {
    bit: u64,
    _guard: MutexGuard<'static, ()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        HAS.set(HAS.get() & !self.bit);
    }
}

/// Waits for the thread's turn at the primary context of a device. `None` if the thread has it already, or if there can be
/// no such device.
pub fn turn(device: i32) -> Option<Turn> {
    let turns = CURRENT.load(Ordering::Acquire);
    // SAFETY: only `in_forked_child` sets the pointer, to locks that are never freed.
    let turns = if turns.is_null() { &FIRST } else { unsafe { &*turns } };
    let turn = turns.get(usize::try_from(device).ok()?)?;
    let bit = 1u64 << device;
    if HAS.get() & bit != 0 {
        return None;
    }
    let guard = lock(turn);
    HAS.set(HAS.get() | bit);
    Some(Turn { bit, _guard: guard })
}

/// Gives a forked child locks of its own: a thread of its parent may have held one.
pub fn in_forked_child() {
    HAS.set(0);
    CURRENT.store(
        Box::leak(Box::new([const { Mutex::new(()) }; MAX_DEVICES])),
        Ordering::Release,
    );
}

/// Whether a device's primary context is active.
pub fn is_primary_active(device: i32) -> bool {
    let mut flags = 0;
    // SAFETY: the pointers are to variables of this frame and of `told`.
    let asked = told(0, |active| unsafe {
        signatures::cuDevicePrimaryCtxGetState(device, &mut flags, active)
    });
    asked.is_ok_and(|active| active != 0)
}

/// Retains a device's primary context. Tells whether it was active before.
pub fn retain(device: i32) -> CudaResult<(CUcontext, bool)> {
    let _turn = turn(device);
    let was_active = is_primary_active(device);
    // SAFETY: the pointer is to a variable of `told`.
    let context = told(ptr::null_mut(), |context| unsafe {
        signatures::cuDevicePrimaryCtxRetain(context, device)
    })?;
    Ok((context, was_active))
}

/// A device's primary context, if it is active.
pub fn active_primary_context(device: i32) -> Option<CUcontext> {
    let _turn = turn(device);
    if !is_primary_active(device) {
        return None;
    }
    let (context, _) = retain(device).ok()?;
    // SAFETY: the argument is a number; the context is released as often as it was retained here.
    let _ = retried(|| check(unsafe { signatures::cuDevicePrimaryCtxRelease_v2(device) }));
    Some(context)
}
