//! Takes memory of a device by each road, gives it back, and notes at each step what the next layer says of the device
//! and what the ledger has. The child runs under the library, so its calls go the way of a job's calls.

use std::ffi::{c_int, c_void};
use std::ptr;

use base::stats::Stats;
use serde::{Deserialize, Serialize};

use crate::driver::{Access, Library, Location, NotLoaded, Properties, call};

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

impl Road {
    const ALL: [Road; 7] = [
        Road::Linear,
        Road::Pitched,
        Road::Managed,
        Road::Array,
        Road::StreamOrdered,
        Road::OwnPool,
        Road::Mapped,
    ];

    /// Whether the memory comes from a pool of the driver.
    pub fn is_of_a_pool(self) -> bool {
        matches!(self, Road::StreamOrdered | Road::OwnPool)
    }

    /// The driver's function that takes the memory.
    pub fn function(self) -> &'static str {
        match self {
            Road::Linear => "cuMemAlloc",
            Road::Pitched => "cuMemAllocPitch",
            Road::Managed => "cuMemAllocManaged",
            Road::Array => "cuArrayCreate",
            Road::StreamOrdered => "cuMemAllocAsync",
            Road::OwnPool => "cuMemAllocFromPoolAsync",
            Road::Mapped => "cuMemCreate",
        }
    }
}

/// Bytes that a road added to the books, first while the memory was held, then after it was given back. Negative if the
/// book has fewer bytes than before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steps {
    /// The used bytes of the device as the next layer tells them (`cuMemGetInfo`).
    pub layer: [i64; 2],
    /// The reserved bytes of the library's ledger.
    pub ledger: [i64; 2],
}

/// What one road did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    pub road: Road,
    /// What was asked for.
    pub bytes: u64,
    /// The last round.
    pub steps: Steps,
    /// Whether two rounds in succession did the same.
    pub is_steady: bool,
    /// The function that failed, and its result.
    pub failed: Option<(String, i32)>,
}

/// The answers about a device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Book {
    pub ordinal: i32,
    /// The total of the device by `cuMemGetInfo` and by `cuDeviceTotalMem`.
    pub total: u64,
    pub device_total: u64,
    pub roads: Vec<Answer>,
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

const MIB: u64 = 1 << 20;
/// The rounds of a road until two do the same.
const ROUNDS: usize = 4;
/// The most bytes that a road takes: memory of this size has no rounding on any road. A layer that keeps each of them must
/// still have room for the others.
const MOST_BYTES: u64 = 64 * MIB;
const SHARE_OF_FREE: u64 = 4 * Road::ALL.len() as u64;
/// The driver's pools grow in steps of this size.
const POOL_STEP_BYTES: u64 = 32 * MIB;
/// The pages of the driver.
const PAGE_BYTES: u64 = 2 * MIB;
/// The width of pitched memory and of arrays in bytes, which every driver's pitch divides.
const WIDTH_BYTES: u64 = 4096;

pub fn probe(tell: impl Fn(&Books)) {
    let mut books = Books::default();
    if let Err(error) = ask_all(&mut books, &tell) {
        books.error = Some(error.to_string());
    }
    books.done = true;
    tell(&books);
}

