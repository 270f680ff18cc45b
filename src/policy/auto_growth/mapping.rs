//! The calls of the driver that `auto_growth` needs for memory that it maps itself: what `Work::Map` and `Work::Unmap`
//! carry.
//!
//! Any call can fail. What could not be undone then is told, so that the books stay true.

use std::ops::Range;

use base::cuda::{CudaResult, DriverError};

use crate::arena::{Claim, Region};
use crate::device_memory::{Available, DeviceMemory};

/// A handle in a stitch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its first address at home.
    pub home: u64,
    pub bytes: u64,
}

/// What reserved address space is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// Homes of handles for the requests of a region.
    Home(Region),
    Stitches,
}

#[derive(Debug)]
pub(super) struct Reserve {
    pub purpose: For,
    /// Bytes to ask for. If the driver refuses them, half of it, down to `least`: the address space of a process may be
    /// limited (`RLIMIT_AS`), or small, as under valgrind.
    pub bytes: u64,
    /// Bytes that are enough.
    pub least: u64,
    pub alignment: u64,
    pub address: CudaResult<u64>,
}

impl Reserve {
    fn carry_out(&mut self, memory: &dyn DeviceMemory) {
        loop {
            self.address = memory.reserve(self.bytes, self.alignment);
            if self.bytes <= self.least || self.address != Err(DriverError::OUT_OF_MEMORY) {
                return;
            }
            self.bytes = (self.bytes / 2).next_multiple_of(self.alignment).max(self.least);
        }
    }
}

/// How far a new handle has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Absent,
    Created,
    Mapped,
    /// Mapped and accessible.
    Usable,
}

#[derive(Debug)]
pub(super) struct NewHandle {
    pub home: u64,
    pub bytes: u64,
    /// Bytes that are enough if the device does not have more.
    pub least: u64,
    pub name: u64,
    pub stage: Stage,
}

#[derive(Debug)]
pub(super) struct NewStitch {
    pub address: u64,
    /// Bytes of address space from there on.
    pub room: u64,
    /// How many bytes after its beginning the request lies.
    pub offset: u64,
    /// The parts, and the driver's names of their handles. The name of a new handle is not known before.
    pub parts: Vec<(Part, Option<u64>)>,
    pub mapped: usize,
    pub is_usable: bool,
}

/// New handles side by side, and a stitch that they may be a part of.
#[derive(Debug)]
pub(super) struct Grow {
    pub new: Vec<NewHandle>,
    /// The hole that the new handles are mapped into.
    pub hole: Option<Claim>,
    pub stitch: Option<NewStitch>,
    /// Why new memory could not be had.
    pub problem: Option<DriverError>,
    /// Why the stitch could not be made.
    pub stitch_problem: Option<DriverError>,
    /// Whether all memory that is free was used for it, and no more was asked for than is lacking.
    pub is_sparing: bool,
    /// Whether to ask what the device has then, and the answer.
    pub asks: bool,
    pub available: Option<Available>,
}

#[derive(Debug)]
pub(super) enum Task {
    Reserve(Reserve),
    Grow(Grow),
    /// Nothing could be mapped, so these addresses go back: first address and bytes.
    Withdraw(Vec<(u64, u64)>),
    /// No more memory is obtained in this way.
    GiveUp(DriverError),
}

#[derive(Debug)]
pub struct Map(pub(super) Task);

impl Map {
    pub fn carry_out(&mut self, memory: &dyn DeviceMemory) {
        match &mut self.0 {
            Task::Reserve(reserve) => reserve.carry_out(memory),
            Task::Grow(grow) => grow.carry_out(memory),
            Task::Withdraw(ranges) => {
                let give_back = |(address, bytes)| memory.give_addresses_back(address, bytes);
                ranges.drain(..).for_each(give_back);
            }
            Task::GiveUp(problem) => memory.no_virtual_memory(*problem),
        }
    }
}

