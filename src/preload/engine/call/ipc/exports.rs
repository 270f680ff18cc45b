//! The exporter's table: which blocks are shared, and how the memory behind them is reached.
//!
//! The driver is called to export without the table's lock. The free of a block that is being exported waits for that, so
//! no memory goes away while its descriptors are being made.

use std::collections::HashMap;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::answer::Answer;
use super::channel::MAX_DESCRIPTORS;
use super::refusal::{MAPPED, Refusal, SEGMENT};
use super::ticket::{self, ServiceId, Ticket};
use crate::next::{self, POSIX_FILE_DESCRIPTOR};
use base::cuda::{CudaResult, DriverError, check};
use base::identity;
use base::sync::lock;
use policy::{Backing, Block, UnderWay, UnderWayTicket};

/// How long a process that ends waits for an export that is running.
const LONGEST_EXPORT_WAIT_MS: u32 = 500;

#[derive(Default)]
pub struct Exports {
    /// Whether a block was ever shared. Until then a free looks no further.
    ever_used: AtomicBool,
    table: Mutex<Table>,
    /// Calls of the driver that export.
    running: UnderWay,
    /// Set when the service ends, because the job closed the service's socket.
    service_ended: AtomicBool,
    process_ended: AtomicBool,
}

#[derive(Default)]
struct Table {
    service: Option<ServiceId>,
    /// By first address of the block.
    blocks: HashMap<u64, Exported>,
    /// First addresses of the blocks that are being exported.
    exporting: Vec<u64>,
}

/// A block is being exported until this is dropped.
struct Exporting<'a> {
    exports: &'a Exports,
    address: u64,
    _running: UnderWayTicket<'a>,
}

impl Drop for Exporting<'_> {
    fn drop(&mut self) {
        let exporting = &mut lock(&self.exports.table).exporting;
        if let Some(place) = exporting.iter().position(|&address| address == self.address) {
            exporting.swap_remove(place);
        }
    }
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
    /// Handles and their bytes.
    Handles(Vec<(u64, u64)>),
}

