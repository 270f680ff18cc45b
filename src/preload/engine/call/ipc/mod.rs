//! CUDA IPC of blocks that a policy cut from something larger.
//!
//! The driver shares whole allocations: its handle of a block would be one of the segment around it. So a block is shared
//! by a `ticket` of our own; the importing process, under this library as well, shows it to the exporter's `service`,
//! which answers with the driver's handle of the segment, or with the granules behind the block as file descriptors;
//! `import` makes the block of them that the job sees. Handles of the driver pass through untouched, and a ticket that
//! reaches a process without the library is refused by the driver there, being no handle of its own.

mod answer;
mod channel;
mod exports;
mod import;
mod mapping;
mod service;
mod ticket;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU8, Ordering};

use tracing::warn;

use crate::engine::pools::device_memory;
use crate::engine::state::ledger::Key;
use crate::engine::{Call, Engine, Place, lock};
use crate::next::{CUdeviceptr, CUipcMemHandle, INVALID_CONTEXT, INVALID_VALUE, NOT_PERMITTED, SUCCESS};
use base::api::Class;
use base::cuda::HOST_DEVICE;
use exports::Exports;
use import::{Closing, Imports};
use policy::Backing;

use ticket::Ticket;

pub use service::in_forked_child;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
const FILE_DESCRIPTOR: u32 = 1;

const WAY_OUT: &str =
    "run the job with FLAGS_allocator_strategy=naive_best_fit, or with VRAMSHIM_STRATEGY=passthrough, to share memory";

#[derive(Default)]
pub struct Sharing {
    exports: Exports,
    imports: Imports,
    /// Whether granules can be shared: not asked yet, yes, no.
    granules: AtomicU8,
}

/// Why a block is not shared: what the job is told, and what the person is; empty where the driver would say nothing.
struct Refusal {
    code: i32,
    why: String,
}

impl Refusal {
    fn silent(code: i32) -> Self {
        Refusal {
            code,
            why: String::new(),
        }
    }

    fn say(self, of_what: &str) -> i32 {
        if !self.why.is_empty() {
            warn!("{of_what}: {}", self.why);
        }
        self.code
    }
}

impl Sharing {
    /// The block at `address` is about to be free.
    #[inline]
    pub fn freed(&self, address: u64) {
        self.exports.freed(address);
    }

    /// The block of another process that `address` lies in: first address and bytes.
    pub fn imported(&self, address: u64) -> Option<(u64, u64)> {
        self.imports.find(address)
    }

    /// No capture is open any more: what was closed meanwhile is unmapped.
    pub fn capture_over(&self) {
        self.imports.close_late();
    }

    /// A context is about to go: what it shared is good no more.
    pub fn context_goes(&self, context: u64) {
        self.exports.context_goes(context);
    }

    pub fn context_gone(&self, context: u64) {
        self.imports.context_gone(context);
    }

    pub fn process_ends(&self) {
        self.exports.process_ends();
    }
}

impl Engine {
    /// Whether the block that `address` lies in can be shared; `None` where the driver's answer for its segment holds.
    pub(super) fn shareable(&self, address: u64) -> Option<bool> {
        let (place, _, Backing::Granules { handles, .. }) = self.pooled_backing(address)? else {
            return None;
        };
        let known = self.sharing.granules.load(Ordering::Relaxed);
        if known != 0 {
            return Some(known == 1);
        }
        let shareable = exports::granule_is_shareable(place.context, *handles.first()?).is_ok();
        self.sharing
            .granules
            .store(if shareable { 1 } else { 2 }, Ordering::Relaxed);
        Some(shareable)
    }
}

impl Call {
    /// A handle of the driver for what is the driver's, a ticket for a block of a policy.
    ///
    /// # Safety
    /// `out` is null or writable.
    pub unsafe fn ipc_export(&self, out: *mut CUipcMemHandle, address: u64, ask: impl FnOnce() -> i32) -> i32 {
        let sharing = &self.engine.sharing;
        let shared = if let Some((block, _)) = sharing.imported(address) {
            // A handle of what is open here would be one of the whole segment.
            Err(Refusal {
                code: INVALID_VALUE,
                why: format!("{block:#x} belongs to another process; only that can share it"),
            })
        } else if !self.engine.is_pooled(address) {
            return ask();
        } else if out.is_null() {
            return INVALID_VALUE;
        } else {
            sharing.exports.export(self.engine, address)
        };
        match shared {
            Ok(ticket) => {
                // SAFETY: not null, and writable by contract.
                unsafe { *out = ticket::handle_of(&ticket.encode()) };
                SUCCESS
            }
            Err(refusal) => refusal.say(&format!("cuIpcGetMemHandle({address:#x})")),
        }
    }

