//! Takes memory of a device by each road, gives it back, and notes at each step what the next layer says of the device
//! and what the ledger has. The child runs under the library, so its calls go the way of a job's calls.

use std::ffi::{c_int, c_void};
use std::ptr;

use base::stats::Stats;
use serde::{Deserialize, Serialize};

use super::{create, enter_context, free_and_total, map, on_device, reserve, tell, unmap};
use crate::driver::{Failed, Library, Location, call, checked};

/// The roads by which a job gets memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Road {
    Linear,
    Pitched,
    Managed,
    Array,
    StreamOrdered,
    OwnPool,
    Mapped,
}

/// Each road, with the driver's function that takes the memory.
const ROADS: [(Road, &str); 7] = [
    (Road::Linear, "cuMemAlloc"),
    (Road::Pitched, "cuMemAllocPitch"),
    (Road::Managed, "cuMemAllocManaged"),
    (Road::Array, "cuArrayCreate"),
    (Road::StreamOrdered, "cuMemAllocAsync"),
    (Road::OwnPool, "cuMemAllocFromPoolAsync"),
    (Road::Mapped, "cuMemCreate"),
];

/// Bytes that a road added to the books, first while the memory was held, then after it was given back. Negative if the
/// book has fewer bytes than before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steps {
    /// The used bytes of the device as the next layer tells them (`cuMemGetInfo`).
    pub layer: [i64; 2],
    /// The reserved bytes of the library's ledger.
    pub ledger: [i64; 2],
}

/// What one road did, and what follows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    pub road: Road,
    /// The driver's function that takes the memory.
    pub function: String,
    /// What was asked for.
    pub bytes: u64,
    /// The last round.
    pub steps: Steps,
    pub verdict: Verdict,
}

/// What the layer's book did while the memory was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Taken {
    Counted,
    NotCounted,
    /// Its figure has the memory, and its refusal does not.
    NotRefused,
    CountedTwice,
    /// By another number of bytes.
    CountedOtherwise,
}

/// What the layer's book did when the memory was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GivenBack {
    All,
    /// The layer's book still has bytes that the ledger does not have.
    NotAll,
    /// The layer took more off its book than the ledger.
    TooMuch,
}

/// What follows from the answer about a road.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Verdict {
    Compared {
        taken: Taken,
        given_back: GivenBack,
    },
    /// The device, or the layer, does not have this road: the function that failed, and its result.
    NoSuchRoad {
        failed: Failed,
    },
    /// No two rounds did the same: another process uses the device.
    Unsteady,
    /// The layer's figures stay the same, also if linear memory is taken. So its book cannot be read (nvshare).
    NotShown,
}

impl Verdict {
    /// Of a road that did the same in two rounds.
    fn from_steps(road: Road, bytes: u64, Steps { layer, ledger }: Steps) -> Verdict {
        // Rounding is far below, and a road that is counted wrongly far above this.
        let near = |one: i64, other: i64| one.abs_diff(other) <= bytes / 4;
        let is_of_a_pool = matches!(road, Road::StreamOrdered | Road::OwnPool);
        let taken = match layer[0] {
            counted if near(counted, ledger[0]) => Taken::Counted,
            // Of the driver's pools layers count what was asked for, and the ledger what the pool took for it.
            counted if is_of_a_pool && near(counted, bytes as i64) => Taken::Counted,
            counted if near(counted, 0) => Taken::NotCounted,
            counted if near(counted, ledger[0].saturating_mul(2)) => Taken::CountedTwice,
            _ => Taken::CountedOtherwise,
        };
        let given_back = match layer[1] {
            left if near(left, ledger[1]) => GivenBack::All,
            left if left > ledger[1] => GivenBack::NotAll,
            _ => GivenBack::TooMuch,
        };
        Verdict::Compared { taken, given_back }
    }

    /// Whether the layer's figures stayed as they were.
    fn is_not_counted(&self) -> bool {
        matches!(self, Verdict::Compared { taken, .. } if *taken == Taken::NotCounted)
    }