impl Grow {
    fn carry_out(&mut self, memory: &dyn DeviceMemory) {
        if let Err(problem) = self.obtain(memory) {
            self.problem = Some(problem);
            self.undo_new(memory);
        } else if let Some(stitch) = &mut self.stitch
            && let Err(problem) = stitch.map(memory, &self.new)
        {
            self.stitch_problem = Some(problem);
            stitch.undo(memory);
        }
        if self.asks {
            self.available = memory.available().ok();
        }
    }

    fn new_bytes(&self) -> u64 {
        self.new.iter().map(|handle| handle.bytes).sum()
    }

    fn obtain(&mut self, memory: &dyn DeviceMemory) -> CudaResult {
        let Some(first) = self.new.first().map(|handle| handle.home) else {
            return Ok(());
        };
        let least: u64 = self.new.iter().map(|handle| handle.least).sum();
        if self.new.len() > 1
            && let Ok(available) = memory.available()
            && least > available.free
        {
            // A request that cannot be served must not take memory piece by piece that other processes could use. So
            // one piece asks for all. The driver may have more than it says, if it takes back what its stream-ordered
            // pools keep and do not use. The simulated driver does; NVIDIA's has not been seen.
            let name = memory.create(least)?;
            if let Err(problem) = memory.release(name, least) {
                // It is all that there is now, and its place is that of the others.
                self.new.truncate(1);
                self.new[0] = NewHandle {
                    home: first,
                    bytes: least,
                    least,
                    name,
                    stage: Stage::Created,
                };
                return Err(problem);
            }
        }
        for handle in &mut self.new {
            handle.name = match memory.create(handle.bytes) {
                Err(DriverError::OUT_OF_MEMORY) if handle.least < handle.bytes => {
                    handle.bytes = handle.least;
                    memory.create(handle.bytes)?
                }
                created => created?,
            };
            handle.stage = Stage::Created;
        }
        for handle in &mut self.new {
            memory.map(handle.home, handle.bytes, handle.name)?;
            handle.stage = Stage::Mapped;
        }
        memory.allow_access(first, self.new_bytes())?;
        self.new.iter_mut().for_each(|handle| handle.stage = Stage::Usable);
        memory.mapped(first, self.new_bytes(), false);
        Ok(())
    }

    fn undo_new(&mut self, memory: &dyn DeviceMemory) {
        let mapped = self.new.iter().take_while(|handle| handle.stage == Stage::Mapped);
        let bytes: u64 = mapped.map(|handle| handle.bytes).sum();
        if bytes > 0 && memory.unmap(self.new[0].home, bytes).is_ok() {
            let mapped = self.new.iter_mut().filter(|handle| handle.stage == Stage::Mapped);
            mapped.for_each(|handle| handle.stage = Stage::Created);
        }
        for handle in &mut self.new {
            if handle.stage == Stage::Created && memory.release(handle.name, handle.bytes).is_ok() {
                handle.stage = Stage::Absent;
            }
            if handle.stage > Stage::Absent {
                // It is physical memory that the process has.
                memory.mapped(handle.home, handle.bytes, false);
            }
        }
    }
}

impl NewStitch {
    fn map(&mut self, memory: &dyn DeviceMemory, new: &[NewHandle]) -> CudaResult {
        let mut at = self.address;
        for (part, name) in &mut self.parts {
            let made = new.iter().find(|handle| handle.home == part.home);
            if let Some(made) = made {
                part.bytes = made.bytes;
                *name = Some(made.name);
            }
            memory.map(at, part.bytes, name.ok_or(DriverError::INVALID_VALUE)?)?;
            at += part.bytes;
            self.mapped += 1;
        }
        memory.allow_access(self.address, at - self.address)?;
        self.is_usable = true;
        memory.mapped(self.address, at - self.address, true);
        let mut at = self.address;
        for (part, _) in &self.parts {
            memory.is_part(at, part.bytes, part.home);
            at += part.bytes;
        }
        Ok(())
    }

    fn undo(&mut self, memory: &dyn DeviceMemory) {
        let bytes: u64 = self.parts[..self.mapped].iter().map(|(part, _)| part.bytes).sum();
        if bytes > 0 && memory.unmap(self.address, bytes).is_ok() {
            self.mapped = 0;
        }
    }
}

