//! One call of the job at a time: ask a pool or the next layer, tell the ledger, write the journal.
//!
//! The engine starts at the first call that concerns memory, not before: every child process inherits the library, and a
//! program may still choose the strategy after the library was loaded. A forked child starts its own engine.
//!
//! The rooms, from the top down. Each uses only those below it:
//!
//! - `start`: how a hook enters the engine, and how the engine starts and ends
//! - `control`: what the library answers about itself and can be told (`shim.h`, `vramshim ctl`)
//! - `call`: one file for each family of CUDA functions
//! - `process`: the engine of this process, if it runs
//! - `marks`: moments and ranges that the job names
//! - `pools`: blocks for the job, and the memory that they are cut from
//! - `state`: what the library knows (ledger, limits, captures, peers ...)
//! - `scope`: the call that a thread is in; `thread` and `sockets`: threads and sockets of the library
//!
//! This file has the types that the upper rooms share.

mod call;
pub mod control;
pub mod marks;
mod pools;
mod process;
mod scope;
mod sockets;
mod start;
mod state;
mod thread;

use std::cell::Cell;
use std::sync::Mutex;

use base::say::{debug, info};

use call::descriptors::Descriptors;
use call::driver_pools::DriverPools;
use call::graphs::GraphMemory;
use call::ipc::Sharing;
use call::torch::TorchAllocator;
use call::vmm::Physical;
use pools::Pools;
use state::State;

use config::Config;
use policy::Strategy;

pub use call::arrays::ArrayShape;
pub use call::contexts::primary_released;
pub use call::copies;
pub use call::driver_pools::{Place, Waited};
pub use call::guarded::refused_by_host_guard;
pub use call::nvml;
pub use call::torch::figures::no_torch_stats;
pub use control::{Limit, Stats};
pub use process::running;
pub use scope::runtime;
pub use start::{
    at_fork, cuda_begins, enter, enter_for_free_of_tensor, enter_for_tensor, enter_if_limited, enter_if_watched,
    enter_running, process_ends,
};
pub use state::allocation::Key;
pub use state::location::Location;

/// What one process has. It lives as long as the process.
pub struct Engine {
    strategy: Strategy,
    /// Every request for memory is refused, because a variable is wrong, as `VRAMSHIM_STRICT` asks.
    refuses: bool,
    /// The process answers `vramshim ctl`.
    is_controlled: bool,
    pid: u32,
    state: &'static State,
    pools: Pools,
    stream_ordered: DriverPools,
    graphs: GraphMemory,
    physical: Mutex<Physical>,
    descriptors: Mutex<Descriptors>,
    sharing: Sharing,
    pub torch: TorchAllocator,
}

/// One call of the job on its way through the library.
pub struct Call {
    pub engine: &'static Engine,
    scope: scope::DriverScope,
    /// The handle of the stream that the call names, for messages.
    stream: Cell<Option<usize>>,
}

/// Logs the start line in Paddle's words. The line names its source file, which is `engine.rs` as long as this function
/// is in this file. If the job chose no strategy, the library changes nothing, and the line is a debug message.
fn announce(config: &Config) {
    let name = config.strategy.log_name();
    if config.strategy_chosen {
        info!("Using {name} allocation strategy");
    } else {
        debug!("Using {name} allocation strategy");
    }
}
