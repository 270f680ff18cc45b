//! The importer's side: what a ticket opens here, how often, and how it is closed.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::answer::Answer;
use super::mapping::{ask, malformed, map_handles, unmap};
use super::refusal::Refusal;
use super::ticket::{self, Ticket};
use crate::engine::state::location::Location;
use crate::engine::state::operations;
use crate::engine::state::peers::DeviceSet;
use crate::next;
use base::cuda::{CudaResult, DriverError, check};
use base::mutant;
use base::sync::lock;

/// The blocks of other processes that are open here.
#[derive(Default)]
pub struct Imports {
    /// Whether a block was ever imported. Until then questions about addresses look no further.
    ever_used: AtomicBool,
    /// Held while a block is opened or closed, which may take a while, but waits for no work of the GPU. The table's
    /// own lock is never held so long.
    pub one_at_a_time: Mutex<()>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_address: BTreeMap<u64, Import>,
    by_ticket: HashMap<(i16, Ticket), u64>,
    /// Memory that is open by a handle of the driver: context and number of openings, by address.
    by_driver: HashMap<u64, (u64, u32)>,
    /// Open segments: first address and number of open blocks. Some drivers open a segment only once.
    segments: HashMap<(u64, [u8; ticket::BYTES]), (u64, u64)>,
    /// Ranges that were closed while a capture was open, when no thread may wait for the work that uses them.
    deferred: Vec<Range>,
}

/// Context, first address and bytes.
type Range = (u64, u64, u64);

/// Ranges that were closed while a capture was open.
#[must_use = "they stay mapped, and nobody knows of them"]
pub struct Closed(Vec<Range>);

/// A block of another process.
pub struct Import {
    pub address: u64,
    pub size: u64,
    location: Location,
    ticket: Ticket,
    opened: u64,
    held: Held,
}

#[derive(Clone, Copy)]
enum Held {
    Segment([u8; ticket::BYTES]),
    Range { base: u64, size: u64 },
}

/// What is left of an import after one of its openings was closed.
pub enum Closing {
    /// No ticket was opened at this address.
    Unknown,
    /// A segment begins here that holds open blocks. The job has not opened it.
    Segment,
    StillOpen,
    Last(Import),
}

/// The address of a block of `size` bytes that begins at `offset` in memory at `base`. The exporter sent the offset, so
/// nothing is taken for granted: the block must lie within the `room` bytes of the memory.
fn within(base: u64, offset: u64, size: u64, room: u64) -> Result<u64, Refusal> {
    let end = offset.checked_add(size).filter(|&end| end <= room);
    match (end, base.checked_add(room)) {
        (Some(_), Some(_)) => Ok(base + offset),
        _ => Err(malformed(&format!(
            "{size} bytes at offset {offset} do not lie in its memory of {room} bytes"
        ))),
    }
}

/// Bytes from `base`, where a segment of another process is open, to the end of the memory that the next layer opened.
/// NVIDIA documents `cuMemGetAddressRange` for memory of `cuMemAlloc` alone. If the next layer does not answer for this
/// memory, the end of the address space is the only bound.
fn room_in_segment(base: u64) -> u64 {
    let (mut first, mut size) = (0, 0);
    // SAFETY: the pointers are to variables of this frame.
    let answer = check(unsafe { next::cuMemGetAddressRange_v2(&mut first, &mut size, base) });
    let end = answer.ok().and_then(|()| first.checked_add(size as u64));
    let room = end.filter(|_| first <= base).and_then(|end| end.checked_sub(base));
    room.filter(|&room| room > 0).unwrap_or(u64::MAX - base)
}