#[derive(Debug, thiserror::Error)]
enum NotAsked {
    #[error(transparent)]
    Driver(#[from] NotLoaded),
    #[error("the library is not loaded")]
    NoLibrary,
    #[error("{} failed with {}", .0.0, .0.1)]
    Call(Failed),
}

impl From<Failed> for NotAsked {
    fn from(failed: Failed) -> NotAsked {
        NotAsked::Call(failed)
    }
}

fn ask_all(books: &mut Books, tell: &impl Fn(&Books)) -> Result<(), NotAsked> {
    let step = |books: &mut Books, doing: String| {
        books.doing = doing;
        tell(books);
    };
    step(books, "dlopen".into());
    let driver = Library::open(c"libcuda.so.1")?;
    let ours = Library::of_this_process();
    if ours.address(c"vramshim_stats").is_null() {
        return Err(NotAsked::NoLibrary);
    }
    step(books, "cuInit".into());
    checked("cuInit", call!(driver, cuInit(0 => u32)))?;
    let mut count = 0;
    checked(
        "cuDeviceGetCount",
        call!(driver, cuDeviceGetCount(&mut count => *mut c_int)),
    )?;
    for ordinal in 0..count {
        step(books, format!("device {ordinal}"));
        let mut context: *mut c_void = ptr::null_mut();
        let result = call!(driver, cuDevicePrimaryCtxRetain(&mut context => *mut *mut c_void, ordinal => c_int));
        checked("cuDevicePrimaryCtxRetain", result)?;
        checked(
            "cuCtxSetCurrent",
            call!(driver, cuCtxSetCurrent(context => *mut c_void)),
        )?;
        let mut total = 0usize;
        call!(driver, cuDeviceTotalMem_v2(&mut total => *mut usize, ordinal => c_int));
        let walk = Walk {
            driver: &driver,
            ours: &ours,
            ordinal,
        };
        let now = walk.look()?;
        books.devices.push(Book {
            ordinal,
            total: now.total,
            device_total: total as u64,
            roads: Vec::new(),
        });
        let free = now.total.saturating_sub(now.used);
        let bytes = (free / SHARE_OF_FREE).clamp(PAGE_BYTES, MOST_BYTES);
        let unit = if bytes >= POOL_STEP_BYTES {
            POOL_STEP_BYTES
        } else {
            PAGE_BYTES
        };
        let bytes = bytes / unit * unit;
        for road in Road::ALL {
            step(books, format!("device {ordinal}, {}", road.function()));
            let answer = walk.go(road, bytes);
            if let Some(book) = books.devices.last_mut() {
                book.roads.push(answer);
            }
        }
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

type Failed = (String, i32);

fn checked(function: &str, result: i32) -> Result<(), Failed> {
    match result {
        0 => Ok(()),
        code => Err((function.to_owned(), code)),
    }
}

impl Walk<'_> {
    /// Takes memory and gives it back until two rounds do the same.
    fn go(&self, road: Road, bytes: u64) -> Answer {
        let mut answer = Answer {
            road,
            bytes,
            steps: Steps::default(),
            is_steady: false,
            failed: None,
        };
        for round in 0..ROUNDS {
            match self.round(road, bytes) {
                Ok(steps) => {
                    answer.is_steady = round > 0 && steps == answer.steps;
                    answer.steps = steps;
                }
                Err(failed) => answer.failed = Some(failed),
            }
            if answer.is_steady || answer.failed.is_some() {
                break;
            }
        }
        answer
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
        let (mut free, mut total, mut stats) = (0usize, 0usize, Stats::default());
        let asked = call!(self.driver, cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize));
        checked("cuMemGetInfo", asked)?;
        let asked = call!(self.ours, vramshim_stats(self.ordinal => c_int, &mut stats => &mut Stats));
        checked("vramshim_stats", asked)?;
        let free = (free as u64).saturating_sub(stats.free_inside);
        Ok(Look {
            total: total as u64,
            used: (total as u64).saturating_sub(free),
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
        let (driver, mut held, size) = (self.driver, Held::default(), bytes as usize);
        let (width, height) = (WIDTH_BYTES as usize, (bytes / WIDTH_BYTES) as usize);
        let out = &raw mut held.address;
        let stream: *mut c_void = ptr::null_mut();
        let result = match road {
            Road::Linear => call!(driver, cuMemAlloc_v2(out => *mut u64, size => usize)),
            Road::Pitched => {
                let mut pitch = 0usize;
                call!(driver, cuMemAllocPitch_v2(
                    out => *mut u64, &mut pitch => *mut usize, width => usize, height => usize, 4 => u32
                ))
            }
            Road::Managed => call!(driver, cuMemAllocManaged(out => *mut u64, size => usize, GLOBAL => u32)),
            Road::Array => {
                let shape = Shape {
                    width: width / size_of::<f32>(),
                    height,
                    format: FLOAT,
                    channels: 1,
                };
                call!(driver, cuArrayCreate_v2(out => *mut u64, &shape => *const Shape))
            }
            Road::StreamOrdered => {
                call!(driver, cuMemAllocAsync(out => *mut u64, size => usize, stream => *mut c_void))
            }
            Road::OwnPool => {
                held.pool = self.new_pool()?;
                let pool = held.pool;
                let result = call!(driver, cuMemAllocFromPoolAsync(
                    out => *mut u64, size => usize, pool => *mut c_void, stream => *mut c_void
                ));
                if result != 0 {
                    call!(driver, cuMemPoolDestroy(pool => *mut c_void));
                }
                result
            }
            Road::Mapped => return self.map(bytes),
        };
        checked(road.function(), result)?;
        if road == Road::Managed {
            // The driver places managed memory when it is used first.
            call!(driver, cuMemsetD8_v2(held.address => u64, 0 => u8, size => usize));
        }
        Ok(held)
    }

    /// `cuMemPoolCreate` of a pool for memory of the device.
    fn new_pool(&self) -> Result<*mut c_void, Failed> {
        /// `CUmemPoolProps` (cuda.h): pinned memory of a device, and nothing else.
        #[repr(C)]
        struct Pool {
            kind: c_int,
            handles: c_int,
            location: Location,
            rest: [u64; 16],
        }
        let properties = Pool {
            kind: 1,
            handles: 0,
            location: self.location(),
            rest: [0; 16],
        };
        let mut pool: *mut c_void = ptr::null_mut();
        let result = call!(self.driver, cuMemPoolCreate(
            &mut pool => *mut *mut c_void, &properties => *const Pool
        ));
        checked("cuMemPoolCreate", result).map(|()| pool)
    }

    fn location(&self) -> Location {
        Location {
            kind: 1,
            id: self.ordinal,
        }
    }

    fn map(&self, bytes: u64) -> Result<Held, Failed> {
        let (driver, size, location) = (self.driver, bytes as usize, self.location());
        let properties = Properties::on(location);
        let access = Access { location, rights: 3 };
        let mut held = Held::default();
        let handle = &raw mut held.handle;
        let result = call!(driver, cuMemCreate(
            handle => *mut u64, size => usize, &properties => *const Properties, 0 => u64
        ));
        checked("cuMemCreate", result)?;
        let address = &raw mut held.address;
        let result = call!(driver, cuMemAddressReserve(
            address => *mut u64, size => usize, 0 => usize, 0 => u64, 0 => u64
        ));
        let done = checked("cuMemAddressReserve", result).and_then(|()| {
            let (address, handle) = (held.address, held.handle);
            let result = call!(driver, cuMemMap(
                address => u64, size => usize, 0 => usize, handle => u64, 0 => u64
            ));
            checked("cuMemMap", result)?;
            let result = call!(driver, cuMemSetAccess(
                address => u64, size => usize, &access => *const Access, 1 => usize
            ));
            checked("cuMemSetAccess", result)
        });
        if done.is_err() {
            let _ = self.unmap(bytes, &held);
        }
        done.map(|()| held)
    }

    fn unmap(&self, bytes: u64, held: &Held) -> Result<(), Failed> {
        let (driver, size) = (self.driver, bytes as usize);
        if held.address != 0 {
            call!(driver, cuMemUnmap(held.address => u64, size => usize));
            call!(driver, cuMemAddressFree(held.address => u64, size => usize));
        }
        checked("cuMemRelease", call!(driver, cuMemRelease(held.handle => u64)))
    }

    fn give_back(&self, road: Road, bytes: u64, held: &Held) -> Result<(), Failed> {
        let (driver, address, stream) = (self.driver, held.address, ptr::null_mut());
        match road {
            Road::Linear | Road::Pitched | Road::Managed => {
                checked("cuMemFree", call!(driver, cuMemFree_v2(address => u64)))?;
                // What a pool of the library keeps goes back, too.
                call!(self.ours, vramshim_trim(self.ordinal => c_int));
            }
            Road::Array => checked("cuArrayDestroy", call!(driver, cuArrayDestroy(address => u64)))?,
            Road::StreamOrdered | Road::OwnPool => {
                let result = call!(driver, cuMemFreeAsync(address => u64, stream => *mut c_void));
                checked("cuMemFreeAsync", result)?;
                self.wait();
                if road == Road::OwnPool {
                    let pool = held.pool;
                    checked("cuMemPoolDestroy", call!(driver, cuMemPoolDestroy(pool => *mut c_void)))?;
                } else {
                    let mut pool: *mut c_void = ptr::null_mut();
                    call!(driver, cuDeviceGetDefaultMemPool(
                        &mut pool => *mut *mut c_void, self.ordinal => c_int
                    ));
                    call!(driver, cuMemPoolTrimTo(pool => *mut c_void, 0 => usize));
                }
            }
            Road::Mapped => self.unmap(bytes, held)?,
        }
        Ok(())
    }
}
