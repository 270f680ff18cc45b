//! Memory that an address names: linear, pitched and managed memory, host memory that is pinned or registered, and memory of
//! another process or API that is made visible here. The last is recorded, but it is not memory of this process.

use crate::engine::Call;
use crate::engine::call::booking;
use crate::engine::call::driver_pools::Waited;
use crate::engine::call::refused_frees::refusal_of_any_free;
use crate::engine::pools::pool::Pool;
use crate::engine::pools::requests::{Freed, Unfinished};
use crate::engine::state::allocation::Key;
use crate::engine::state::location::Location;
use crate::engine::state::records;
use crate::next;
use base::api::Class;
use base::cancellation::Uncancelled;
use base::cuda::{CudaResult, DriverError, check};
use base::mutant;
use journal::writer::Claim;
use policy::{Request, UsedBy};

/// No driver is known to align the rows of pitched memory to more bytes.
const ROW_ALIGNMENT_BYTES: u64 = 512;

/// The outcome of a request to free memory of a pool.
pub enum FreedPooled {
    Done(CudaResult),
    /// The address is not in a pool. The journal's slot that was claimed for the free already, if one was.
    NotPooled(Option<Claim>),
}

impl Call {
    /// Linear memory: a block of the thread's pool if there is one, else an allocation of the next layer.
    ///
    /// # Safety
    /// `out` is null or writable.
    pub unsafe fn allocate_linear(&self, out: *mut u64, size: usize) -> CudaResult {
        if !out.is_null()
            && size > 0
            && !self.engine.refuses
            && let Some(pool) = self.engine.pools.of_this_thread()
        {
            let address = self.allocate_block(pool, size as u64, Request::aligned_like_the_driver)?;
            // SAFETY: the pointer is not null, and writable by contract.
            unsafe { *out = address };
            return Ok(());
        }
        // SAFETY: the job's own arguments go to the function that the job called.
        let ask = || check(unsafe { next::cuMemAlloc_v2(out, size) });
        // SAFETY: a successful call has written it, and no call with a null pointer succeeds.
        let key = || Key::Address(unsafe { *out });
        self.obtain_direct(Class::Linear, Location::current(), size as u64, ask, key)
    }

    /// What one call of the next layer obtains whole. `key` reads what a successful `ask` wrote.
    pub fn obtain_direct(
        &self,
        class: Class,
        location: Option<Location>,
        size: u64,
        ask: impl Fn() -> CudaResult,
        key: impl FnOnce() -> Key,
    ) -> CudaResult {
        let booked_at = location.unwrap_or(Location::HOST);
        self.obtain(class, location, (size, size), ask, || {
            (key(), booking::entry(class, booked_at, size, size))
        })
    }

    /// Pitched memory: `rows` rows of `width` bytes. `address` and `pitch` read what a successful `ask` wrote; the pitch is
    /// the bytes from row to row.
    pub fn obtain_pitched(
        &self,
        width: u64,
        rows: u64,
        ask: impl Fn() -> CudaResult,
        address: impl FnOnce() -> u64,
        pitch: impl FnOnce() -> u64,
    ) -> CudaResult {
        let location = Location::current();
        let size = width.saturating_mul(rows);
        let most = width
            .checked_next_multiple_of(ROW_ALIGNMENT_BYTES)
            .unwrap_or(width)
            .saturating_mul(rows);
        self.obtain(Class::Pitched, location, (size, most), ask, || {
            let (location, reserved) = (location.unwrap_or(Location::HOST), pitch().saturating_mul(rows));
            let entry = booking::entry(Class::Pitched, location, size, reserved);
            (Key::Address(address()), entry)
        })
    }

    /// Host memory; it dies with the context that it was allocated in.
    pub fn obtain_host(&self, size: u64, ask: impl Fn() -> CudaResult, key: impl FnOnce() -> Key) -> CudaResult {
        let context = Location::current().map_or(0, |location| location.context);
        let location = Location {
            context,
            ..Location::HOST
        };
        self.obtain_direct(Class::Host, Some(location), size, ask, key)
    }

    /// Books imported memory. `name` reads the address or handle that a successful `ask` wrote, and `size` finds its
    /// bytes.
    pub fn import(
        &self,
        name: impl FnOnce() -> u64,
        key: impl FnOnce(u64) -> Key,
        size: impl FnOnce(u64) -> u64,
        ask: impl Fn() -> CudaResult,
    ) -> CudaResult {
        let location = Location::current();
        self.obtain(Class::Imported, location, (0, 0), ask, || {
            let name = name();
            let entry = booking::entry_elsewhere(Class::Imported, location.unwrap_or(Location::HOST), size(name));
            (key(name), entry)
        })
    }