    /// `size_at` tells the bytes of what `ask` opened, where the handle is one of the driver.
    ///
    /// # Safety
    /// `out` is null or writable.
    pub unsafe fn ipc_open(
        &self,
        out: *mut CUdeviceptr,
        handle: &CUipcMemHandle,
        flags: u32,
        size_at: impl FnOnce(u64) -> u64,
        ask: impl Fn() -> i32,
    ) -> i32 {
        let Some(ticket) = Ticket::decode(&ticket::bytes_of(handle)) else {
            return self.open_drivers_own(out, size_at, ask);
        };
        match self.open_ticket(&ticket, flags, out.is_null()) {
            Ok(address) => {
                // SAFETY: not null, as was told above, and writable by contract.
                unsafe { *out = address };
                SUCCESS
            }
            Err(refusal) => {
                let Ticket { address, size, pid, .. } = ticket;
                refusal.say(&format!(
                    "cuIpcOpenMemHandle: {size} bytes at {address:#x} of process {pid}"
                ))
            }
        }
    }

    /// A handle that the driver made. One that is open already is open once more then, at the same address.
    fn open_drivers_own(&self, out: *mut CUdeviceptr, size_at: impl FnOnce(u64) -> u64, ask: impl Fn() -> i32) -> i32 {
        // Before the driver is asked, as `import` does: what is refused must not be open.
        if self.engine.refuses {
            return NOT_PERMITTED;
        }
        let result = ask();
        // SAFETY: read after success, which a null pointer does not allow.
        let address = || unsafe { *out };
        let context = Place::current().map_or(0, |place| place.context);
        if result == SUCCESS && !self.engine.sharing.imports.opened_below(address(), context) {
            return SUCCESS;
        }
        self.import(address, Key::Address, size_at, || result)
    }

    fn open_ticket(&self, ticket: &Ticket, flags: u32, to_nowhere: bool) -> Result<u64, Refusal> {
        let sharing = &self.engine.sharing;
        let refused = |place: Option<Place>, code: i32| {
            self.failed(Class::Imported, place, 0, code);
            Err(Refusal::silent(code))
        };
        let place = match Place::find() {
            Ok(place) => place,
            Err(problem) => return refused(None, problem),
        };
        if to_nowhere {
            return refused(Some(place), INVALID_VALUE);
        }
        if sharing.exports.wrote(ticket) {
            return refused(Some(place), INVALID_CONTEXT);
        }
        let _alone = lock(&sharing.imports.one_at_a_time);
        if let Some(address) = sharing.imports.again(place, ticket) {
            return Ok(address);
        }
        let opened = RefCell::new(None);
        let address = || match &*opened.borrow() {
            Some(Ok(import::Import { address, .. })) => *address,
            _ => 0,
        };
        let ask = || {
            let one = sharing.imports.open(ticket, place, flags);
            let result = one.as_ref().map_or_else(|refusal| refusal.code, |_| SUCCESS);
            opened.replace(Some(one));
            result
        };
        let result = self.import(address, Key::Address, |_| ticket.size, ask);
        match opened.into_inner() {
            Some(Ok(import)) => {
                let address = import.address;
                sharing.imports.add(import);
                Ok(address)
            }
            Some(Err(refusal)) => Err(refusal),
            // The library refuses everything, as VRAMSHIM_STRICT asks.
            None => Err(Refusal::silent(result)),
        }
    }

    pub fn ipc_close(&self, address: u64, ask: impl FnOnce() -> i32) -> i32 {
        let imports = &self.engine.sharing.imports;
        let _alone = lock(&imports.one_at_a_time);
        if !self.engine.capturing() {
            imports.close_late();
        }
        match imports.close_one(address) {
            Closing::Unknown => {
                if imports.closed_below(address) {
                    return self.free_direct(Key::Address(address), ask);
                }
                let result = ask();
                if result != SUCCESS {
                    imports.opened_below(address, 0);
                }
                result
            }
            Closing::StillOpen => SUCCESS,
            Closing::Last(import) => {
                let close = || imports.close(&import, !self.engine.capturing());
                let result = self.give_back(Key::Address(address), close);
                if result != SUCCESS {
                    imports.stays(import);
                }
                result
            }
        }
    }

    /// The current context's device may use the memory of `peer` from now on, or no longer may.
    pub fn peer_access(&self, peer: u64, may: bool, ask: impl FnOnce() -> i32) -> i32 {
        let result = ask();
        if result == SUCCESS
            && let Some(place) = Place::current()
        {
            let device = device_memory::device_of(peer).map_or(HOST_DEVICE, |device| device as i16);
            self.engine.peers.note(place, Place { device, context: peer }, may);
            if may {
                self.engine.allow_peers(device);
            }
        }
        result
    }
}