impl Imports {
    /// The table; `None` as long as no block was ever imported.
    fn used(&self) -> Option<MutexGuard<'_, Table>> {
        self.ever_used.load(Ordering::Relaxed).then(|| lock(&self.table))
    }

    /// What `tell` says of the block of another process that holds `address`.
    fn of_block<T>(&self, address: u64, tell: impl FnOnce(&Import) -> T) -> Option<T> {
        let table = self.used()?;
        let (_, import) = table.by_address.range(..=address).next_back()?;
        (address - import.address < import.size).then(|| tell(import))
    }

    /// The block of another process that holds `address`: first address and bytes.
    pub fn find(&self, address: u64) -> Option<(u64, u64)> {
        self.of_block(address, |import| (import.address, import.size))
    }

    /// Where the block was opened that holds `address`, and whether the library mapped it.
    pub fn location_of(&self, address: u64) -> Option<(Location, bool)> {
        self.of_block(address, |import| {
            (import.location, matches!(import.held, Held::Range { .. }))
        })
    }

    /// Gives devices access to the blocks that are mapped on `device`.
    pub fn allow_peers(&self, device: i16, peers: DeviceSet) {
        let Some(imports) = self.used().filter(|_| !peers.is_empty()) else {
            return;
        };
        let of_device = imports
            .by_address
            .values()
            .filter(|import| import.location.device == device);
        let ranges: Vec<(u64, u64, u64)> = of_device
            .filter_map(|import| match import.held {
                Held::Range { base, size } => Some((import.location.context, base, size)),
                Held::Segment(_) => None,
            })
            .collect();
        drop(imports);
        for (context, base, size) in ranges {
            // A peer of this device need not be one of the device that the memory is on.
            let _ = next::in_context(context, || next::set_access(base, size, peers.devices()));
        }
    }

    /// Opens a block once more that is open on this device already. `None` if it is not open.
    pub fn open_again(&self, location: Location, ticket: &Ticket) -> Option<u64> {
        let mut table = lock(&self.table);
        let address = *table.by_ticket.get(&(location.device, *ticket))?;
        let import = table.by_address.get_mut(&address)?;
        import.opened += 1;
        Some(address)
    }

    pub fn add(&self, import: Import) {
        self.ever_used.store(true, Ordering::Relaxed);
        let mut table = lock(&self.table);
        table
            .by_ticket
            .insert((import.location.device, import.ticket), import.address);
        table.by_address.insert(import.address, import);
    }

    /// The context that a block of another process is open in, if the next closing of `address` is the last one.
    pub fn about_to_close(&self, address: u64) -> Option<u64> {
        let table = self.used()?;
        let import = table.by_address.get(&address)?;
        (import.opened == 1).then_some(import.location.context)
    }

    pub fn close_one(&self, address: u64) -> Closing {
        let Some(mut table) = self.used() else {
            return Closing::Unknown;
        };
        // Mutant 10: a count of references that is off by one.
        let several = |import: &&mut Import| import.opened > u64::from(!mutant::is(10));
        if let Some(import) = table.by_address.get_mut(&address).filter(several) {
            import.opened -= 1;
            return Closing::StillOpen;
        }
        let Some(import) = table.by_address.remove(&address) else {
            let of_ticket = table.segments.values().any(|&(base, _)| base == address);
            let is_ours = of_ticket && !table.by_driver.contains_key(&address);
            return if is_ours { Closing::Segment } else { Closing::Unknown };
        };
        table.by_ticket.remove(&(import.location.device, import.ticket));
        Closing::Last(import)
    }

    /// Counts an opening by a handle of the driver. Returns whether it is the first one at this address.
    pub fn opened_by_driver(&self, address: u64, context: u64) -> bool {
        let mut table = lock(&self.table);
        let (_, times) = table.by_driver.entry(address).or_insert((context, 0));
        *times += 1;
        *times == 1
    }

    /// Counts a closing of such a handle. Returns whether it was the last one, or the handle is not known.
    pub fn closed_by_driver(&self, address: u64) -> bool {
        let mut table = lock(&self.table);
        match table.by_driver.get_mut(&address) {
            Some((_, times)) if *times > 1 => {
                *times -= 1;
                false
            }
            _ => {
                table.by_driver.remove(&address);
                true
            }
        }
    }

    /// Makes the block of a ticket visible in the current context.
    /// `peers` are the other devices that need access to memory of its device.
    pub fn open(&self, ticket: &Ticket, location: Location, peers: DeviceSet, flags: u32) -> Result<Import, Refusal> {
        if ticket.version != ticket::VERSION {
            let why = "it comes from another version of this library; run both processes under the same one";
            return Err(Refusal::new(DriverError::INVALID_VALUE, why));
        }
        if ticket.size == 0 {
            return Err(malformed("a block of 0 bytes"));
        }
        let (channel, answer) = ask(ticket)?;
        let (address, held) = match answer {
            Answer::Refused(error @ DriverError::INVALID_VALUE) => {
                let why = "that block was freed there; keep it until every importer has closed it";
                return Err(Refusal::new(error, why));
            }
            Answer::Refused(error) => return Err(Refusal::by_driver(error, "the exporter cannot share it")),
            Answer::Segment { handle, offset } => {
                let base = self.open_segment(location.context, &handle, flags)?;
                let address = within(base, offset, ticket.size, room_in_segment(base)).inspect_err(|_| {
                    // The refusal is the error that the job gets.
                    let _ = self.close_segment(location.context, handle);
                })?;
                (address, Held::Segment(handle))
            }
            Answer::Handles {
                size: total, offset, ..
            } => {
                within(0, offset, ticket.size, total)?;
                let base = map_handles(&channel, total, location, peers)?;
                operations::memory_is_mapped();
                (base + offset, Held::Range { base, size: total })
            }
        };
        Ok(Import {
            address,
            size: ticket.size,
            location,
            ticket: *ticket,
            opened: 1,
            held,
        })
    }

    fn open_segment(&self, context: u64, handle: &[u8; ticket::BYTES], flags: u32) -> Result<u64, Refusal> {
        if let Some((base, blocks)) = lock(&self.table).segments.get_mut(&(context, *handle)) {
            *blocks += 1;
            return Ok(*base);
        }
        let mut base = 0;
        // SAFETY: the pointer is to a variable of this frame, and the exporter's driver wrote the handle.
        check(unsafe { next::cuIpcOpenMemHandle_v2(&mut base, ticket::handle_of(handle), flags) })
            .map_err(|error| Refusal::by_driver(error, "the driver does not open the segment that it lies in"))?;
        lock(&self.table).segments.insert((context, *handle), (base, 1));
        Ok(base)
    }

    /// Gives up what an import holds. After an error nothing has changed. `is_idle` means that no work uses the memory.
    pub fn close(&self, import: &Import, is_idle: bool) -> CudaResult {
        let context = import.location.context;
        match import.held {
            Held::Segment(handle) => self.close_segment(context, handle),
            Held::Range { base, size } if is_idle => unmap(base, size, size),
            Held::Range { base, size } => {
                lock(&self.table).deferred.push((context, base, size));
                Ok(())
            }
        }
    }

    /// Undoes one `open_segment`. After an error nothing has changed.
    fn close_segment(&self, context: u64, handle: [u8; ticket::BYTES]) -> CudaResult {
        let key = (context, handle);
        let mut table = lock(&self.table);
        let Some((base, blocks)) = table.segments.get_mut(&key) else {
            return Ok(());
        };
        if *blocks > 1 {
            *blocks -= 1;
            return Ok(());
        }
        let base = *base;
        drop(table);
        // SAFETY: `open_segment` opened it, in this context.
        next::in_context(context, || check(unsafe { next::cuIpcCloseMemHandle(base) }))?;
        lock(&self.table).segments.remove(&key);
        Ok(())
    }

    /// Takes what was closed while a capture was open, in this context or in all. Taken before a wait begins, because
    /// the wait says nothing about what is closed later.
    pub fn take_closed(&self, context: Option<u64>) -> Closed {
        let is_wanted = |&mut (owner, ..): &mut Range| context.is_none_or(|context| owner == context);
        let taken = |mut table: MutexGuard<'_, Table>| table.deferred.extract_if(.., is_wanted).collect();
        Closed(self.used().map_or(Vec::new(), taken))
    }

    /// Unmaps what was taken, in the contexts that have no work now. The rest stays.
    pub fn unmap_closed(&self, Closed(ranges): Closed, is_idle: impl Fn(u64) -> bool) {
        for (context, base, size) in ranges {
            if is_idle(context) {
                // The job was told that the close succeeded, so an error has no receiver.
                let _ = unmap(base, size, size);
            } else {
                lock(&self.table).deferred.push((context, base, size));
            }
        }
    }

    /// A context is gone, and with it what the driver had open in it. Mappings belong to no context, so they are undone
    /// here.
    pub fn context_gone(&self, context: u64) {
        lock(&self.table).by_driver.retain(|_, (owner, _)| *owner != context);
        let Some(mut guard) = self.used() else { return };
        let table = &mut *guard;
        table.segments.retain(|(owner, _), _| *owner != context);
        let gone = table
            .by_address
            .extract_if(.., |_, import| import.location.context == context);
        let gone: Vec<Import> = gone.map(|(_, import)| import).collect();
        let mut ranges: Vec<Range> = table
            .deferred
            .extract_if(.., |&mut (owner, ..)| owner == context)
            .collect();
        for import in &gone {
            table.by_ticket.remove(&(import.location.device, import.ticket));
        }
        drop(guard);
        ranges.extend(gone.iter().filter_map(|import| match import.held {
            Held::Range { base, size } => Some((context, base, size)),
            Held::Segment(_) => None,
        }));
        for (_, base, size) in ranges {
            let _ = unmap(base, size, size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_lies_within_the_memory_that_was_opened() {
        let at = |base, offset, size, room| within(base, offset, size, room).map_err(|refusal| refusal.error);
        let wrong = Err(DriverError::INVALID_HANDLE);
        assert_eq!(at(1 << 40, 4096, 512, 4608), Ok((1 << 40) + 4096));
        assert_eq!(at(1 << 40, 0, u64::MAX - (1 << 40), u64::MAX - (1 << 40)), Ok(1 << 40));
        assert_eq!(at(1 << 40, 4096, 513, 4608), wrong);
        assert_eq!(at(1 << 40, 4609, 1, 4608), wrong);
        assert_eq!(at(1 << 40, u64::MAX, 1, u64::MAX - (1 << 40)), wrong);
        assert_eq!(at(1 << 40, u64::MAX - 511, 512, 4608), wrong);
        assert_eq!(at(1 << 40, 512, u64::MAX, u64::MAX), wrong);
    }
}
