//! The exporter's table: which blocks were shared, and by what they are reached.
//!
//! The driver is called to export with the table's lock held: freeing an exported block takes it off the table first, so
//! no memory goes while its descriptors are being made.

use std::collections::HashMap;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::answer::Answer;
use super::channel::MOST_DESCRIPTORS;
use super::service::{self, Service};
use super::ticket::{self, Ticket};
use super::{FILE_DESCRIPTOR, Refusal, WAY_OUT};
use crate::engine::pools::device_memory::in_context;
use crate::engine::{Engine, lock};
use crate::next::{self, INVALID_VALUE, SUCCESS};
use base::identity;
use policy::{Backing, Block};

/// A process that ends waits so long for an export that is under way.
const LAST_PATIENCE_MS: u32 = 500;

#[derive(Default)]
pub struct Exports {
    /// Whether there ever was one: frees look no further where there was none.
    any: AtomicBool,
    table: Mutex<Table>,
    /// The thread, or what it listens on, is gone: the job closed descriptors that it does not know.
    pub silent: AtomicBool,
    ended: AtomicBool,
}

#[derive(Default)]
struct Table {
    service: Option<Service>,
    /// By first address of the block.
    blocks: HashMap<u64, Exported>,
}

struct Exported {
    ticket: Ticket,
    context: u64,
    block: Block,
    offset: u64,
    memory: Memory,
}

enum Memory {
    /// The driver's own handle of the segment.
    Segment([u8; ticket::BYTES]),
    Granules {
        size: u64,
        handles: Vec<u64>,
    },
}

/// The granule as a file descriptor.
fn export_granule(handle: u64) -> Result<OwnedFd, i32> {
    let mut fd: RawFd = -1;
    // SAFETY: a live handle, and room for the descriptor that this kind of handle is written as.
    let result = unsafe { next::cuMemExportToShareableHandle((&raw mut fd).cast(), handle, FILE_DESCRIPTOR, 0) };
    match result {
        // SAFETY: new, and nobody else's.
        SUCCESS if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        SUCCESS => Err(next::NOT_SUPPORTED),
        problem => Err(problem),
    }
}

/// Whether the driver makes descriptors of such memory at all.
pub fn granule_is_shareable(context: u64, handle: u64) -> Result<(), i32> {
    match in_context(context, || {
        export_granule(handle).map_or_else(|problem| problem, |_| SUCCESS)
    }) {
        SUCCESS => Ok(()),
        problem => Err(problem),
    }
}

impl Exports {
    /// The ticket of the block that holds `address`; the same one each time while the block lives.
    pub fn export(&self, engine: &'static Engine, address: u64) -> Result<Ticket, Refusal> {
        let Some((place, block, backing)) = engine.pooled_backing(address) else {
            // No block: as for any address that was never allocated.
            return Err(Refusal::silent(INVALID_VALUE));
        };
        let mut table = lock(&self.table);
        let service = self.service(&mut table, engine)?;
        let known = table.blocks.get(&block.address).filter(|known| {
            (known.block, known.context, known.ticket.service) == (block, place.context, service.random)
        });
        if let Some(known) = known {
            return Ok(known.ticket);
        }
        let (offset, memory) = match backing {
            Backing::Segment { address: base, .. } => (
                block.address - base,
                Memory::Segment(segment_handle(place.context, base)?),
            ),
            Backing::Granules { address, size, handles } => {
                let first = handles.first().copied().unwrap_or(0);
                granule_is_shareable(place.context, first).map_err(|code| Refusal {
                    code,
                    why: format!("the driver cannot share memory that it maps (CUDA error {code}); {WAY_OUT}"),
                })?;
                (block.address - address, Memory::Granules { size, handles })
            }
        };
        let ticket = Ticket {
            version: ticket::VERSION,
            pid: std::process::id(),
            start: service.start,
            address: block.address,
            size: block.requested,
            service: service.random,
            nonce: ticket::random().ok_or_else(no_random)?,
        };
        self.any.store(true, Ordering::Relaxed);
        let exported = Exported {
            ticket,
            context: place.context,
            block,
            offset,
            memory,
        };
        table.blocks.insert(block.address, exported);
        Ok(ticket)
    }

