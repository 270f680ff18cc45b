//! PyTorch's requests through `vramshim_torch_*`, which name a device and a stream.
//!
//! A block that was freed on a stream can be used on the same stream again at once, because work on one stream runs
//! in order. Other streams get it when events tell that the work is done. That holds only if it is known which
//! streams used the block. PyTorch reports uses on other streams (`record_stream`) only if it was given
//! `vramshim_torch_record_stream`. Until the first report, events of the whole context tell when a block of a job
//! that has created streams can be used again. Before CUDA 12.5 there are no such events, and its frees wait, as
//! `cuMemFree` does.
//!
//! `graphs` keeps blocks that CUDA graphs may use. `figures` counts tensors as PyTorch does, and `snapshot` lists them.

pub mod figures;
mod graphs;
mod snapshot;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once};

use crate::engine::call::linear::FreedPooled;
use crate::engine::call::refused_frees::refusal_of_any_free;
use crate::engine::pools::pool::Pool;
use crate::engine::state::allocation::Key;
use crate::engine::state::captures::{is_capturing, stream_key};
use crate::engine::state::location::Location;
use crate::engine::state::totals::Counter;
use crate::engine::{Call, Engine};
use crate::next::{self, STREAM_LEGACY, STREAM_PER_THREAD};
use base::api::Class;
use base::cancellation::Uncancelled;
use base::cuda::{CudaResult, DriverError, check};
use base::identity::thread_number;
use base::shortage::Allowance;
use base::sync::lock;
use base::units::size as in_units;
use figures::Figures;
use graphs::{Graphs, Left, PoolId};
use journal::writer::Claim;
use policy::UsedBy;

/// What is known of the tensors that live in memory of `vramshim_torch_alloc`.
#[derive(Default)]
pub struct TorchAllocator {
    /// By address of a block, the streams besides that of its free that have used it; `None` for one without an identity.
    used_elsewhere: Mutex<HashMap<u64, Vec<Option<u64>>>>,
    /// Whether there is any such block, readable without the lock.
    any_used_elsewhere: AtomicBool,
    /// Whether PyTorch reports such blocks: it has done so, and does not use another allocator since.
    pub reports_uses: AtomicBool,
    pub graphs: Graphs,
    warned_of_graphs: AtomicBool,
    pub figures: Figures,
}

/// The layer in front of the library, which must see the tensors: they are requests of the job. What the library asks of the
/// next layer, a layer in front does not count.
fn front() -> Option<&'static next::Front> {
    static TOLD: Once = Once::new();
    let front = next::layer_in_front().filter(|front| front.free.is_some())?;
    TOLD.call_once(|| {
        base::say::info!(
            "tensors are requested through {}, which stands before the library, so that its limit holds for them",
            front.path
        );
    });
    Some(front)
}

/// What is said of a block that any stream may use. Events tell of all work, if the next layer has them; otherwise the
/// free has to wait.
fn unknown_uses() -> UsedBy<'static> {
    if next::has_context_events() {
        UsedBy::Unknown
    } else {
        UsedBy::Awaited
    }
}

/// Tells of a free that failed. A job whose work has failed learns of it from CUDA, and then frees all its tensors.
#[inline]
fn report_failed_free(address: u64, freed: CudaResult) {
    if let Err(problem) = freed
        && !problem.is_fault()
    {
        let _uncancelled = Uncancelled::begin();
        base::say::error!("vramshim_torch_free({address:#x}): CUDA error {}", problem.0);
    }
}

impl Call {
    /// Runs `work` with a context of this device current: the current context if it is one, else the primary context. A
    /// primary context that was inactive stays retained, because a release would destroy it, and the memory with it.
    fn on_device<T>(&self, device: i32, work: impl FnOnce() -> CudaResult<T>) -> CudaResult<T> {
        let _uncancelled = Uncancelled::begin();
        if Location::current().is_some_and(|location| i32::from(location.device) == device) {
            return work();
        }
        let (context, was_active) = next::primary::retain(device)?;
        let result = next::in_context(context as u64, work);
        if was_active {
            // The job may have released the context meanwhile.
            // SAFETY: the argument is a number.
            let _ = self.primary_released(device, || check(unsafe { next::cuDevicePrimaryCtxRelease_v2(device) }));
        }
        result
    }

    /// The calls that a stream or a capture can need of the driver may end a cancelled thread.
    #[inline]
    fn uncancelled_on(&self, stream: usize) -> Option<Uncancelled> {
        let is_usual = matches!(stream, 0 | STREAM_LEGACY) && !next::has_green_contexts();
        (!is_usual || self.engine.state.captures.any_open()).then(Uncancelled::begin)
    }

