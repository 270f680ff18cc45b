//! What the job asks of its pools: blocks, frees, and questions about addresses.
//!
//! A request takes one lock, that of its pool. Only the policy lists the live blocks of a pool; the ledger knows their
//! sum.

use std::collections::HashMap;
use std::time::Instant;

use super::Pools;
use super::growth::Growth;
use super::leaving::UntilReturned;
use super::patience::{self, Ended, Patience};
use super::pool::Pool;
use crate::engine::state::location::Location;
use base::cancellation::Uncancelled;
use base::cuda::{CudaResult, DriverError};
use base::mutant;
use policy::device_memory::DeviceMemory;
use policy::{
    After, Backing, Block, Due, Holder, Policy, Request, Step, UnderWayTicket, UsedBy, WaitTicket, first_step,
    serve_on, slabs, work_off,
};

/// How often a request that found no memory looks for what other threads are giving back.
const ROUNDS_OF_RETURNS: u32 = 3;

/// What a free still waits for.
pub enum Awaited {
    /// The work that may use the block.
    Work(WaitTicket),
    /// The driver, which gets the block's segment back, and waits for that work itself.
    Return(Due<'static>),
}

/// The rest of a free. Until this is dropped, the job may ask about the block.
pub type Unfinished = (Awaited, UntilReturned);

/// The outcome of a request to free.
pub enum Freed {
    /// The block is free, and clean when the wait has ended. `None` if there is no wait.
    Block(Block, Option<Unfinished>),
    /// The address lies in memory of the pool, but no live block begins there.
    NoBlock,
    /// The address does not lie in memory of the pool.
    NotPooled,
}

fn lacks_memory(result: &CudaResult<Block>) -> bool {
    *result == Err(DriverError::OUT_OF_MEMORY)
}

impl Pool {
    /// A block of this very pool.
    #[inline(always)]
    fn allocate(&'static self, request: Request) -> CudaResult<Block> {
        let got = |block: &Block| {
            let totals = self.state.ledger.device(self.location.device);
            totals.block_obtained(&self.usage, block);
        };
        let mut request = request.during_capture(self.state.captures.any_open());
        match first_step(self, &mut request, got)? {
            // The usual case: a free block serves the request.
            Step::Done(answer, None) => answer,
            step => self.with_memory(|memory| serve_on(self, memory, request, got, step)),
        }
    }

    /// The same, unless the context's work has failed. If a call tells of a fault meanwhile, that is the driver's answer, and
    /// not what the policy makes of it.
    #[inline(always)]
    fn allocate_without_fault(&'static self, request: Request) -> CudaResult<Block> {
        self.check_fault()?;
        let result = self.allocate(request);
        result.map_err(|problem| self.check_fault().err().unwrap_or(problem))
    }

    #[cold]
    fn allocate_again(&'static self, request: Request) -> CudaResult<Block> {
        self.allocate_without_fault(request)
    }

    /// Frees the block that begins at `address`. What it still waits for is for the caller to `finish`, if the block is
    /// awaited.
    pub fn free(&'static self, address: u64, used_by: UsedBy) -> Freed {
        let is_awaited = used_by == UsedBy::Awaited;
        let freed = self.with_policy(|policy| {
            // To the policy a slab is a live block, but the job did not allocate it.
            if self.has_lent(address) {
                return Ok((Freed::NoBlock, None));
            }
            let Some(block) = policy.free(address, used_by) else {
                let is_pooled = self.parent.is_some() || policy.owns(address);
                return Ok((if is_pooled { Freed::NoBlock } else { Freed::NotPooled }, None));
            };
            self.usage.returned(&block);
            let (awaited, due) = match Due::next(self, policy, After::free(used_by)) {
                Some(due) if is_awaited && due.work.gives_back() => (Some(Awaited::Return(due)), None),
                due => {
                    let ticket = is_awaited.then(|| policy.begin_wait()).flatten();
                    (ticket.map(Awaited::Work), due)
                }
            };
            let unfinished = awaited.map(|awaited| (awaited, self.leaving.note(&block)));
            Ok((Freed::Block(block, unfinished), due))
        });
        // An error means that the pool's context is gone.
        let (freed, due) = freed.unwrap_or((Freed::NotPooled, None));
        if let Some(due) = due {
            self.work_off(due);
        }
        freed
    }