    pub fn agrees(&self) -> bool {
        match self {
            Verdict::NoSuchRoad { .. } => true,
            Verdict::Compared { taken, given_back } => (*taken, *given_back) == (Taken::Counted, GivenBack::All),
            Verdict::Unsteady | Verdict::NotShown => false,
        }
    }
}

/// The answers about a device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Book {
    pub ordinal: i32,
    /// The total of the device by `cuMemGetInfo` and by `cuDeviceTotalMem`.
    pub total: u64,
    pub device_total: u64,
    pub roads: Vec<Row>,
}

/// What the child has learnt so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Books {
    /// The step that began last.
    pub doing: String,
    pub done: bool,
    /// Why nothing could be asked.
    pub error: Option<String>,
    pub devices: Vec<Book>,
}

impl Books {
    fn step(&mut self, doing: String) {
        self.doing = doing;
        tell(self);
    }
}

const MIB: u64 = 1 << 20;
/// The rounds of a road until two do the same.
const ROUNDS: usize = 4;
/// The most bytes that a road takes: memory of this size has no rounding on any road. A layer that keeps each of them must
/// still have room for the others.
const MOST_BYTES: u64 = 64 * MIB;
const SHARE_OF_FREE: u64 = 4 * ROADS.len() as u64;
/// The driver's pools grow in steps of this size.
const POOL_STEP_BYTES: u64 = 32 * MIB;
/// The pages of the driver.
const PAGE_BYTES: u64 = 2 * MIB;
/// The width of pitched memory and of arrays in bytes, which every driver's pitch divides.
const WIDTH_BYTES: u64 = 4096;

pub fn probe() {
    let mut books = Books::default();
    books.error = ask_all(&mut books).err();
    books.done = true;
    tell(&books);
}

fn named((function, code): Failed) -> String {
    format!("{function} failed with {code}")
}

fn ask_all(books: &mut Books) -> Result<(), String> {
    books.step("dlopen".into());
    let driver = Library::open(c"libcuda.so.1")?;
    let ours = Library::of_this_process();
    if ours.address(c"vramshim_stats").is_null() {
        return Err("the library is not loaded".to_owned());
    }
    books.step("cuInit".into());
    checked!(driver, cuInit(0 => u32)).map_err(named)?;
    let mut count = 0;
    checked!(driver, cuDeviceGetCount(&mut count => *mut c_int)).map_err(named)?;
    for ordinal in 0..count {
        books.step(format!("device {ordinal}"));
        enter_context(&driver, ordinal).map_err(named)?;
        let mut device_total = 0usize;
        call!(driver, cuDeviceTotalMem_v2(&mut device_total => *mut usize, ordinal => c_int));
        let walk = Walk {
            driver: &driver,
            ours: &ours,
            ordinal,
        };
        let now = walk.look().map_err(named)?;
        let share = (now.total.saturating_sub(now.used) / SHARE_OF_FREE).clamp(PAGE_BYTES, MOST_BYTES);
        let unit = if share >= POOL_STEP_BYTES {
            POOL_STEP_BYTES
        } else {
            PAGE_BYTES
        };
        let mut roads = Vec::new();
        for (road, function) in ROADS {
            books.step(format!("device {ordinal}, {function}"));
            roads.push(walk.go(road, function, share / unit * unit));
        }
        // Each layer with a limit counts linear memory. If its figures do not show this, they show no other road either.
        if roads[0].verdict.is_not_counted() {
            for row in roads.iter_mut().filter(|row| row.verdict.is_not_counted()) {
                row.verdict = Verdict::NotShown;
            }
        }
        books.devices.push(Book {
            ordinal,
            total: now.total,
            device_total: device_total as u64,
            roads,
        });
        call!(driver, cuDevicePrimaryCtxRelease_v2(ordinal => c_int));
    }
    Ok(())
}

/// What the books say at one moment, in bytes.
struct Look {
    total: u64,
    /// By the next layer.
    used: u64,
    /// By the ledger.
    reserved: u64,
}