    /// The block at `address` is about to be free: its ticket is good no more.
    #[inline]
    pub fn freed(&self, address: u64) {
        if self.any.load(Ordering::Relaxed) {
            lock(&self.table).blocks.remove(&address);
        }
    }

    pub fn context_goes(&self, context: u64) {
        if self.any.load(Ordering::Relaxed) {
            let mut table = lock(&self.table);
            table.blocks.retain(|_, exported| exported.context != context);
        }
    }

    pub fn wrote(&self, ticket: &Ticket) -> bool {
        self.any.load(Ordering::Relaxed)
            && lock(&self.table)
                .service
                .is_some_and(|own| (own.start, own.random) == (ticket.start, ticket.service))
    }

    /// The process ends: no call into the driver may run while that is torn down.
    pub fn process_ends(&self) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        self.ended.store(true, Ordering::SeqCst);
        for _ in 0..LAST_PATIENCE_MS {
            if self.table.try_lock().is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The service, started where there is none.
    fn service(&self, table: &mut Table, engine: &'static Engine) -> Result<Service, Refusal> {
        if let Some(service) = table.service
            && !self.silent.load(Ordering::SeqCst)
        {
            return Ok(service);
        }
        let service = Service {
            start: identity::start_ticks("self").unwrap_or(0),
            random: ticket::random().ok_or_else(no_random)?,
        };
        service::start(engine, service).map_err(|problem| Refusal {
            code: next::NOT_SUPPORTED,
            why: format!("no thread or socket to answer other processes with: {problem}"),
        })?;
        self.silent.store(false, Ordering::SeqCst);
        table.service = Some(service);
        Ok(service)
    }

    pub fn answer(&self, ticket: &Ticket) -> Answer {
        let table = lock(&self.table);
        match table.blocks.get(&ticket.address) {
            Some(exported) if exported.ticket == *ticket => match &exported.memory {
                Memory::Segment(handle) => Answer::Segment {
                    handle: *handle,
                    offset: exported.offset,
                },
                Memory::Granules { size, handles } => Answer::Granules {
                    size: *size,
                    count: handles.len() as u64,
                    offset: exported.offset,
                },
            },
            _ => Answer::Refused(INVALID_VALUE),
        }
    }

    /// Descriptors of the next granules from number `from` on.
    pub fn granules(&self, ticket: &Ticket, from: u64) -> Result<Vec<OwnedFd>, i32> {
        let table = lock(&self.table);
        if self.ended.load(Ordering::SeqCst) {
            return Err(next::DEINITIALISED);
        }
        let exported = table.blocks.get(&ticket.address);
        let exported = exported
            .filter(|exported| exported.ticket == *ticket)
            .ok_or(INVALID_VALUE)?;
        let Memory::Granules { handles, .. } = &exported.memory else {
            return Err(INVALID_VALUE);
        };
        let mut rest = handles.get(from as usize..).unwrap_or_default().iter();
        let mut descriptors = Vec::with_capacity(MOST_DESCRIPTORS);
        let result = in_context(exported.context, || {
            for &handle in rest.by_ref().take(MOST_DESCRIPTORS) {
                match export_granule(handle) {
                    Ok(descriptor) => descriptors.push(descriptor),
                    Err(problem) => return problem,
                }
            }
            SUCCESS
        });
        match result {
            SUCCESS if !descriptors.is_empty() => Ok(descriptors),
            SUCCESS => Err(INVALID_VALUE),
            problem => Err(problem),
        }
    }
}

fn no_random() -> Refusal {
    Refusal {
        code: next::NOT_SUPPORTED,
        why: "the kernel has no random numbers to give (getrandom)".into(),
    }
}

fn segment_handle(context: u64, base: u64) -> Result<[u8; ticket::BYTES], Refusal> {
    let mut handle = ticket::handle_of(&[0; ticket::BYTES]);
    // SAFETY: room for a handle, and a segment of ours.
    match in_context(context, || unsafe { next::cuIpcGetMemHandle(&mut handle, base) }) {
        SUCCESS => Ok(ticket::bytes_of(&handle)),
        code => Err(Refusal {
            code,
            why: format!("the driver cannot share the segment that the block lies in (CUDA error {code}); {WAY_OUT}"),
        }),
    }
}
