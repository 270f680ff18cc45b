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
use std::sync::atomic::{AtomicU8, Ordering};

use crate::engine::Call;
use crate::engine::pools::Pools;
use crate::engine::state::allocation::Key;
use crate::engine::state::location::Location;
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

/// Whether the driver can share handles.
const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// The blocks that this process shares with others, and those of others that are open here.
#[derive(Default)]
pub struct Sharing {
    exports: Exports,
    imports: Imports,
    /// Whether the driver can share handles, once it was asked.
    handles_shareable: AtomicU8,
}

impl Sharing {
    /// The block at `address` is about to be freed.
    #[inline]
    pub fn block_freed(&self, address: u64) {
        self.exports.block_freed(address);
    }

    /// The block of another process that holds `address`: first address and bytes.
    pub fn imported(&self, address: u64) -> Option<(u64, u64)> {
        self.imports.find(address)
    }

    /// No capture is open any more. Unmaps what was closed during the captures.
    pub fn captures_over(&self) {
        self.imports.unmap_deferred();
    }

    /// A context is about to be destroyed, and the tickets of its blocks become invalid.
    pub fn context_closes(&self, context: u64) {
        self.exports.context_closes(context);
    }

    pub fn context_gone(&self, context: u64) {
        self.imports.context_gone(context);
    }

    pub fn process_ends(&self) {
        self.exports.process_ends();
    }

    /// Whether the block that holds `address` can be shared. `None` if the block lies in a segment: the
    /// driver's own answer is then right.
    pub fn is_shareable(&self, pools: &Pools, address: u64) -> Option<bool> {
        if self.imported(address).is_some() {
            // Only the process that the block belongs to can share it.
            return Some(false);
        }
        let (location, _, Backing::Handles { handles, .. }) = pools.backing_at(address)? else {
            return None;
        };
        match self.handles_shareable.load(Ordering::Relaxed) {
            UNKNOWN => {
                let shareable = exports::check_handle(location.context, handles.first()?.0).is_ok();
                let answer = if shareable { YES } else { NO };
                self.handles_shareable.store(answer, Ordering::Relaxed);
                Some(shareable)
            }
            known => Some(known == YES),
        }
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
        let shared = if let Some((block, _)) = sharing.imported(address) {
            // The driver's handle of an imported block would be one of the whole segment.
            Err(Refusal {
                error: DriverError::INVALID_VALUE,
                why: format!("{block:#x} belongs to another process; only that can share it"),
            })
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
        if self.engine.refuses {
            return Err(DriverError::NOT_PERMITTED);
        }
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
            self.failed(Class::Imported, location, 0, error);
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
            let one = sharing.imports.open(ticket, location, flags);
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

    pub fn ipc_close(&self, address: u64, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let imports = &self.engine.sharing.imports;
        let captures = &self.engine.state.captures;
        let _one_at_a_time = lock(&imports.one_at_a_time);
        if !captures.any_open() {
            imports.unmap_deferred();
        }
        match imports.close_one(address) {
            Closing::Unknown => {
                if imports.closed_by_driver(address) {
                    return self.free_direct(Key::Address(address), ask);
                }
                let result = ask();
                if result.is_err() {
                    imports.opened_by_driver(address, 0);
                }
                result
            }
            Closing::StillOpen => Ok(()),
            Closing::Last(import) => {
                let close = || imports.close(&import, !captures.any_open());
                let result = self.give_back(Key::Address(address), close);
                if result.is_err() {
                    imports.add(import);
                }
                result
            }
        }
    }
}
