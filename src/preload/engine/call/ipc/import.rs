//! The importer's side: what a ticket opens here, how often, and how it is closed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Refusal;
use super::answer::Answer;
use super::mapping::{ask, malformed, map_granules, unmap};
use super::ticket::{self, Ticket};
use crate::engine::pools::device_memory::in_context;
use crate::engine::{Place, lock};
use crate::next::{self, INVALID_VALUE, SUCCESS};

#[derive(Default)]
pub struct Imports {
    /// Whether there ever was one: questions about addresses look no further where there was none.
    any: AtomicBool,
    /// Held while something is opened or closed, which may take a while; the table never is.
    pub one_at_a_time: Mutex<()>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_address: BTreeMap<u64, Import>,
    by_ticket: HashMap<(i16, Ticket), u64>,
    /// What was opened by handles of the driver's own: context, and how often, by address.
    below: HashMap<u64, (u64, u32)>,
    /// Segments that are open, with the number of blocks in them: some drivers open one once only.
    segments: HashMap<(u64, [u8; ticket::BYTES]), (u64, u64)>,
    /// Ranges closed while a capture was open, when nobody may wait for the work that uses them: context, first address
    /// and bytes.
    late: Vec<(u64, u64, u64)>,
}

/// A block of another process.
pub struct Import {
    pub address: u64,
    pub size: u64,
    place: Place,
    ticket: Ticket,
    opened: u64,
    held: Held,
}

#[derive(Clone, Copy)]
enum Held {
    Segment([u8; ticket::BYTES]),
    Range { base: u64, size: u64 },
}

/// What closing one of several opens leaves.
pub enum Closing {
    Unknown,
    StillOpen,
    Last(Import),
}

