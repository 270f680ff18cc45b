//! CUDA IPC of blocks that a policy cut from something larger.
//!
//! The driver shares whole allocations, so its handle of a block would be one of the segment around it. A block is shared
//! by a `ticket` of our own instead. The importing process, under this library as well, sends the ticket to the
//! exporter's `service`. The service answers with the driver's handle of the segment, or with the handles behind the
//! block as file descriptors. From these `import` makes the block that the importing job sees.
//!
//! Handles of the driver pass through unchanged. A ticket that reaches a process without the library is refused by the
//! driver there, because it is no handle of the driver's.

mod answer;
mod channel;
mod exports;
mod import;
mod mapping;
mod refusal;
mod service;
mod ticket;

use std::cell::RefCell;

use once_cell::race::OnceBool;

use crate::engine::pools::Pools;
use crate::engine::state::allocation::Key;
use crate::engine::state::context_work;
use crate::engine::state::location::Location;
use crate::engine::{Call, Engine};
use crate::next::{CUdeviceptr, CUipcMemHandle};
use base::api::Class;
use base::cuda::{CudaResult, DriverError};
use base::sync::lock;
use exports::Exports;
use import::{Closing, Import, Imports};
use policy::Backing;
use refusal::Refusal;
use ticket::Ticket;

pub use service::in_forked_child;

/// The blocks that this process shares with others, and those of others that are open here.
#[derive(Default)]
pub struct Sharing {
    pub exports: Exports,
    pub imports: Imports,
    /// Whether the driver can share handles, once it was asked.
    handles_shareable: OnceBool,
}

impl Sharing {
    /// Whether a block of another process begins at `address`.
    #[inline]
    pub fn begins_import(&self, address: u64) -> bool {
        self.imports.find(address).is_some_and(|(first, _)| first == address)
    }

    /// Whether the block that holds `address` can be shared. `None` if the block lies in a segment: the
    /// driver's own answer is then right.
    pub fn is_shareable(&self, pools: &Pools, address: u64) -> Option<bool> {
        if self.imports.find(address).is_some() {
            // Only the process that the block belongs to can share it.
            return Some(false);
        }
        let (location, _, Backing::Handles { handles, .. }) = pools.backing_at(address)? else {
            return None;
        };
        let (first, _) = *handles.first()?;
        let ask = || exports::check_handle(location.context, first).is_ok();
        Some(self.handles_shareable.get_or_init(ask))
    }

    /// The ticket of the block that holds `address`.
    fn export(&'static self, pools: &Pools, address: u64) -> Result<Ticket, Refusal> {
        let Some((location, block, backing)) = pools.backing_at(address) else {
            // No live block: as for any address that was never allocated.
            return Err(Refusal::silent(DriverError::INVALID_VALUE));
        };
        self.exports
            .export(location.context, block, backing, |id| service::start(&self.exports, id))
    }
}

impl Engine {
    /// Unmaps what was closed during captures and is not in use any more. Waits for nothing.
    pub(super) fn unmap_closed(&self) {
        let imports = &self.sharing.imports;
        let is_idle = |context| context_work::is_idle(&self.state.captures, context);
        imports.unmap_closed(imports.take_closed(None), |context| self.users_of(context).all(is_idle));
    }

    /// Runs a wait of the job for all work of a context, and unmaps what was closed before and is not in use any more.
    pub(super) fn unmap_closed_after(&self, context: u64, wait: impl FnOnce() -> CudaResult) -> CudaResult {
        let imports = &self.sharing.imports;
        let closed = imports.take_closed(Some(context));
        let result = wait();
        imports.unmap_closed(closed, |context| result.is_ok() && self.users_of(context).count() == 1);
        result
    }

    /// The contexts whose work may use what is open in this one.
    fn users_of(&self, context: u64) -> impl Iterator<Item = u64> {
        std::iter::once(context).chain(self.state.peers.users_of(context))
    }

    /// Waits for all work of a context and of its peers; returns false if that is not possible now. A context with an
    /// error runs nothing any more.
    fn is_idle_after_wait(&self, context: u64) -> bool {
        let wait = |context| context_work::wait(&self.state.captures, context);
        self.users_of(context).all(|context| wait(context) != Ok(false))
    }
}

impl Call {
    /// Writes a handle of the driver for the driver's own memory, and a ticket for a block of a pool.
    ///
    /// # Safety
    /// `out` is null or writable.
    pub unsafe fn ipc_export(
        &self,
        out: *mut CUipcMemHandle,
        address: u64,
        ask: impl FnOnce() -> CudaResult,
    ) -> CudaResult {
        let sharing = &self.engine.sharing;
        let shared = if let Some((block, _)) = sharing.imports.find(address) {
            // The driver's handle of an imported block would be one of the whole segment.
            let why = format!("{block:#x} belongs to another process; only that can share it");
            Err(Refusal::new(DriverError::INVALID_VALUE, why))
        } else if !self.engine.pools.is_pooled(address) {
            return ask();
        } else if out.is_null() {
            return Err(DriverError::INVALID_VALUE);
        } else {
            sharing.export(&self.engine.pools, address)
        };
        let ticket = shared.map_err(|refusal| refusal.report(&format!("cuIpcGetMemHandle({address:#x})")))?;
        // SAFETY: the pointer is not null, and writable by contract.
        unsafe { *out = ticket::handle_of(&ticket.encode()) };
        Ok(())
    }

