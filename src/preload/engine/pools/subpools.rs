//! Subpools: threads that often wait for each other get pools of their own.
//!
//! One pool serves a context, because that wastes the least memory: a block that one thread frees serves the next request
//! of another. Only a thread that often finds the pool locked gets a subpool. A subpool serves small requests from slabs
//! that it borrows from the pool (see `policy::slabs`). Large requests, and requests that no slab can serve, go to the
//! pool as before.

use super::pool::Pool;
use super::thread_pool;
use policy::Policy;

/// From now on a subpool of `root` serves the calling thread, unless the pool's context is being destroyed.
pub fn serve_thread_from_subpool(root: &'static Pool) {
    if let Some(generation) = thread_pool::generation_served_by(root) {
        let (number, subpool) = root.subpool_for_a_thread(Policy::of_subpool);
        base::say::debug!("a thread that often waited for others is served by subpool {number}");
        thread_pool::replace(generation, subpool);
    }
}
