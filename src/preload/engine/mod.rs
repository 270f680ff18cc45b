//! One call a request: ask the policy or the next layer, tell the ledger, write the journal.
//!
//! The engine starts at the first call that concerns memory, not before: the library is inherited by every child
//! process, and a program may still choose the strategy after it was loaded. A forked child starts its own.

pub mod call;
mod control;
mod pools;
mod routes;
mod scope;
mod start;
pub mod state;
mod thread;

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use tracing::{debug, info, warn};

use crate::engine::state::ledger::{Allocation, Key, Ledger};
use crate::engine::state::records::recorded;
use crate::next::{self, NOT_PERMITTED, SUCCESS};
use base::api::{Api, Class};
use base::cuda::{HOST_DEVICE, MAX_DEVICES};
use base::sync::lock;
use config::Config;
use journal::format::{Event, RawRecord};
use journal::writer::{Claim, Journal, Outcome};
use quota::Quota;

pub use call::linear::ArrayShape;
pub use control::{Limit, Stats};
pub use routes::handed_out;
pub use scope::runtime;
pub use start::{process_ends, running};

pub struct Engine {
    config: Config,
    /// `VRAMSHIM_STRICT` and a variable that cannot be used: every request for memory is refused.
    refuses: bool,
    pid: u32,
    ledger: Ledger,
    freeing: state::frees_in_flight::Freeing,
    journal: Option<Journal>,
    pools: pools::Pools,
    stream_ordered: call::stream_ordered::StreamOrdered,
    graphs: call::graphs::GraphMemory,
    physical: Mutex<call::vmm::Physical>,
    sharing: call::ipc::Sharing,
    peers: state::peers::Peers,
    captures: state::captures::Captures,
    /// What `vramshim_torch_*` has to remember.
    tensors: call::torch::Tensors,
    idle_watch: std::sync::Once,
    sightings: state::measurements::Sightings,
    quota: &'static Quota,
    /// Requests that failed for lack of memory, by device.
    refusals: [AtomicU64; MAX_DEVICES],
}

/// Where a request is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub device: i16,
    /// The current context; 0 for memory that outlives contexts.
    pub context: u64,
}

impl Place {
    pub const HOST: Place = Place {
        device: HOST_DEVICE,
        context: 0,
    };

    /// The calling thread's current context and its device, or the CUDA error that says why there is none (no context,
    /// or a driver that is shutting down).
    pub fn find() -> Result<Place, i32> {
        let mut context = std::ptr::null_mut();
        let mut device = 0;
        let checked = |result: i32| if result == SUCCESS { Ok(()) } else { Err(result) };
        // SAFETY: both are this frame's own values.
        unsafe {
            checked(next::cuCtxGetCurrent(&mut context))?;
            if context.is_null() {
                return Err(next::INVALID_CONTEXT);
            }
            checked(next::cuCtxGetDevice(&mut device))?;
        }
        Ok(Place {
            device: device as i16,
            context: context as u64,
        })
    }

    /// As `find`, where the real function will say what is wrong.
    pub fn current() -> Option<Place> {
        Place::find().ok()
    }

    pub fn without_context(self) -> Place {
        Place { context: 0, ..self }
    }
}

/// One request of the job on its way through the library.
pub struct Call {
    engine: &'static Engine,
    scope: scope::DriverScope,
}

/// Enters a driver function. `None` where the library stays out: switched off, or called by the next layer while it
/// serves a request of ours, which is counted already.
pub fn enter(api: Api) -> Option<Call> {
    let scope = scope::driver(api)?;
    Some(Call {
        engine: start::engine()?,
        scope,
    })
}

/// As `enter`, for functions that concern only memory already booked: they start nothing.
pub fn enter_running(api: Api) -> Option<Call> {
    let engine = running()?;
    Some(Call {
        engine,
        scope: scope::driver(api)?,
    })
}

/// As `enter`, for questions whose answers a limit changes: where there is none they start nothing.
pub fn enter_if_limited(api: Api) -> Option<Call> {
    match start::quota() {
        Some(quota) if quota.is_in_force() => enter(api),
        _ => enter_running(api),
    }
}

/// What the ledger keeps of `requested` bytes that took `reserved` from the layer below.
fn booking(class: Class, place: Place, requested: u64, reserved: u64) -> Allocation {
    let Place { device, context } = place;
    Allocation {
        class,
        device,
        context,
        requested,
        allocated: reserved,
        reserved,
    }
}

impl Call {
    /// The API the application called: the outermost one.
    fn api(&self) -> Api {
        self.scope.api()
    }

    /// Memory that `ask` obtains from the layer below, booked as `booked` says.
    fn obtain(
        &self,
        class: Class,
        place: Option<Place>,
        size: u64,
        ask: impl Fn() -> i32,
        booked: impl FnOnce() -> (Key, Allocation),
    ) -> i32 {
        self.obtain_at_most(class, place, size, size, ask, booked)
    }

    /// As `obtain`, where the layer below may take more than was asked for, but not more than `most`.
    fn obtain_at_most(
        &self,
        class: Class,
        place: Option<Place>,
        size: u64,
        most: u64,
        ask: impl Fn() -> i32,
        booked: impl FnOnce() -> (Key, Allocation),
    ) -> i32 {
        if self.engine.refuses {
            return NOT_PERMITTED;
        }
        // What stream-ordered memory takes is its pool's, and seen to there.
        let charged = match place {
            Some(place) if class.is_device_memory() && class != Class::Async => self.engine.grant(place.device, most),
            _ => self.engine.grant(HOST_DEVICE, 0),
        };
        let Ok(mut grant) = charged else {
            self.failed(class, place, size, next::OUT_OF_MEMORY);
            return next::OUT_OF_MEMORY;
        };
        let mut result = ask();
        if result == next::OUT_OF_MEMORY && place.is_some_and(|place| self.engine.release_idle(place.device) > 0) {
            result = ask();
        }
        if result == SUCCESS {
            let (key, allocation) = booked();
            grant.spend(allocation.reserved);
            self.book(key, allocation);
        } else {
            drop(grant);
            self.failed(class, place, size, result);
        }
        result
    }

