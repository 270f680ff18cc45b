//! Requests that name a device and a stream instead of coming from a context (`vramshim_torch_*`). What was freed on a
//! stream can be used on it again without waiting, because work on one stream runs in order.
//!
//! That holds where no other stream used the block. PyTorch tells of those (`record_stream`) only if it was given
//! `vramshim_torch_record_stream`; until it first is called, a job that has streams waits, as it does after `cuMemFree`.

use std::collections::HashSet;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::pools::suballocation::Freed;
use crate::engine::state::captures::captures;
use crate::engine::state::ledger::Key;
use crate::engine::{Call, Engine, Place, lock};
use crate::next::{self, CUcontext, CUstream, NOT_PERMITTED, STREAM_LEGACY, STREAM_PER_THREAD, SUCCESS};
use base::api::Class;

#[derive(Default)]
pub struct Tensors {
    /// Blocks that streams other than their own have used.
    recorded: Mutex<HashSet<u64>>,
    /// Whether anybody ever told of such a block.
    tells: AtomicBool,
    kept_for_graphs: AtomicBool,
    /// Blocks that graphs may use whenever they are launched: allocated on a stream that captured.
    in_graphs: Mutex<HashSet<u64>>,
    has_graphs: AtomicBool,
    /// Streams that the journal has a number for.
    streams: Mutex<Vec<u64>>,
}

/// What the journal calls the first stream that is not the default one, and any that it has no number for.
const FIRST_NUMBER: usize = 2;
const NO_NUMBER: u8 = u8::MAX;

impl Tensors {
    /// What the journal calls this stream.
    pub fn number(&self, stream: Option<u64>) -> u8 {
        let identity = match stream {
            None => return 0,
            Some(0) => return 1,
            Some(identity) => identity,
        };
        let mut known = lock(&self.streams);
        let place = known.iter().position(|&other| other == identity).unwrap_or(known.len());
        match u8::try_from(FIRST_NUMBER + place) {
            Ok(number) if number != NO_NUMBER => {
                if place == known.len() {
                    known.push(identity);
                }
                number
            }
            _ => NO_NUMBER,
        }
    }
}

/// What tells streams apart, also from those that had the same handle before; 0 is the default one, `None` where nothing
/// does.
fn identity(stream: usize) -> Option<u64> {
    match stream {
        0 | STREAM_LEGACY => Some(0),
        STREAM_PER_THREAD => None,
        handle => {
            let mut number = 0;
            // SAFETY: the job's own stream, this frame's own value.
            let result = unsafe { next::cuStreamGetId(handle as CUstream, &mut number) };
            (result == SUCCESS).then_some(number << 1 | 1)
        }
    }
}

fn is_capturing(stream: usize) -> bool {
    // SAFETY: the job's own stream.
    captures(|status| unsafe { next::cuStreamIsCapturing(stream as CUstream, status) })
}

/// Runs `work` with a context of this device current: the current one where it is, else the primary one, which is kept
/// where nobody else does: it would go at once, with the memory.
fn on_device(device: i32, work: impl FnOnce() -> Result<u64, i32>) -> Result<u64, i32> {
    if Place::current().is_some_and(|place| i32::from(place.device) == device) {
        return work();
    }
    let checked = |result: i32| if result == SUCCESS { Ok(()) } else { Err(result) };
    let mut context: CUcontext = ptr::null_mut();
    let (mut flags, mut active) = (0, 0);
    // SAFETY: this frame's own values; what is pushed here is popped here.
    unsafe {
        checked(next::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active))?;
        checked(next::cuDevicePrimaryCtxRetain(&mut context, device))?;
        let result = checked(next::cuCtxPushCurrent_v2(context)).and_then(|()| {
            let result = work();
            next::cuCtxPopCurrent_v2(&mut context);
            result
        });
        if active != 0 {
            next::cuDevicePrimaryCtxRelease_v2(device);
        }
        result
    }
}

impl Call {
    pub fn allocate_for_stream(&self, size: usize, device: i32, stream: usize) -> Result<u64, i32> {
        if self.engine.refuses {
            return Err(NOT_PERMITTED);
        }
        let allocate = || match self.pool() {
            Some(pool) => self.allocate_in(pool, size as u64, identity(stream)),
            None => {
                let mut address = 0u64;
                let out = &raw mut address;
                // SAFETY: this frame's own value.
                let below = || unsafe { next::cuMemAlloc_v2(out, size) };
                // SAFETY: as above, written by the call that succeeded.
                match self.obtain_direct(Class::Linear, Place::current(), size as u64, below, || unsafe { *out }) {
                    SUCCESS => Ok(address),
                    problem => Err(problem),
                }
            }
        };
        let address = self.engine.beside_captures(|| on_device(device, allocate))?;
        if self.engine.capturing() && is_capturing(stream) {
            lock(&self.engine.tensors.in_graphs).insert(address);
            self.engine.tensors.has_graphs.store(true, Ordering::Relaxed);
        }
        Ok(address)
    }

    pub fn free_for_stream(&self, address: u64, device: i32, stream: usize) {
        let tensors = &self.engine.tensors;
        let elsewhere = tensors.tells.load(Ordering::Relaxed) && lock(&tensors.recorded).remove(&address);
        if self.may_be_in_a_graph(address, stream) {
            return self.engine.keep_for_graph();
        }
        let stream = if elsewhere || self.engine.may_be_used_elsewhere() {
            None
        } else {
            identity(stream)
        };
        let free = || {
            let result = match self.free_pooled(address, stream) {
                Freed::Answer(result) => result,
                Freed::NotOurs(claim) => {
                    // SAFETY: what this allocator handed out and no pool has, the driver did.
                    self.give_back_claimed(claim, Key::Address(address), || unsafe { next::cuMemFree_v2(address) })
                }
            };
            if result == SUCCESS { Ok(0) } else { Err(result) }
        };
        if let Err(problem) = self.engine.beside_captures(|| on_device(device, free)) {
            tracing::error!("vramshim_torch_free({address:#x}): CUDA error {problem}");
        }
    }

    /// Whether a graph may use a block of this stream whenever it is launched: one that was allocated while the stream
    /// captured, or is freed by whoever captures.
    fn may_be_in_a_graph(&self, address: u64, stream: usize) -> bool {
        let tensors = &self.engine.tensors;
        tensors.has_graphs.load(Ordering::Relaxed) && lock(&tensors.in_graphs).contains(&address)
            || self.engine.captures_here()
            || self.engine.capturing() && is_capturing(stream)
    }

    /// A stream other than its own has used, or will use, the block at `address`.
    pub fn used_on(&self, address: u64) {
        let tensors = &self.engine.tensors;
        tensors.tells.store(true, Ordering::Relaxed);
        lock(&tensors.recorded).insert(address);
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

impl Engine {
    /// Whether a block may have been used on another stream without anybody telling.
    fn may_be_used_elsewhere(&self) -> bool {
        self.captures.streams_made.load(Ordering::Relaxed) && !self.tensors.tells.load(Ordering::Relaxed)
    }

    /// What a graph may use whenever it is launched stays allocated.
    fn keep_for_graph(&self) {
        if !self.tensors.kept_for_graphs.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a CUDA graph is captured with tensors from vramshim_torch_alloc: what is allocated or freed meanwhile stays \
                 allocated, because the graph may use it whenever it is launched"
            );
        }
    }
}