    pub fn allocate_for_stream(&self, size: usize, device: i32, stream: usize) -> CudaResult<u64> {
        let _uncancelled = self.uncancelled_on(stream);
        self.stream.set(Some(stream));
        let torch = &self.engine.torch;
        self.may_have_memory()?;
        if let Some(limit) = torch.figures.exceeds(device, size as u64) {
            return Err(self.exceeds_fraction(limit, size as u64, device));
        }
        let captures = &self.engine.state.captures;
        let is_captured = captures.any_open() && is_capturing(stream);
        let again = if is_captured {
            torch.graphs.take_again(device, stream, size as u64)
        } else {
            None
        };
        let obtained = match again {
            Some(address) => Ok(address),
            None => {
                let _relaxed = captures.relax();
                match self.engine.pools.remembered_on(device) {
                    // The usual case. The context was looked up once.
                    Some(pool) => self.tensor_of(pool, size as u64, stream),
                    None => self.tensor_elsewhere(size, device, stream),
                }
            }
        };
        let address = obtained.inspect_err(|&problem| {
            if problem == DriverError::OUT_OF_MEMORY {
                torch.figures.out_of_memory(device);
            }
        })?;
        torch.figures.allocated(device, size as u64);
        if is_captured && again.is_none() && !torch.graphs.allocated(address, device, stream, size as u64) {
            torch.warn_of_graphs();
        }
        Ok(address)
    }

    /// Refuses a tensor beyond the limit of `allow_tensors`.
    #[cold]
    fn exceeds_fraction(&self, limit: u64, size: u64, device: i32) -> DriverError {
        let _uncancelled = Uncancelled::begin();
        let figures = &self.engine.torch.figures;
        let used = figures.allocated_now(device);
        let allowance = Allowance {
            limit,
            used,
            own: used,
            group: false,
        };
        let location = Location {
            device: device as i16,
            context: 0,
        };
        let problem = DriverError::OUT_OF_MEMORY;
        self.failed(Class::Linear, Some(location), size, problem, Some(allowance));
        figures.out_of_memory(device);
        problem
    }

    /// A block of this pool.
    #[inline]
    fn tensor_of(&self, pool: &'static Pool, size: u64, stream: usize) -> CudaResult<u64> {
        let identity = self
            .engine
            .state
            .live_streams
            .identity(stream, &self.engine.state.captures);
        let address = self.allocate_block(pool, size, |request| request.on(identity).patient())?;
        if let (STREAM_PER_THREAD, Some(identity)) = (stream, identity) {
            // The thread that frees the block may be another one, in which the handle names another stream.
            self.engine.torch.note_use(address, Some(identity));
        }
        Ok(address)
    }

    /// Memory for a thread that has no context of the device current, or whose context has no pool that it knows.
    #[cold]
    fn tensor_elsewhere(&self, size: usize, device: i32, stream: usize) -> CudaResult<u64> {
        self.on_device(device, || {
            if let Some(pool) = self.engine.pools.of_this_thread() {
                return self.tensor_of(pool, size as u64, stream);
            }
            let mut address = 0u64;
            let out = &raw mut address;
            // SAFETY: the pointer is to a variable of this frame.
            let ask = || unsafe {
                check(match front() {
                    Some(front) => (front.allocate)(out, size),
                    None => next::cuMemAlloc_v2(out, size),
                })
            };
            // SAFETY: as above; the call that succeeded has written it.
            let key = || Key::Address(unsafe { *out });
            self.obtain_direct(Class::Linear, Location::current(), size as u64, ask, key)?;
            Ok(address)
        })
    }

    pub fn free_for_stream(&self, address: u64, size: u64, device: i32, stream: usize) {
        let _uncancelled = self.uncancelled_on(stream);
        let torch = &self.engine.torch;
        torch.figures.freed(device, size);
        let mut used_elsewhere = None;
        if torch.any_used_elsewhere.load(Ordering::Relaxed) {
            used_elsewhere = lock(&torch.used_elsewhere).remove(&address);
        }
        if torch.graphs.keeps(address, used_elsewhere.is_none()) {
            return;
        }
        if self.is_captured(stream) {
            if !torch.graphs.freed_meanwhile(address, device) {
                torch.warn_of_graphs();
            }
            return;
        }
        // The usual case, a block that only its own stream has used, needs no list.
        let others: Option<Vec<u64>> = used_elsewhere.map_or(Some(Vec::new()), |others| others.into_iter().collect());
        let freed = {
            let _relaxed = self.engine.state.captures.relax();
            match self.engine.pools.remembered_on(device) {
                Some(_) => self.free_used_on(address, stream, others),
                None => self.on_device(device, || self.free_used_on(address, stream, others)),
            }
        };
        report_failed_free(address, freed);
    }