    fn book(&self, key: Key, allocation: Allocation) {
        if let Some(stale) = self.engine.ledger.insert(key, allocation) {
            self.engine.refund_allocation(&stale);
        }
        self.engine
            .write(self.api(), allocation.device, Event::Alloc(recorded(key, &allocation)));
        self.engine.grew(allocation.device);
        self.engine.saw_device(allocation.device);
    }

    fn failed(&self, class: Class, place: Option<Place>, size: u64, result: i32) {
        let device = place.map_or(HOST_DEVICE, |place| place.device);
        self.engine.saw_device(device);
        self.engine.ledger.failed(device, class);
        let mut over_limit = false;
        if let Some(place) = place.filter(|_| result == next::OUT_OF_MEMORY && class.is_device_memory()) {
            if self.engine.is_limited(device, size) {
                over_limit = true;
            }
            self.engine.tell_out_of_memory(place, size);
        }
        let event = Event::AllocFailed {
            class: class.into(),
            requested: size,
            result,
            over_limit,
        };
        self.engine.write(self.api(), device, event);
    }

    /// Gives back what `key` names. The entry leaves the ledger, and the record takes its place in the journal, before
    /// the memory is free for anybody else.
    fn give_back(&self, key: Key, ask: impl FnOnce() -> i32) -> i32 {
        self.give_back_claimed(None, key, ask)
    }

    /// As `give_back`, with the place in the journal where it was taken already.
    fn give_back_claimed(&self, claim: Option<Claim>, key: Key, ask: impl FnOnce() -> i32) -> i32 {
        let _turn = self.engine.freeing.begin(key);
        let removed = self.engine.ledger.remove(key);
        let claim = claim.or_else(|| removed.and_then(|_| self.engine.claim()));
        let Some(allocation) = removed else {
            let result = ask();
            if let (SUCCESS, Some(journal)) = (result, &self.engine.journal)
                && key.value() != 0
            {
                journal.unknown_free();
            }
            // A place once taken is filled.
            if result != SUCCESS || claim.is_some() {
                self.free_failed(claim, key, result);
            }
            return result;
        };
        let result = ask();
        if result == SUCCESS {
            self.engine.refund_allocation(&allocation);
            self.engine.freed(claim, self.api(), key, &allocation, false);
        } else {
            self.engine.ledger.insert(key, allocation);
            self.free_failed(claim, key, result);
        }
        result
    }

    fn free_failed(&self, claim: Option<Claim>, key: Key, result: i32) {
        let claim = claim.or_else(|| self.engine.claim());
        let device = Place::current().map_or(HOST_DEVICE, |place| place.device);
        let event = Event::FreeFailed {
            address: key.value(),
            segment: None,
            result,
        };
        self.engine.commit(claim, self.api(), device, event);
    }
}

impl Call {
    /// Runs `ask`, then books what stream-ordered pools hold after it.
    pub fn then_refresh(&self, ask: impl FnOnce() -> i32) -> i32 {
        let result = ask();
        self.refresh_pools();
        result
    }
}

impl Engine {
    /// Inlined, so that each caller encodes the one kind of event that it has.
    #[inline(always)]
    fn write(&self, api: Api, device: i16, event: Event) {
        self.write_record(event.encode(api, device));
    }

    fn write_record(&self, record: RawRecord) {
        if let Some(journal) = &self.journal {
            self.told_of_loss(journal, journal.write(record));
        }
    }

    fn claim(&self) -> Option<Claim> {
        self.journal.as_ref().map(Journal::claim)
    }

    /// As `write`, in the slot that was claimed.
    #[inline(always)]
    fn commit(&self, claim: Option<Claim>, api: Api, device: i16, event: Event) {
        self.commit_record(claim, event.encode(api, device));
    }

    /// Records that an allocation of the ledger was freed; if `context_gone`, with its context.
    fn freed(&self, claim: Option<Claim>, api: Api, key: Key, freed: &Allocation, context_gone: bool) {
        let event = Event::Free {
            allocation: recorded(key, freed),
            context_gone,
        };
        self.commit(claim, api, freed.device, event);
    }

    fn commit_record(&self, claim: Option<Claim>, record: RawRecord) {
        if let (Some(journal), Some(claim)) = (&self.journal, claim) {
            self.told_of_loss(journal, journal.commit(claim, record));
        }
    }

    fn told_of_loss(&self, journal: &Journal, outcome: Outcome) {
        if let Outcome::Lost { first: true } = outcome {
            let (path, why) = (journal.path().display(), journal.loss_reason());
            warn!("journal {path} cannot grow: {why}; the job goes on, events are counted as lost until there is room");
        }
    }
}

/// The start line, worded as Paddle words it. Where nobody chose a strategy nothing changes, and nothing is said.
fn announce(config: &Config) {
    let name = config.strategy.log_name();
    if config.strategy_chosen {
        info!("Using {name} allocation strategy");
    } else {
        debug!("Using {name} allocation strategy");
    }
}