    /// `cuMemFree` and everything else that frees by address.
    pub fn free(&self, address: u64, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        self.may_have_memory()?;
        if mutant::is(2) && address >> 12 & 15 == 3 {
            return Ok(()); // a lost free
        }
        if self.engine.sharing.begins_import(address) {
            // cuda.h asks for `cuIpcCloseMemHandle`. The driver closes its own memory here too, and a block that stayed in
            // the books would be taken for the next one that is opened.
            return self.ipc_close(address, || Err(DriverError::INVALID_VALUE));
        }
        self.engine.state.ledger.expect(Key::Address(address));
        match self.free_block(address, UsedBy::Awaited) {
            FreedPooled::Done(result) => result,
            FreedPooled::NotPooled(claim) => self.free_unpooled(address, None, claim, ask),
        }
    }

    /// A block of a pool, on the books. `details` says what is known of the request besides its size.
    pub(super) fn allocate_block(
        &self,
        pool: &'static Pool,
        size: u64,
        details: impl FnOnce(Request) -> Request,
    ) -> CudaResult<u64> {
        let (device, state) = (pool.location.device, self.engine.state);
        self.pass_guard(Class::Linear, pool.location, size)?;
        // What the driver holds for contexts is charged first.
        self.engine.measure_if_due(device);
        let request = Request::new(size).map(details);
        let stream = request.ok().and_then(|request| request.stream);
        match request.and_then(|request| self.engine.pools.allocate(pool, request)) {
            Ok(block) => {
                let stream = state.streams.number(stream);
                let record = records::block_obtained(self.api(), device, &block, stream);
                // Unlike `write`, this is inlined: most requests end here.
                state.records.write_while(record, || ());
                Ok(block.address)
            }
            Err(problem) => {
                self.failed(Class::Linear, Some(pool.location), size, problem, None);
                Err(problem)
            }
        }
    }

    /// Frees the block that begins at `address`, if the address is in a pool. If the block is awaited, waits for all work
    /// that may use it, as the driver does. A thread that captures does not wait, and the block is used again when events or
    /// a later wait tell that the work is done.
    pub(super) fn free_block(&self, address: u64, used_by: UsedBy) -> FreedPooled {
        let Some(pool) = self.engine.pools.possible_owner(address) else {
            return FreedPooled::NotPooled(None);
        };
        // No context has to be current, as in the driver (`free_without_context` in tests/assumptions).
        if let Err(problem) = next::current_context() {
            return FreedPooled::Done(Err(problem));
        }
        self.free_block_of(pool, address, used_by)
    }

    /// As `free_block`, for a thread that has a context. `pool` is the only one that can have the block.
    pub(super) fn free_block_of(&self, pool: &'static Pool, address: u64, used_by: UsedBy) -> FreedPooled {
        let state = self.engine.state;
        // The driver frees nothing more in a context whose work has failed. The memory goes with the context.
        if let Err(fault) = pool.check_fault() {
            self.free_failed(None, Key::Address(address), Err(fault));
            return FreedPooled::Done(Err(fault));
        }
        self.engine.block_leaves(address);
        let used_by = match used_by {
            UsedBy::Awaited if state.captures.open_in_this_thread() => UsedBy::Unknown,
            used_by => used_by,
        };
        // The record's slot comes before the block can serve other requests.
        let claim = state.records.claim();
        match pool.free(address, used_by) {
            Freed::Block(block, unfinished) => {
                let stream = match used_by {
                    UsedBy::Streams(&[stream]) => state.streams.number(Some(stream)),
                    _ => state.streams.number(None),
                };
                let record = records::block_freed(self.api(), pool.location.device, &block, stream, false);
                state.records.commit(claim, record);
                FreedPooled::Done(unfinished.map_or(Ok(()), |unfinished| self.finish_free(pool, unfinished)))
            }
            // The block was freed already, or none begins there. The next layer must not be asked: the address may be the
            // beginning of a segment, and it would free the whole segment.
            Freed::NoBlock => {
                let wrong = mutant::is(3).then_some(DriverError::NOT_FOUND);
                let refusal = || refusal_of_any_free(Location::current(), None);
                let result = Err(wrong.or_else(refusal).unwrap_or(DriverError::INVALID_VALUE));
                self.free_failed(claim, Key::Address(address), result);
                FreedPooled::Done(result)
            }
            Freed::NotPooled => FreedPooled::NotPooled(claim),
        }
    }

    /// Waits for the work that may use a block that was just freed; returns the driver's answer. If that is the error
    /// of work that failed, the block is free in the books, as after a call that "may also return error codes from
    /// previous, asynchronous launches" (cuda.h, `cuMemFree`). No request gets it: the pool serves nothing more.
    fn finish_free(&self, pool: &'static Pool, unfinished: Unfinished) -> CudaResult {
        let _uncancelled = Uncancelled::begin();
        // The driver's pools give memory back when a thread waits.
        let waited = Waited::Context(Some(pool.location.device));
        self.wait(waited, || pool.finish(unfinished))
    }
}