    /// `cuMemFreeAsync` of a block: the driver takes memory of `cuMemAlloc` too, and frees it in the stream's order
    /// (`free_async_of_alloc` in tests/assumptions). The caller has ordered all work that uses the block before that point of
    /// the stream. Waits for nothing.
    #[cold]
    pub(super) fn free_block_in_order(&self, address: u64, stream: usize) -> FreedPooled {
        let Some(pool) = self.engine.pools.possible_owner(address) else {
            return FreedPooled::NotPooled(None);
        };
        let current = Location::current();
        // Without a context the driver may refuse any free, as in a host function of a stream. cuda.h 13.0 names
        // INVALID_CONTEXT for default streams alone: another stream has a context of its own.
        let refusal = refusal_of_any_free(current, Some(stream));
        let is_of_context = refusal == Some(DriverError::INVALID_CONTEXT);
        if let Some(refusal) = refusal.filter(|_| !is_of_context || stream <= STREAM_PER_THREAD) {
            let result = Err(refusal);
            self.free_failed(None, Key::Address(address), result);
            return FreedPooled::Done(result);
        }
        let _relaxed = self.engine.state.captures.relax();
        let context = if stream <= STREAM_PER_THREAD {
            current.map_or(0, |current| current.context)
        } else {
            next::owner_of(next::context_of_stream(stream))
        };
        let owner = pool.location.context;
        let own = match context == owner {
            true => self.identity_of_live(stream),
            // A wait for the block's context says nothing of this stream.
            false => {
                if context != 0 {
                    self.engine.state.peers.note_user(context, owner);
                }
                None
            }
        };
        let used_by = match &own {
            Some(identity) => UsedBy::Streams(std::slice::from_ref(identity)),
            None => UsedBy::Unknown,
        };
        self.free_block_of(pool, address, used_by)
    }

    /// Frees a block that no graph may use, and that this stream and the `others` have used; `None` if any may have. Its
    /// device is current.
    #[inline(always)]
    fn free_used_on(&self, address: u64, stream: usize, others: Option<Vec<u64>>) -> CudaResult {
        let torch = &self.engine.torch;
        // Else a block may have been used on another stream without a report of it.
        let any_created = &self.engine.state.captures.any_stream_created;
        let own = self
            .identity_of_live(stream)
            .filter(|_| torch.reports_uses.load(Ordering::Relaxed) || !any_created.load(Ordering::Relaxed));
        let mut streams: Vec<u64> = Vec::new();
        let used_by = match (own.as_slice(), others) {
            ([], _) | (_, None) => unknown_uses(),
            (own, Some(others)) if others.iter().all(|other| own.contains(other)) => UsedBy::Streams(own),
            (own, Some(others)) => {
                streams.extend(others.iter().chain(own));
                streams.sort_unstable();
                streams.dedup();
                UsedBy::Streams(&streams)
            }
        };
        self.free_tensor(address, used_by)
    }

    /// Frees a block that no graph may use. Its device is current.
    #[inline(always)]
    fn free_tensor(&self, address: u64, used_by: UsedBy) -> CudaResult {
        // The thread has a current context here. Whose context that is does not matter for the memory of a pool.
        let owner = self.engine.pools.possible_owner(address);
        let freed = owner.map_or(FreedPooled::NotPooled(None), |pool| {
            self.free_block_of(pool, address, used_by)
        });
        match freed {
            FreedPooled::Done(result) => result,
            FreedPooled::NotPooled(claim) => self.free_direct_tensor(claim, address),
        }
    }

    /// Frees a tensor that is in no pool.
    #[cold]
    fn free_direct_tensor(&self, claim: Option<Claim>, address: u64) -> CudaResult {
        let _uncancelled = Uncancelled::begin();
        // SAFETY: this allocator handed the address out. No pool has it, so it came from the next layer, or through the layer
        // in front.
        let ask = || unsafe {
            check(match front().and_then(|front| front.free) {
                Some(free) => free(address),
                None => next::cuMemFree_v2(address),
            })
        };
        self.give_back_claimed(claim, Key::Address(address), ask, |_, refusal| Err(refusal))
    }

    /// Whether a block that is freed on this stream now may be used by a graph that is being captured.
    fn is_captured(&self, stream: usize) -> bool {
        let captures = &self.engine.state.captures;
        captures.open_in_this_thread() || captures.any_open() && is_capturing(stream)
    }