/// A stitch that is unmapped.
#[derive(Debug)]
pub(super) struct Leaving {
    pub number: u64,
    pub address: u64,
    pub bytes: u64,
    /// Whether it was ever reported to be mapped.
    pub was_usable: bool,
    /// First addresses of its parts at home.
    pub homes: Vec<u64>,
    pub is_gone: bool,
}

/// A handle that is given back.
#[derive(Debug)]
pub(super) struct Released {
    pub home: u64,
    /// Where the reserved addresses begin that it is mapped in. A call must not reach into other reserved addresses.
    pub base: u64,
    pub bytes: u64,
    pub name: u64,
    pub claim: Claim,
    /// Whether it served requests until now.
    pub was_usable: bool,
    pub stage: Stage,
}

impl Released {
    /// The same as one that could not be given back, which serves no request, at a place that is claimed anew. No
    /// neighbour is unmapped in the same call.
    pub fn left(self, claim: Claim) -> Released {
        Released {
            base: self.home,
            was_usable: false,
            claim,
            ..self
        }
    }
}

#[derive(Debug)]
pub struct Unmap {
    pub(super) stitches: Vec<Leaving>,
    /// In the order of addresses.
    pub(super) handles: Vec<Released>,
    /// Whether the next layer was asked.
    pub(super) was_tried: bool,
}

impl Unmap {
    pub(super) fn new(stitches: Vec<Leaving>, handles: Vec<Released>) -> Self {
        Unmap {
            stitches,
            handles,
            was_tried: false,
        }
    }

    /// Whether the next layer was asked, and unmapped nothing of it.
    pub(super) fn was_in_vain(&self) -> bool {
        let is_still_there = |handle: &Released| handle.stage == Stage::Usable;
        self.was_tried && !self.stitches.iter().any(|stitch| stitch.is_gone) && self.handles.iter().all(is_still_there)
    }

    pub fn carry_out(&mut self, memory: &dyn DeviceMemory) {
        // The next layer could invalidate the capture.
        if memory.is_capturing() {
            return;
        }
        self.was_tried = true;
        for stitch in &mut self.stitches {
            stitch.is_gone = stitch.bytes == 0 || memory.unmap(stitch.address, stitch.bytes).is_ok();
            if stitch.is_gone && stitch.was_usable {
                memory.unmapped(stitch.address, stitch.bytes, true);
            }
        }
        let stuck = self.stitches.iter().filter(|stitch| !stitch.is_gone);
        let in_stitch: Vec<u64> = stuck.flat_map(|stitch| stitch.homes.iter().copied()).collect();
        let is_ready = |handle: &Released| !in_stitch.contains(&handle.home);
        for side_by_side in self.handles.chunk_by_mut(|one, next| {
            let are_alike = one.stage == next.stage && is_ready(one) == is_ready(next);
            one.home + one.bytes == next.home && one.base == next.base && are_alike
        }) {
            if is_ready(&side_by_side[0]) {
                give_back(memory, side_by_side);
            }
        }
    }

    /// Bytes that were given back to the next layer.
    pub fn given_back(&self) -> u64 {
        let gone = self.handles.iter().filter(|handle| handle.stage == Stage::Absent);
        gone.map(|handle| handle.bytes).sum()
    }
}

fn give_back(memory: &dyn DeviceMemory, handles: &mut [Released]) {
    let range = handles.first().map_or(0, |first| first.home)..handles.last().map_or(0, |last| last.home + last.bytes);
    let Range { start, end } = range;
    if handles[0].stage >= Stage::Mapped {
        if memory.unmap(start, end - start).is_err() {
            return;
        }
        handles.iter_mut().for_each(|handle| handle.stage = Stage::Created);
    }
    for handle in handles {
        if memory.release(handle.name, handle.bytes).is_ok() {
            handle.stage = Stage::Absent;
            memory.unmapped(handle.home, handle.bytes, false);
        }
    }
}