impl Imports {
    /// The block of another process that `address` lies in: first address and bytes.
    pub fn find(&self, address: u64) -> Option<(u64, u64)> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let table = lock(&self.table);
        let (_, import) = table.by_address.range(..=address).next_back()?;
        (address - import.address < import.size).then_some((import.address, import.size))
    }

    /// Opens once more what is open already.
    pub fn again(&self, place: Place, ticket: &Ticket) -> Option<u64> {
        let mut table = lock(&self.table);
        let address = *table.by_ticket.get(&(place.device, *ticket))?;
        let import = table.by_address.get_mut(&address)?;
        import.opened += 1;
        Some(address)
    }

    pub fn add(&self, import: Import) {
        self.any.store(true, Ordering::Relaxed);
        let mut table = lock(&self.table);
        table
            .by_ticket
            .insert((import.place.device, import.ticket), import.address);
        table.by_address.insert(import.address, import);
    }

    pub fn close_one(&self, address: u64) -> Closing {
        if !self.any.load(Ordering::Relaxed) {
            return Closing::Unknown;
        }
        let mut table = lock(&self.table);
        let Some(import) = table.by_address.get_mut(&address) else {
            return Closing::Unknown;
        };
        if import.opened > 1 {
            import.opened -= 1;
            return Closing::StillOpen;
        }
        let Some(import) = table.by_address.remove(&address) else {
            return Closing::Unknown;
        };
        table.by_ticket.remove(&(import.place.device, import.ticket));
        Closing::Last(import)
    }

    /// Counts an opening of a handle of the driver's own; whether it is the first one.
    pub fn opened_below(&self, address: u64, context: u64) -> bool {
        let mut table = lock(&self.table);
        let (_, times) = table.below.entry(address).or_insert((context, 0));
        *times += 1;
        *times == 1
    }

    /// Counts a closing of such a one; whether it was the last, or nobody knows of it.
    pub fn closed_below(&self, address: u64) -> bool {
        let mut table = lock(&self.table);
        match table.below.get_mut(&address) {
            Some((_, times)) if *times > 1 => {
                *times -= 1;
                false
            }
            _ => {
                table.below.remove(&address);
                true
            }
        }
    }

    /// Makes the block of a ticket visible in the current context.
    pub fn open(&self, ticket: &Ticket, place: Place, flags: u32) -> Result<Import, Refusal> {
        if ticket.version != ticket::VERSION {
            return Err(Refusal {
                code: INVALID_VALUE,
                why: "it comes from another version of this library; run both processes under the same one".into(),
            });
        }
        let (channel, answer) = ask(ticket)?;
        let (base, offset, held) = match answer {
            Answer::Refused(code) => {
                let why = if code == INVALID_VALUE {
                    "that block was freed there; keep it until every importer has closed it".to_owned()
                } else {
                    format!("the exporter cannot share it (CUDA error {code})")
                };
                return Err(Refusal { code, why });
            }
            Answer::Segment { handle, offset } => {
                let base = self.open_segment(place.context, &handle, flags)?;
                (base, offset, Held::Segment(handle))
            }
            Answer::Granules { size, count, offset } => {
                let total = size
                    .checked_mul(count)
                    .ok_or_else(|| malformed("sizes that overflow"))?;
                if offset.checked_add(ticket.size).is_none_or(|end| end > total) {
                    return Err(malformed("a block that ends behind its memory"));
                }
                let base = map_granules(&channel, size, count, place)?;
                (base, offset, Held::Range { base, size: total })
            }
        };
        Ok(Import {
            address: base + offset,
            size: ticket.size,
            place,
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
        // SAFETY: room for an address; the handle is one that the driver wrote in the exporter.
        match unsafe { next::cuIpcOpenMemHandle_v2(&mut base, ticket::handle_of(handle), flags) } {
            SUCCESS => {}
            code => {
                return Err(Refusal {
                    code,
                    why: format!("the driver does not open the segment that it lies in (CUDA error {code})"),
                });
            }
        }
        lock(&self.table).segments.insert((context, *handle), (base, 1));
        Ok(base)
    }

    /// Gives up what an import holds. Returns the CUDA result; with an error nothing changed.
    pub fn close(&self, import: &Import, may_synchronise: bool) -> i32 {
        let context = import.place.context;
        match import.held {
            Held::Segment(handle) => {
                let key = (context, handle);
                let mut table = lock(&self.table);
                let Some((base, blocks)) = table.segments.get_mut(&key) else {
                    return SUCCESS;
                };
                if *blocks > 1 {
                    *blocks -= 1;
                    return SUCCESS;
                }
                let base = *base;
                drop(table);
                // SAFETY: what `open_segment` opened, in the context that it was opened in.
                let result = in_context(context, || unsafe { next::cuIpcCloseMemHandle(base) });
                if result == SUCCESS {
                    lock(&self.table).segments.remove(&key);
                }
                result
            }
            Held::Range { base, size } if may_synchronise => wait_and_unmap(context, base, size),
            Held::Range { base, size } => {
                lock(&self.table).late.push((context, base, size));
                SUCCESS
            }
        }
    }

    /// Unmaps what was closed while a capture was open. None may be open now.
    pub fn close_late(&self) {
        if self.any.load(Ordering::Relaxed) {
            let late = std::mem::take(&mut lock(&self.table).late);
            for (context, base, size) in late {
                wait_and_unmap(context, base, size);
            }
        }
    }

    /// A context is gone, and what the driver had open in it. Mappings belong to no context: they are undone here.
    pub fn context_gone(&self, context: u64) {
        lock(&self.table).below.retain(|_, (owner, _)| *owner != context);
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut table = lock(&self.table);
        table.segments.retain(|(owner, _), _| *owner != context);
        let (gone, stay) = std::mem::take(&mut table.by_address)
            .into_iter()
            .partition(|(_, import)| import.place.context == context);
        table.by_address = stay;
        let (gone_late, stay_late) = std::mem::take(&mut table.late)
            .into_iter()
            .partition(|&(owner, ..)| owner == context);
        let gone_late: Vec<(u64, u64, u64)> = gone_late;
        table.late = stay_late;
        table
            .by_ticket
            .retain(|_, address| !BTreeMap::contains_key(&gone, address));
        drop(table);
        for import in gone.values() {
            if let Held::Range { base, size } = import.held {
                unmap(base, size, size);
            }
        }
        for (_, base, size) in gone_late {
            unmap(base, size, size);
        }
    }

    /// Puts back what could not be closed.
    pub fn stays(&self, import: Import) {
        self.add(import);
    }
}

/// Unmapping does not wait for the work that uses the memory; closing a handle does.
fn wait_and_unmap(context: u64, base: u64, size: u64) -> i32 {
    // SAFETY: takes nothing but the current context.
    in_context(context, || unsafe { next::cuCtxSynchronize() });
    unmap(base, size, size)
}
