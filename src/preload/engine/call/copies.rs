//! Copies between devices.
//!
//! The driver copies memory of `cuMemAlloc` between any two devices, with peer access or without. Mapped memory it
//! copies only if the device that copies has access to it; otherwise clients must call `cuMemcpyPeer`, which names the
//! contexts of both ends (llama.cpp#4620; PyTorch's `CUDACachingAllocator::memcpyAsync`). Jobs take a block for memory
//! of `cuMemAlloc`. So a copy with an end in mapped memory that the current device cannot reach is forwarded as the
//! peer copy of the same bytes on the same stream. `cuMemcpyPeer` needs no peer access, because the driver copies by
//! way of the host if it must.
//!
//! Access for all devices at mapping time would cost a call of the driver for each handle and device, would not work
//! between devices that cannot be peers, and would let kernels write where the driver stops them. It remains for CUDA
//! graphs and batches: a peer copy cannot be captured (JohannesGaessler/llama.cpp#5). Before a copy becomes a node of a
//! graph, the device that will copy gets access to the pool of the other end, once.

use std::sync::Once;

use crate::engine::Call;
use crate::engine::state::allocation::Key;
use crate::engine::state::captures::{is_capturing, relaxed};
use crate::engine::state::location::Location;
pub use crate::engine::state::operations::are_watched;
use crate::next::{self, CUcontext, Copy3d, Side};
use base::cuda::{CudaResult, DriverError, STREAM_PER_THREAD, check};

/// Where an operation is in the order of work: on the default stream, and the call may wait for it, or on a stream.
#[derive(Clone, Copy)]
pub struct Order {
    pub stream: Option<usize>,
    /// The variant of the function whose default stream is that of the thread.
    pub per_thread: bool,
}

impl Order {
    /// The context whose device copies. A copy may be given to a stream of a context that is not current.
    fn context(self) -> Option<u64> {
        let stream = self.stream.filter(|&stream| stream > STREAM_PER_THREAD);
        let context = match stream {
            None => next::current_context().ok()? as u64,
            Some(stream) => next::context_of_stream(stream),
        };
        (context != 0).then_some(context)
    }

    fn is_captured(self) -> bool {
        self.stream.is_some_and(is_capturing)
    }
}

/// Where one end of a copy lies, as the job named it.
#[derive(Clone, Copy)]
pub enum Place {
    Address(u64),
    Array(u64),
}

/// One end of a copy, if it is memory of a device.
#[derive(Clone, Copy)]
struct End {
    location: Location,
    /// A policy mapped it.
    mapped: bool,
}

impl End {
    fn context(self) -> CUcontext {
        self.location.context as CUcontext
    }
}

impl Call {
    /// A copy of bytes side by side. `below` forwards it as it is, and `peer` as a copy between two contexts.
    pub fn copy(
        &self,
        to: u64,
        from: u64,
        order: Order,
        below: impl FnOnce() -> CudaResult,
        peer: impl FnOnce(CUcontext, CUcontext) -> CudaResult,
    ) -> CudaResult {
        let result = match self.crossing([Place::Address(to), Place::Address(from)], order) {
            Some((device, ends)) if order.is_captured() => self.give_access(device, ends).and_then(|()| below()),
            Some((_, ends)) => peer(ends[0].context(), ends[1].context()),
            None => below(),
        };
        self.end_copy(&[to, from], order, result)
    }

    /// As `copy`, for rows and slices. `copy` is `None` if the job gave a null pointer, which the next layer reports.
    pub fn copy_3d(
        &self,
        copy: Option<Copy3d>,
        order: Order,
        below: impl FnOnce() -> CudaResult,
        peer: impl FnOnce(*const Copy3d) -> CudaResult,
    ) -> CudaResult {
        let Some(mut copy) = copy else { return below() };
        let result = match places_of(&copy).and_then(|places| self.crossing(places, order)) {
            Some((device, ends)) if order.is_captured() => self.give_access(device, ends).and_then(|()| below()),
            Some((_, ends)) => {
                copy.to.between_contexts(ends[0].context());
                copy.from.between_contexts(ends[1].context());
                peer(&copy)
            }
            None => below(),
        };
        self.end_copy(&[copy.to.address(), copy.from.address()], order, result)
    }

    fn end_copy(&self, addresses: &[u64], order: Order, result: CudaResult) -> CudaResult {
        match order.stream {
            None => self.end_synchronous(addresses, order.per_thread, result),
            Some(_) => result,
        }
    }

    /// A copy between an address and an array, with attributes, or in a batch, for which there is no form between contexts.
    pub fn copy_without_peer_form(&self, places: [Place; 2], order: Order) -> CudaResult {
        match self.crossing(places, order) {
            Some((device, ends)) => self.give_access(device, ends),
            None => Ok(()),
        }
    }

    /// A copy that becomes a node of a graph, or replaces that of a node. It will run in `context`; `None` if that is the
    /// node's own, which the call does not tell. Then either device may be the one that copies.
    pub fn copy_node(&self, places: [Place; 2], context: Option<CUcontext>) -> CudaResult {
        let known = context.filter(|context| !context.is_null());
        let current = || next::current_context().ok().filter(|context| !context.is_null());
        // A thread without a context may change graphs.
        let of_an_end = || {
            let end = places.iter().find_map(|&place| self.end_of_ours(place));
            end.map(|end| end.location.context)
        };
        let runs_in = || known.or_else(current).map(|context| context as u64).or_else(of_an_end);
        let Some((here, ends)) = self.ends(places, runs_in) else {
            return Ok(());
        };
        self.give_access(here.device, ends)?;
        match context {
            Some(_) => Ok(()),
            None => ends
                .iter()
                .try_for_each(|end| self.give_access(end.location.device, ends)),
        }
    }