/// Physical memory as a file descriptor.
fn export_handle(handle: u64) -> CudaResult<OwnedFd> {
    let mut fd: RawFd = -1;
    // SAFETY: the handle is live, and the pointer is to a value of the type that this kind of handle is written as.
    check(unsafe { next::cuMemExportToShareableHandle((&raw mut fd).cast(), handle, POSIX_FILE_DESCRIPTOR, 0) })?;
    if fd < 0 {
        return Err(DriverError::NOT_SUPPORTED);
    }
    // SAFETY: the descriptor is new, and belongs to nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the driver can make a descriptor of this memory.
pub fn check_handle(context: u64, handle: u64) -> CudaResult {
    next::in_context(context, || export_handle(handle)).map(drop)
}

impl Exports {
    /// The ticket of a block; the same one each time while the block lives. `start_service` starts the thread that
    /// answers importers, if none runs.
    pub fn export(
        &'static self,
        context: u64,
        block: Block,
        backing: Backing,
        start_service: impl FnOnce(ServiceId) -> io::Result<()>,
    ) -> Result<Ticket, Refusal> {
        self.ever_used.store(true, Ordering::SeqCst);
        let (service, known, _exporting) = {
            let mut table = lock(&self.table);
            let service = self.service(&mut table, start_service)?;
            let known = table.ticket_of(&block, context, service);
            (service, known, self.begin(&mut table, block.address))
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let (offset, memory) = match backing {
            Backing::Segment { address: base, .. } => {
                (block.address - base, Memory::Segment(segment_handle(context, base)?))
            }
            Backing::Handles { offset, handles } => {
                let first = handles.first().map_or(0, |&(first, _)| first);
                check_handle(context, first).map_err(|error| {
                    Refusal::with_way_out(error, "the driver cannot share memory that it maps", MAPPED)
                })?;
                (offset, Memory::Handles(handles))
            }
        };
        let ticket = Ticket {
            version: ticket::VERSION,
            pid: std::process::id(),
            service,
            address: block.address,
            size: block.requested,
            nonce: ticket::random().ok_or_else(no_random)?,
        };
        let exported = Exported {
            ticket,
            context,
            block,
            offset,
            memory,
        };
        let mut table = lock(&self.table);
        // Another thread may have exported the block meanwhile.
        if let Some(known) = table.ticket_of(&block, context, service) {
            return Ok(known);
        }
        table.blocks.insert(block.address, exported);
        Ok(ticket)
    }

    fn begin(&self, table: &mut Table, address: u64) -> Exporting<'_> {
        table.exporting.push(address);
        Exporting {
            exports: self,
            address,
            _running: self.running.begin(),
        }
    }

    /// The block at `address` is about to be freed, and its ticket becomes invalid.
    #[inline]
    pub fn block_freed(&self, address: u64) {
        if !self.ever_used.load(Ordering::Relaxed) {
            return;
        }
        let is_exporting = {
            let mut table = lock(&self.table);
            table.blocks.remove(&address);
            table.exporting.contains(&address)
        };
        if is_exporting {
            self.running.wait();
            lock(&self.table).blocks.remove(&address);
        }
    }

    pub fn context_closes(&self, context: u64) {
        if self.ever_used.load(Ordering::Relaxed) {
            let mut table = lock(&self.table);
            table.blocks.retain(|_, exported| exported.context != context);
        }
    }

    /// Whether this process made the ticket.
    pub fn made(&self, ticket: &Ticket) -> bool {
        self.ever_used.load(Ordering::Relaxed) && lock(&self.table).service == Some(ticket.service)
    }

    /// The process ends. No call into the driver may run while the driver is torn down.
    pub fn process_ends(&self) {
        if !self.ever_used.load(Ordering::Relaxed) {
            return;
        }
        self.process_ended.store(true, Ordering::SeqCst);
        for _ in 0..LONGEST_EXPORT_WAIT_MS {
            if !self.running.is_under_way() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The service ended. The next block that is shared starts another.
    pub fn service_ends(&self) {
        self.service_ended.store(true, Ordering::SeqCst);
    }

    /// The service, started if none runs.
    fn service(
        &self,
        table: &mut Table,
        start: impl FnOnce(ServiceId) -> io::Result<()>,
    ) -> Result<ServiceId, Refusal> {
        if let Some(service) = table.service
            && !self.service_ended.load(Ordering::SeqCst)
        {
            return Ok(service);
        }
        let service = ServiceId {
            start_ticks: identity::start_ticks("self").unwrap_or(0),
            random: ticket::random().ok_or_else(no_random)?,
        };
        start(service).map_err(|problem| {
            let why = format!("no thread or socket to answer other processes with: {problem}");
            Refusal::new(DriverError::NOT_SUPPORTED, why)
        })?;
        self.service_ended.store(false, Ordering::SeqCst);
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
                Memory::Handles(handles) => Answer::Handles {
                    size: handles.iter().map(|(_, bytes)| bytes).sum(),
                    count: handles.len() as u64,
                    offset: exported.offset,
                },
            },
            _ => Answer::Refused(DriverError::INVALID_VALUE),
        }
    }

    /// The bytes and descriptors of the next handles from number `from` on.
    pub fn handles(&self, ticket: &Ticket, from: u64) -> CudaResult<(Vec<u64>, Vec<OwnedFd>)> {
        let (handles, context, _exporting) = {
            let mut table = lock(&self.table);
            // Asked after the call is known to run, so that the end of the process waits for it or it is not made.
            let exporting = self.begin(&mut table, ticket.address);
            let exported = table.blocks.get(&ticket.address);
            let exported = exported.filter(|exported| exported.ticket == *ticket);
            match exported.map(|exported| (&exported.memory, exported.context)) {
                Some((Memory::Handles(handles), context)) => {
                    let rest = handles.get(from as usize..).unwrap_or_default();
                    (rest[..rest.len().min(MAX_DESCRIPTORS)].to_vec(), context, exporting)
                }
                _ => {
                    drop(table);
                    return Err(DriverError::INVALID_VALUE);
                }
            }
        };
        if self.process_ended.load(Ordering::SeqCst) {
            return Err(DriverError::DEINITIALISED);
        }
        if handles.is_empty() {
            return Err(DriverError::INVALID_VALUE);
        }
        let export = || handles.iter().map(|&(handle, _)| export_handle(handle)).collect();
        let descriptors: Vec<OwnedFd> = next::in_context(context, export)?;
        Ok((handles.iter().map(|&(_, bytes)| bytes).collect(), descriptors))
    }
}

impl Table {
    /// The ticket of a block, if it has one.
    fn ticket_of(&self, block: &Block, context: u64, service: ServiceId) -> Option<Ticket> {
        let known = self.blocks.get(&block.address)?;
        let is_same = (known.block, known.context, known.ticket.service) == (*block, context, service);
        is_same.then_some(known.ticket)
    }
}

fn no_random() -> Refusal {
    Refusal::new(
        DriverError::NOT_SUPPORTED,
        "the kernel has no random numbers to give (getrandom)",
    )
}

fn segment_handle(context: u64, base: u64) -> Result<[u8; ticket::BYTES], Refusal> {
    let mut handle = ticket::handle_of(&[0; ticket::BYTES]);
    // SAFETY: the pointer is to a variable of this frame, and the segment is ours.
    next::in_context(context, || check(unsafe { next::cuIpcGetMemHandle(&mut handle, base) })).map_err(|error| {
        Refusal::with_way_out(
            error,
            "the driver cannot share the segment that the block lies in",
            SEGMENT,
        )
    })?;
    Ok(ticket::bytes_of(&handle))
}