    /// Waits for what a free still waits for; returns the driver's answer.
    pub fn finish(&'static self, unfinished: Unfinished) -> CudaResult {
        let (awaited, _until_returned) = unfinished;
        let ticket = match awaited {
            Awaited::Work(ticket) => Some(ticket),
            // If the driver did not take it, it is still memory of the pool.
            Awaited::Return(due) => (self.work_off(due) == 0).then(|| self.begin_wait()).flatten(),
        };
        let Some(ticket) = ticket else { return Ok(()) };
        // Mutant 1: an early reuse.
        if mutant::is(1) || self.wait_for_users()? {
            self.end_wait(ticket);
        }
        Ok(())
    }

    #[cold]
    fn work_off(&'static self, due: Due<'static>) -> u64 {
        self.with_memory(|memory| work_off(self, memory, Some(due)))
    }

    /// Changes the policy, and does the work that becomes due.
    fn change(&'static self, change: impl FnOnce(&mut Policy)) {
        let due = self.with_policy(|policy| {
            change(policy);
            Ok(Due::next(self, policy, After::Free))
        });
        // If the context is gone meanwhile, nothing is left to do.
        if let Some(due) = due.ok().flatten() {
            self.work_off(due);
        }
    }

    fn begin_wait(&'static self) -> Option<WaitTicket> {
        self.with_policy(|policy| Ok(policy.begin_wait())).ok().flatten()
    }

    /// A wait for all work that may use memory of this pool has ended.
    pub fn end_wait(&'static self, ticket: WaitTicket) {
        self.change(|policy| policy.end_wait(ticket));
    }

    /// What the policy answers; no if the context is gone.
    fn says(&'static self, ask: impl FnOnce(&Policy) -> bool) -> bool {
        self.with_policy(|policy| Ok(ask(policy))).unwrap_or(false)
    }

    /// Whether the device has so much memory at all.
    fn may_ever_serve(&'static self, size: u64) -> bool {
        let available = Growth { pool: self }.available();
        available.is_ok_and(|available| size <= available.total)
    }