    /// A graph that was captured with this private pool of PyTorch is gone.
    pub fn graph_gone(&self, id: PoolId) {
        self.take_back(self.engine.torch.graphs.graph_gone(id));
    }

    /// A capture that has begun is that of the private pool which its thread has named.
    pub fn pool_gets_stream(&self, stream: usize) {
        self.engine
            .torch
            .graphs
            .stream_begins(stream_key(stream), thread_number());
    }

    /// The capture of this stream, or the one that the thread could not begin, has left no graph.
    pub fn capture_failed(&self, stream: Option<usize>) {
        let graphs = &self.engine.torch.graphs;
        self.take_back(graphs.capture_failed(stream.map(stream_key), thread_number()));
    }

    fn take_back(&self, left: Left) {
        for address in left.live {
            self.engine.torch.note_use(address, None);
        }
        for (address, device) in left.free {
            let _relaxed = self.engine.state.captures.relax();
            let freed = self.on_device(device, || self.free_tensor(address, unknown_uses()));
            report_failed_free(address, freed);
        }
    }

    /// A stream other than its own has used, or will use, the block at `address`.
    pub fn used_on_another_stream(&self, address: u64, stream: usize) {
        let torch = &self.engine.torch;
        // The default stream of a context that the block does not belong to has no identity of its own.
        let is_default = matches!(stream, 0 | STREAM_LEGACY);
        let owner = self.engine.pools.possible_owner(address).map(|pool| pool.location);
        let identity = if is_default && owner.is_some() && Location::current() != owner {
            None
        } else {
            self.identity_of_live(stream)
        };
        torch.reports_uses.store(true, Ordering::Relaxed);
        torch.note_use(address, identity);
    }

    /// The identity of a stream, on which events can be recorded from now on.
    #[inline]
    fn identity_of_live(&self, stream: usize) -> Option<u64> {
        let state = self.engine.state;
        let streams = &state.live_streams;
        let identity = streams.identity(stream, &state.captures)?;
        streams.note(identity, stream);
        Some(identity)
    }

    /// Why PyTorch gets no memory. The text begins as PyTorch's own, by which programs know such an error.
    pub fn explain_refusal(&self, size: u64, device: i32, DriverError(problem): DriverError) -> String {
        if problem != DriverError::OUT_OF_MEMORY.0 {
            return format!(
                "CUDA error {problem}: vramshim_torch_alloc could not allocate {size} bytes on GPU {device}"
            );
        }
        let mut text = format!(
            "CUDA out of memory. Tried to allocate {} on GPU {device}",
            in_units(size)
        );
        if let Ok(held) = self.on_device(device, || Ok(self.engine.held_at_a_shortage(device as i16, size))) {
            let _ = write!(text, ": {held}");
        }
        if let Some(allowed) = self.engine.torch.figures.exceeds(device, size) {
            let _ = write!(
                text,
                "; torch.cuda.set_per_process_memory_fraction allows tensors {}",
                in_units(allowed)
            );
        }
        text
    }
}

impl Engine {
    /// The answer to `torch._C._cuda_memoryStats` as JSON.
    pub fn torch_stats(&self, device: i32) -> String {
        let ordinal = device as i16;
        let reserved = self.state.ledger.device(ordinal).linear.read();
        let free_inside = self.pools.free_inside(ordinal).0;
        self.torch.figures.as_json(device, reserved, free_inside)
    }

    pub fn torch_reset_peaks(&self, device: i32) {
        self.torch.figures.reset_peaks(device);
        self.state
            .ledger
            .device(device as i16)
            .linear
            .0
            .iter()
            .for_each(Counter::reset_peak);
    }

    pub fn torch_reset_sums(&self, device: i32) {
        self.torch.figures.reset_sums(device);
        self.state
            .ledger
            .device(device as i16)
            .linear
            .0
            .iter()
            .for_each(Counter::reset_sums);
    }
}

impl TorchAllocator {
    #[cold]
    fn note_use(&self, address: u64, stream: Option<u64>) {
        self.any_used_elsewhere.store(true, Ordering::Relaxed);
        lock(&self.used_elsewhere).entry(address).or_default().push(stream);
    }

    /// Says once that tensors of a graph stay allocated: PyTorch has not named the private pool of the graph, so PyTorch will
    /// not report that the graph is gone.
    fn warn_of_graphs(&self) {
        if !self.warned_of_graphs.swap(true, Ordering::Relaxed) {
            base::say::warn!(
                "a CUDA graph is captured with tensors from vramshim_torch_alloc: what is allocated or freed meanwhile \
                 stays allocated, because the graph may use it whenever it is launched"
            );
        }
    }
}