    /// The ends of a copy with mapped memory of a policy, and where it is made. `None` if no end is such memory, or an
    /// end is host memory.
    fn ends(&self, places: [Place; 2], context: impl FnOnce() -> Option<u64>) -> Option<(Location, [End; 2])> {
        let [to, from] = places.map(|place| self.end_of_ours(place));
        if ![to, from].into_iter().flatten().any(|end| end.mapped) {
            return None;
        }
        let context = context()?;
        let mut known = [to, from].into_iter().flatten().map(|end| end.location);
        let here = match known.find(|known| known.context == context) {
            Some(known) => known,
            None => Location {
                device: next::device_of_context(context)?,
                context,
            },
        };
        let other = |place| self.end_elsewhere(place, here);
        let ends = [to.or_else(|| other(places[0]))?, from.or_else(|| other(places[1]))?];
        Some((here, ends))
    }

    /// The ends of a copy that the device which copies cannot reach, and that device. `None` if it can reach both, or
    /// if the copy concerns no mapped memory of a policy.
    fn crossing(&self, places: [Place; 2], order: Order) -> Option<(i16, [End; 2])> {
        let (here, ends) = self.ends(places, || order.context())?;
        let peers = &self.engine.state.peers;
        let is_near = |end: &End| end.location.device == here.device || peers.may_use(here, end.location);
        (!ends.iter().all(is_near)).then_some((here.device, ends))
    }

    /// An end in a pool, or in a block of another process.
    fn end_of_ours(&self, place: Place) -> Option<End> {
        let Place::Address(address) = place else { return None };
        if let Some(pool) = self.engine.pools.possible_owner(address) {
            return Some(End {
                location: pool.location,
                mapped: pool.maps_memory(),
            });
        }
        let (location, mapped) = self.engine.sharing.imports.location_of(address)?;
        Some(End { location, mapped })
    }

    /// An end outside of the pools. `None` if it is no memory of a device.
    fn end_elsewhere(&self, place: Place, here: Location) -> Option<End> {
        let location = match place {
            Place::Array(array) => {
                let allocation = self.engine.state.ledger.get(Key::Object(array))?;
                Location {
                    device: allocation.device,
                    context: allocation.context,
                }
            }
            Place::Address(address) => location_of(address, here)?,
        };
        Some(End {
            location,
            mapped: false,
        })
    }

    /// Gives a device access to the mapped memory of the ends. An error if the two cannot be peers: the copy would fail
    /// while it runs, and break the context.
    fn give_access(&self, user: i16, ends: [End; 2]) -> CudaResult {
        for end in ends {
            let owner = end.location.device;
            if !end.mapped || owner == user {
                continue;
            }
            if !next::can_access_peer(i32::from(user), i32::from(owner)) {
                warn_of_copies(user, owner);
                return Err(DriverError::NOT_SUPPORTED);
            }
            self.engine.state.peers.note_copies(user, owner);
            relaxed(|| self.engine.allow_peers(owner));
        }
        Ok(())
    }
}

/// The ends of a copy of rows. `None` if one is host memory.
pub fn places_of(copy: &Copy3d) -> Option<[Place; 2]> {
    Some([place_of(&copy.to)?, place_of(&copy.from)?])
}

fn place_of(side: &Side) -> Option<Place> {
    match side.kind {
        Side::ARRAY => Some(Place::Array(side.array as u64)),
        Side::DEVICE | Side::UNIFIED => Some(Place::Address(side.address())),
        _ => None,
    }
}

/// The device and context of memory that the driver knows. Managed memory can be reached from everywhere, so it is
/// where the caller is.
fn location_of(address: u64, here: Location) -> Option<Location> {
    // Context, memory type, managed, device.
    let mut attributes = [1u32, 2, 8, 9];
    let (mut context, mut kind, mut is_managed, mut device) = (0u64, 0u32, 0u32, -1i32);
    let mut values = [
        (&raw mut context).cast(),
        (&raw mut kind).cast(),
        (&raw mut is_managed).cast(),
        (&raw mut device).cast(),
    ];
    let count = attributes.len() as u32;
    next::retried(|| {
        // SAFETY: both arrays have `count` elements, and each value is at least as large as its attribute.
        check(unsafe { next::cuPointerGetAttributes(count, attributes.as_mut_ptr(), values.as_mut_ptr(), address) })
    })
    .ok()?;
    if is_managed & 0xff != 0 {
        return Some(here);
    }
    if kind != Side::DEVICE || device < 0 {
        return None;
    }
    let device = device as i16;
    let context = match context {
        // Memory that belongs to no context, such as that of a memory pool.
        0 if device == here.device => here.context,
        0 => next::active_primary_context(i32::from(device))? as u64,
        context => context,
    };
    Some(Location { device, context })
}

fn warn_of_copies(user: i16, owner: i16) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        base::say::warn!(
            "a CUDA graph, a batch or a copy with attributes is between devices {owner} and {user}, which cannot be peers: memory that \
             auto_growth maps cannot be copied so, and the call answers CUDA error 801; run the job with FLAGS_allocator_strategy=naive_best_fit"
        );
    });
}