    /// See `Growth::wait_for_users`.
    pub fn wait_for_users(&'static self) -> CudaResult<bool> {
        Growth { pool: self.root() }.wait_for_users()
    }
}

/// What became of a device's memory that held no live block.
#[derive(Default)]
pub(super) struct Reclaimed {
    /// Whether dirty memory became clean.
    cleaned: bool,
    /// Bytes that went back to the next layer.
    pub(super) given_back: u64,
    /// Whether memory stayed because of work.
    pub(super) refused: bool,
}

/// Waits that have begun in pools.
pub struct Waits(Vec<(&'static Pool, WaitTicket)>);

impl Waits {
    /// The work that was submitted before the waits began is done.
    pub fn end(self) {
        for (pool, ticket) in self.0 {
            pool.end_wait(ticket);
        }
    }
}

impl Pools {
    /// A block of `pool`, which serves the calling thread; a large one of its context's pool. If that pool has no memory,
    /// idle memory is given back: that of all contexts, that of the driver's pools, and that of other processes. Then the
    /// other pools of the context are asked, and at last the policy does what it only does before out of memory.
    #[inline]
    pub fn allocate(&self, pool: &'static Pool, request: Request) -> CudaResult<Block> {
        let is_small = request.bytes <= slabs::LARGEST_REQUEST_BYTES;
        let first = if is_small { pool } else { pool.root() };
        let result = first.allocate_without_fault(request);
        if lacks_memory(&result) {
            return self.allocate_elsewhere(first, request, result);
        }
        result
    }

    /// Goes on with a request for which `first` has no memory, as its `result` says.
    #[cold]
    fn allocate_elsewhere(
        &self,
        first: &'static Pool,
        request: Request,
        mut result: CudaResult<Block>,
    ) -> CudaResult<Block> {
        let _uncancelled = Uncancelled::begin();
        let (size, root) = (request.bytes, first.root());
        let device = root.location.device;
        let from = |pool: &'static Pool| pool.allocate_again(request);
        if first.parent.is_some() {
            // The context's pool may have room for the request, but not for a slab.
            result = from(root);
        }
        if lacks_memory(&result) && !root.may_ever_serve(size) {
            return result;
        }
        let patience = if request.is_patient {
            Patience::Unbounded
        } else {
            Patience::Bounded
        };
        let after_release = |wanted: u64| {
            let may_help = self.make_room(device, patience, wanted) || root.has_subpools();
            may_help.then(|| from(root))
        };
        let of_subpools = || {
            let is_small = size <= slabs::LARGEST_REQUEST_BYTES;
            let pools = if is_small { root.subpools() } else { Vec::new() };
            pools.into_iter().map(from).find(|answer| !lacks_memory(answer))
        };
        let steps: [&dyn Fn() -> Option<CudaResult<Block>>; 7] = [
            &|| after_release(size),
            &|| after_release(u64::MAX),
            &|| {
                let captures = &self.state.captures;
                captures.run_between(|| after_release(u64::MAX).unwrap_or_else(|| from(root)))
            },
            &|| (self.trim_driver_pools(device) > 0).then(|| from(root)),
            &|| self.ask_others(device, size).then(|| from(root)),
            &of_subpools,
            &|| {
                root.says(Policy::has_last_resort)
                    .then(|| root.allocate_again(request.at_last()))
            },
        ];
        for step in steps {
            if lacks_memory(&result) {
                result = step().unwrap_or(result);
            }
        }
        result
    }

    /// What the policy whose memory may hold `address` answers.
    fn ask_owner<T>(&self, address: u64, ask: impl FnOnce(&Policy) -> Option<T>) -> Option<T> {
        let pool = self.possible_owner(address)?;
        ask(pool.policy.policy.lock().as_ref()?)
    }

    /// The live block that holds `address`. What a block has beyond the bytes that were requested is no memory of the
    /// job's, as in the driver (`behind_the_end_of_alloc` in tests/assumptions).
    pub fn block_at(&self, address: u64) -> Option<Block> {
        self.ask_owner(address, |policy| policy.find(address))
            .filter(|block| block.has(address))
    }

    /// The block that holds `address` and whose free has not returned: first address and bytes. Asked after `block_at`.
    pub fn leaving_at(&self, address: u64) -> Option<(u64, u64)> {
        self.possible_owner(address)?.leaving.at(address)
    }

    /// The live block that holds `address`, its device and context, and the memory behind it.
    pub fn backing_at(&self, address: u64) -> Option<(Location, Block, Backing)> {
        let pool = self.possible_owner(address)?;
        let policy = pool.policy.policy.lock();
        let policy = policy.as_ref()?;
        let block = policy.find(address).filter(|block| block.has(address))?;
        let backing = match pool.parent {
            None => policy.backing(&block),
            Some(parent) => parent.policy.policy.lock().as_ref()?.backing(&block),
        };
        Some((pool.location, block, backing?))
    }

    /// Whether `address` lies in memory of a pool, in a live block or not.
    pub fn is_pooled(&self, address: u64) -> bool {
        self.ask_owner(address, |policy| Some(policy.owns(address)))
            .unwrap_or(false)
    }

    /// Gives the peers of a device access to all memory that its pools have mapped.
    pub fn allow_peers(&self, device: i16) {
        for pool in self.of_device(device) {
            // Only mapped memory needs this. The driver itself gives access to memory that it allocated. The pool maps
            // nothing meanwhile.
            let allow = || {
                let _growing = pool.growing()?;
                let mapped = pool.with_policy(|policy| Ok(policy.virtual_memory()))?;
                Growth { pool }.grant_access(mapped)
            };
            let allow_again = |_| {
                // What another thread was giving back was mapped no more, and is gone now.
                pool.policy.wait_for_returns(patience::LONGEST_WAIT);
                allow()
            };
            let allowed = (1..ROUNDS_OF_RETURNS).fold(allow(), |allowed, _| allowed.or_else(allow_again));
            if let Err(DriverError(problem)) = allowed {
                base::say::warn!(
                    "cuCtxEnablePeerAccess: memory of device {device} stays invisible to its peers (CUDA error \
                     {problem}); run the job with VRAMSHIM_STRATEGY=naive_best_fit"
                );
            }
        }
    }

    /// Gives memory of a device without live blocks back to the next layer; returns bytes. Waits for the work that may
    /// use free memory.
    pub fn release_idle(&self, device: i16) -> u64 {
        self.reclaim(device, Patience::Trim, u64::MAX).given_back
    }

    /// The same for a caller that found no memory, as far as so many bytes are `wanted`. Returns whether there may be some now.
    pub fn make_room(&self, device: i16, patience: Patience, wanted: u64) -> bool {
        let until = Instant::now() + patience::LONGEST_WAIT;
        let returned = |pool: &'static Pool| {
            let left = until.saturating_duration_since(Instant::now());
            pool.policy.wait_for_returns(left)
        };
        let mut may_help = false;
        for _ in 0..ROUNDS_OF_RETURNS {
            let Reclaimed {
                cleaned, given_back, ..
            } = self.reclaim(device, patience, wanted);
            may_help |= cleaned || given_back > 0;
            // Another thread may be giving memory back, so that this one has not found it. The keeper gives up where a request
            // waits longer; then the memory is in the pool again, and this thread finds it in the next round.
            let pools = self.of_device(device).into_iter();
            if !pools.map(returned).fold(false, |waited, one| waited | one) {
                break;
            }
            may_help = true;
        }
        may_help
    }

    /// Makes a request of the next layer for `size` bytes of a device again as long as `lacks_memory` says that its result,
    /// at first `first`, is for lack of memory: after this process has made room, after the driver's pools have, and then
    /// after other processes have.
    pub fn find_room<T>(
        &self,
        device: i16,
        size: u64,
        first: T,
        lacks_memory: impl Fn(&T) -> bool,
        again: impl Fn() -> T,
    ) -> T {
        let steps: [&dyn Fn() -> bool; 3] = [
            &|| self.make_room(device, Patience::Bounded, u64::MAX),
            &|| self.trim_driver_pools(device) > 0,
            &|| self.ask_others(device, size),
        ];
        let mut result = first;
        for makes_room in steps {
            if lacks_memory(&result) && makes_room() {
                result = again();
            }
        }
        result
    }

    /// Waits until the free memory of a device is clean, and gives back what holds no live block. Does nothing while a
    /// capture is open. Not much more goes back than so many bytes that are `wanted`.
    pub(super) fn reclaim(&self, device: i16, patience: Patience, wanted: u64) -> Reclaimed {
        let mut reclaimed = Reclaimed::default();
        if self.state.captures.any_open() {
            return reclaimed;
        }
        for root in self.of_device(device) {
            let Some(_visit) = self.visit(root) else { continue };
            let waits = self.begin_waits(root);
            if waits.is_none() && !root.family().any(|pool| pool.says(Policy::has_idle)) {
                continue;
            }
            let ended = match patience {
                Patience::Bounded => root.wait_briefly(),
                Patience::ForOthers => root.wait_for_others(),
                // Clean memory is waited for where it goes back by a free (`wait_before_free`).
                Patience::Unbounded | Patience::Trim | Patience::Background => {
                    if waits.is_none() || root.wait_for_users() == Ok(true) {
                        Ended::All
                    } else {
                        Ended::Nothing
                    }
                }
            };
            // What is clean already goes back to another process, whatever runs here.
            let gives_all = ended == Ended::All || patience == Patience::ForOthers;
            if ended == Ended::Nothing && !gives_all {
                continue;
            }
            if let Some(waits) = waits.filter(|_| ended != Ended::Nothing) {
                waits.end();
                reclaimed.cleaned = true;
            }
            if gives_all {
                let wanted = wanted.saturating_sub(reclaimed.given_back);
                let release = |one: &'static Pool| one.with_memory(|memory| policy::release_idle(one, memory, wanted));
                // The last is the pool of the context. What that gives back reaches the next layer, and what subpools give
                // back serves requests of it.
                let give = || {
                    root.family()
                        .map(release)
                        .fold((0, 0), |(lent, last), bytes| (lent + last, bytes))
                };
                let ((lent, given_back), refused) = patience.while_giving(give);
                reclaimed.cleaned |= lent > 0;
                reclaimed.given_back += given_back;
                reclaimed.refused |= refused;
            }
        }
        reclaimed
    }

    /// Until the result is dropped, no thread destroys the pool's context, but one may release or reset it if it is a
    /// primary context. `None` if that has begun.
    fn visit(&self, root: &'static Pool) -> Option<UnderWayTicket<'static>> {
        let visit = root.visits.begin();
        let contexts = self.registry.contexts();
        let known = contexts.get(&root.location.context);
        known.is_some_and(|known| std::ptr::eq(*known, root)).then_some(visit)
    }

    /// Whether memory of a device is kept from requests by work that has not ended.
    pub fn has_stuck_work(&self, device: i16) -> bool {
        self.of_device(device).into_iter().any(Pool::has_stuck_work)
    }

    /// Begins a wait in each pool of a context that has dirty memory. `None` if there is no such pool.
    fn begin_waits(&self, root: &'static Pool) -> Option<Waits> {
        let begin = |pool: &'static Pool| pool.begin_wait().map(|ticket| (pool, ticket));
        let begun: Vec<_> = root.family().filter_map(begin).collect();
        (!begun.is_empty()).then_some(Waits(begun))
    }

    /// The last open capture has ended. Events can be recorded again on the streams of what was freed meanwhile.
    pub fn captures_over(&self) {
        for pool in self.select(|_| true).into_iter().flat_map(Pool::family) {
            pool.change(|policy| policy.want_events());
        }
    }

    /// The job is about to wait for all work of a context. `None` if that cleans no memory of pools.
    pub fn context_waits(&self, context: u64) -> Option<Waits> {
        let root = *self.registry.contexts().get(&context)?;
        let has_peers = !self.state.peers.users_of(context).is_empty();
        if has_peers { None } else { self.begin_waits(root) }
    }

    /// For each device with a pool, a number that changes with every block obtained or returned.
    pub fn activity(&self) -> HashMap<i16, u64> {
        let mut sums = HashMap::new();
        for pool in self.select(|_| true) {
            let sum: &mut u64 = sums.entry(pool.location.device).or_default();
            *sum = pool
                .family()
                .map(|pool| pool.usage.activity())
                .fold(*sum, u64::wrapping_add);
        }
        sums
    }

    /// Bytes that lie free in the pools of a device, all contexts together, and the largest free block.
    pub fn free_inside(&self, device: i16) -> (u64, u64) {
        let (mut free, mut largest) = (0, 0);
        for root in self.of_device(device) {
            // All locks at the same time, so that no slab is missed or counted twice while it changes hands. The parent's
            // lock comes last, as always.
            let family: Vec<_> = root.family().map(|pool| pool.policy.policy.lock()).collect();
            for one in family.iter().filter_map(|policy| policy.as_ref()) {
                let one = one.statistics();
                free += one.free;
                largest = largest.max(one.largest_free_block);
            }
        }
        (free, largest)
    }
}