/// What a road handed out.
#[derive(Default)]
struct Held {
    address: u64,
    handle: u64,
    /// The job's own pool.
    pool: *mut c_void,
}

struct Walk<'a> {
    driver: &'a Library,
    ours: &'a Library,
    ordinal: i32,
}

impl Walk<'_> {
    /// Takes memory and gives it back until two rounds do the same.
    fn go(&self, road: Road, function: &str, bytes: u64) -> Row {
        let mut row = Row {
            road,
            function: function.to_owned(),
            bytes,
            steps: Steps::default(),
            verdict: Verdict::Unsteady,
        };
        for round in 0..ROUNDS {
            let steps = match self.round(road, bytes) {
                Ok(steps) => steps,
                Err(failed) => {
                    row.verdict = Verdict::NoSuchRoad { failed };
                    break;
                }
            };
            if round > 0 && steps == row.steps {
                row.verdict = Verdict::from_steps(road, bytes, steps);
                break;
            }
            row.steps = steps;
        }
        row
    }

    fn round(&self, road: Road, bytes: u64) -> Result<Steps, Failed> {
        let before = self.look()?;
        let held = self.take(road, bytes)?;
        let taken = self.look();
        self.give_back(road, bytes, &held)?;
        let (taken, after) = (taken?, self.look()?);
        let more = |now: u64, then: u64| now.wrapping_sub(then) as i64;
        Ok(Steps {
            layer: [more(taken.used, before.used), more(after.used, before.used)],
            ledger: [
                more(taken.reserved, before.reserved),
                more(after.reserved, before.reserved),
            ],
        })
    }

    /// The library adds what is free inside its pools to the free bytes of the next layer; that is taken off again.
    fn look(&self) -> Result<Look, Failed> {
        self.wait();
        let (free, total) = free_and_total(self.driver)?;
        let mut stats = Stats::default();
        checked!(self.ours, vramshim_stats(self.ordinal => c_int, &mut stats => &mut Stats))?;
        Ok(Look {
            total,
            used: total.saturating_sub(free.saturating_sub(stats.free_inside)),
            reserved: stats.reserved,
        })
    }

    fn wait(&self) {
        call!(self.driver, cuCtxSynchronize());
    }

    fn take(&self, road: Road, bytes: u64) -> Result<Held, Failed> {
        /// `CU_MEM_ATTACH_GLOBAL`, `CU_AD_FORMAT_FLOAT` (cuda.h)
        const GLOBAL: u32 = 1;
        const FLOAT: u32 = 0x20;
        /// `CUDA_ARRAY_DESCRIPTOR` (cuda.h)
        #[repr(C)]
        struct Shape {
            width: usize,
            height: usize,
            format: u32,
            channels: u32,
        }
        /// `CUmemPoolProps` (cuda.h): pinned memory of a device, and nothing else.
        #[repr(C)]
        struct Pool {
            kind: c_int,
            handles: c_int,
            location: Location,
            rest: [u64; 16],
        }
        let (driver, mut held, size) = (self.driver, Held::default(), bytes as usize);
        let (width, height) = (WIDTH_BYTES as usize, (bytes / WIDTH_BYTES) as usize);
        let out = &raw mut held.address;
        let stream: *mut c_void = ptr::null_mut();
        match road {
            Road::Linear => checked!(driver, cuMemAlloc_v2(out => *mut u64, size => usize))?,
            Road::Pitched => {
                let mut pitch = 0usize;
                checked!(driver, cuMemAllocPitch_v2(
                    out => *mut u64, &mut pitch => *mut usize, width => usize, height => usize, 4 => u32
                ))?;
            }
            Road::Managed => {
                checked!(driver, cuMemAllocManaged(out => *mut u64, size => usize, GLOBAL => u32))?;
                // The driver places managed memory when it is used first.
                call!(driver, cuMemsetD8_v2(held.address => u64, 0 => u8, size => usize));
            }
            Road::Array => {
                let shape = Shape {
                    width: width / size_of::<f32>(),
                    height,
                    format: FLOAT,
                    channels: 1,
                };
                checked!(driver, cuArrayCreate_v2(out => *mut u64, &shape => *const Shape))?;
            }
            Road::StreamOrdered => {
                checked!(driver, cuMemAllocAsync(out => *mut u64, size => usize, stream => *mut c_void))?;
            }
            Road::OwnPool => {
                let properties = Pool {
                    kind: 1,
                    handles: 0,
                    location: on_device(self.ordinal),
                    rest: [0; 16],
                };
                let mut pool: *mut c_void = ptr::null_mut();
                checked!(driver, cuMemPoolCreate(&mut pool => *mut *mut c_void, &properties => *const Pool))?;
                held.pool = pool;
                checked!(driver, cuMemAllocFromPoolAsync(
                    out => *mut u64, size => usize, pool => *mut c_void, stream => *mut c_void
                ))
                .inspect_err(|_| {
                    call!(driver, cuMemPoolDestroy(pool => *mut c_void));
                })?;
            }
            Road::Mapped => {
                held.handle = create(driver, self.ordinal, size)?;
                let done = reserve(driver, size).and_then(|address| {
                    held.address = address;
                    map(driver, self.ordinal, address, size, held.handle)
                });
                done.inspect_err(|_| {
                    let _ = self.release(size, &held);
                })?;
            }
        }
        Ok(held)
    }

    fn release(&self, size: usize, held: &Held) -> Result<(), Failed> {
        if held.address != 0 {
            call!(self.driver, cuMemAddressFree(held.address => u64, size => usize));
        }
        checked!(self.driver, cuMemRelease(held.handle => u64))
    }

    fn give_back(&self, road: Road, bytes: u64, held: &Held) -> Result<(), Failed> {
        let (driver, address, stream) = (self.driver, held.address, ptr::null_mut());
        match road {
            Road::Linear | Road::Pitched | Road::Managed => {
                checked!(driver, cuMemFree_v2(address => u64))?;
                // What a pool of the library keeps goes back, too.
                call!(self.ours, vramshim_trim(self.ordinal => c_int));
            }
            Road::Array => checked!(driver, cuArrayDestroy(address => u64))?,
            Road::StreamOrdered | Road::OwnPool => {
                checked!(driver, cuMemFreeAsync(address => u64, stream => *mut c_void))?;
                self.wait();
                let mut pool = held.pool;
                if road == Road::OwnPool {
                    checked!(driver, cuMemPoolDestroy(pool => *mut c_void))?;
                } else {
                    call!(driver, cuDeviceGetDefaultMemPool(
                        &mut pool => *mut *mut c_void, self.ordinal => c_int
                    ));
                    call!(driver, cuMemPoolTrimTo(pool => *mut c_void, 0 => usize));
                }
            }
            Road::Mapped => {
                unmap(driver, address, bytes as usize);
                self.release(bytes as usize, held)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_follows_from_the_steps() {
        const B: i64 = 64 << 20;
        let of = |layer, ledger| Verdict::from_steps(Road::Linear, B as u64, Steps { layer, ledger });
        let compared = |taken, given_back| Verdict::Compared { taken, given_back };
        let held = [B, 0];
        assert_eq!(of([B + 4096, 0], held), compared(Taken::Counted, GivenBack::All));
        assert_eq!(of([0, 0], held), compared(Taken::NotCounted, GivenBack::All));
        assert_eq!(of([2 * B, 0], held), compared(Taken::CountedTwice, GivenBack::All));
        assert_eq!(of([3 * B, 0], held), compared(Taken::CountedOtherwise, GivenBack::All));
        assert_eq!(of([B, B], held), compared(Taken::Counted, GivenBack::NotAll));
        assert_eq!(of([B, -B], held), compared(Taken::Counted, GivenBack::TooMuch));
        assert_eq!(of([2 * B, B], held), compared(Taken::CountedTwice, GivenBack::NotAll));
        // A pool keeps what it has, on both books.
        assert_eq!(of([B, B], [B, B]), compared(Taken::Counted, GivenBack::All));
    }
}