    /// Opens `handle`: a ticket, or a handle that the driver made. `ask` lets the driver open its handle. Then
    /// `size_at` finds the size of the memory at the address that the driver gave.
    ///
    /// # Safety
    /// `out` is null or writable.
    pub unsafe fn ipc_open(
        &self,
        out: *mut CUdeviceptr,
        handle: &CUipcMemHandle,
        flags: u32,
        size_at: impl FnOnce(u64) -> u64,
        ask: impl Fn() -> CudaResult,
    ) -> CudaResult {
        let Some(ticket) = Ticket::decode(&ticket::bytes_of(handle)) else {
            return self.open_driver_handle(out, size_at, ask);
        };
        let address = self.open_ticket(&ticket, flags, out.is_null()).map_err(|refusal| {
            let Ticket { address, size, pid, .. } = ticket;
            refusal.report(&format!(
                "cuIpcOpenMemHandle: {size} bytes at {address:#x} of process {pid}"
            ))
        })?;
        // SAFETY: `open_ticket` refuses a null pointer, and others are writable by contract.
        unsafe { *out = address };
        Ok(())
    }

    /// Opens a handle that the driver made. If the handle is open already, the driver returns the same address again.
    /// Only the first opening counts as an allocation.
    fn open_driver_handle(
        &self,
        out: *mut CUdeviceptr,
        size_at: impl FnOnce(u64) -> u64,
        ask: impl Fn() -> CudaResult,
    ) -> CudaResult {
        // Checked before the driver is asked, as in `import`: what is refused must not be open.
        self.may_have_memory()?;
        let result = ask();
        // SAFETY: it is read after success only, and no call with a null pointer succeeds.
        let address = || unsafe { *out };
        let context = Location::current().map_or(0, |location| location.context);
        if result.is_ok() && !self.engine.sharing.imports.opened_by_driver(address(), context) {
            return Ok(());
        }
        self.import(address, Key::Address, size_at, || result)
    }

    fn open_ticket(&self, ticket: &Ticket, flags: u32, out_is_null: bool) -> Result<u64, Refusal> {
        let sharing = &self.engine.sharing;
        let refused = |location: Option<Location>, error: DriverError| {
            self.failed(Class::Imported, location, 0, error, None);
            Err(Refusal::silent(error))
        };
        let location = match Location::find() {
            Ok(location) => location,
            Err(problem) => return refused(None, problem),
        };
        if out_is_null {
            return refused(Some(location), DriverError::INVALID_VALUE);
        }
        if sharing.exports.made(ticket) {
            return refused(Some(location), DriverError::INVALID_CONTEXT);
        }
        let _one_at_a_time = lock(&sharing.imports.one_at_a_time);
        if let Some(address) = sharing.imports.open_again(location, ticket) {
            return Ok(address);
        }
        let opened = RefCell::new(None);
        let address = || match &*opened.borrow() {
            Some(Ok(Import { address, .. })) => *address,
            _ => 0,
        };
        let ask = || {
            let peers = self.engine.state.peers.with_access_to(location.device);
            let one = sharing.imports.open(ticket, location, peers, flags);
            let result = one.as_ref().map(|_| ()).map_err(|refusal| refusal.error);
            opened.replace(Some(one));
            result
        };
        let result = self.import(address, Key::Address, |_| ticket.size, ask);
        match (opened.into_inner(), result) {
            (Some(Ok(import)), _) => {
                let address = import.address;
                sharing.imports.add(import);
                Ok(address)
            }
            (Some(Err(refusal)), _) => Err(refusal),
            // The library refuses all memory, as VRAMSHIM_STRICT asks.
            (None, refused) => Err(Refusal::silent(refused.err().unwrap_or(DriverError::NOT_PERMITTED))),
        }
    }

    /// Closes a handle. As in the driver, that waits for the work that may use the memory. The thread waits before it
    /// takes a lock. It waits for nothing while a capture is open; then mapped memory is unmapped later, when it is not
    /// in use.
    pub fn ipc_close(&self, address: u64, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let imports = &self.engine.sharing.imports;
        let is_idle = imports.about_to_close(address).is_some_and(|context| {
            let closed = imports.take_closed(Some(context));
            let is_idle = self.engine.is_idle_after_wait(context);
            imports.unmap_closed(closed, |_| is_idle);
            is_idle
        });
        let _one_at_a_time = lock(&imports.one_at_a_time);
        match imports.close_one(address) {
            Closing::Unknown => {
                if imports.closed_by_driver(address) {
                    return self.give_back(Key::Address(address), ask);
                }
                let result = ask();
                if result.is_err() {
                    imports.opened_by_driver(address, 0);
                }
                result
            }
            // The driver would close it beneath the other blocks.
            Closing::Segment => Err(DriverError::INVALID_VALUE),
            Closing::StillOpen => Ok(()),
            Closing::Last(import) => {
                self.engine.state.registrations.block_freed(address);
                let close = || imports.close(&import, is_idle);
                let result = self.give_back(Key::Address(address), close);
                if result.is_err() {
                    imports.add(import);
                }
                result
            }
        }
    }
}
