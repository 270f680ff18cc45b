//! The pools of this process: for each context one pool, which is a policy and its memory, with its subpools.
//!
//! This file has `Pools`, the way from a context or an address to its pool. Beside it, from the top down:
//!
//! - `requests`: requests, frees and questions of the job; `teardown`: context destruction; `keeper`: the thread
//!   that gives idle memory back, and the one that asks the allocator of the host's memory
//! - `patience`: how long a request waits for the GPU before it fails
//! - `leaving`: blocks whose free has not returned
//! - `access`: locks a pool for a piece of work, and gives subpools to single threads
//! - `growth`: the memory that a pool's policy works on
//! - `abilities`: the policy of a new pool, as far as the next layer carries it
//! - `contents`: what the pools hold, for a list of it
//! - `thread_pool`: the pool that a thread remembers, and whether it needs a subpool
//! - `pool`: the type; `registry` and `pages`: the lists of all pools

pub mod abilities;
mod access;
pub mod contents;
mod growth;
mod keeper;
mod leaving;
mod pages;
#[cfg(test)]
mod pages_model;
pub mod patience;
pub mod pool;
pub mod registry;
pub mod requests;
pub mod teardown;
mod thread_pool;
mod users;

use std::sync::Mutex;
use std::sync::atomic::{self, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use abilities::Abilities;
use keeper::Keeper;
use pool::Pool;
use registry::{Contexts, Registry, generation};

use crate::engine::state::State;
use crate::engine::state::location::Location;
use crate::next;
use base::sync::lock;
use policy::Strategy;

pub struct Pools {
    state: &'static State,
    registry: &'static Registry<Pool>,
    abilities: Abilities,
    /// How many nanoseconds memory lies idle before it is given back; 0 for ever.
    idle_release_ns: AtomicU64,
    keeper: Keeper,
    /// Contexts that are being destroyed, in which no pool may begin.
    closing: Mutex<Vec<u64>>,
}

/// The destruction of a context. Until this is dropped, no pool begins in the context.
pub struct ClosingContext<'a> {
    pools: &'a Pools,
    context: u64,
}

impl Drop for ClosingContext<'_> {
    fn drop(&mut self) {
        let mut closing = lock(&self.pools.closing);
        if let Some(index) = closing.iter().position(|&context| context == self.context) {
            closing.swap_remove(index);
        }
    }
}

fn as_ns(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

impl Pools {
    pub fn new(state: &'static State, abilities: Abilities, idle_release: Option<Duration>) -> Pools {
        Pools {
            state,
            registry: Box::leak(Box::default()),
            abilities,
            idle_release_ns: AtomicU64::new(as_ns(idle_release)),
            keeper: Keeper::default(),
            closing: Mutex::default(),
        }
    }

    /// How long memory lies idle before it is given back; `None` for ever.
    fn idle_release(&self) -> Option<Duration> {
        let ns = self.idle_release_ns.load(Relaxed);
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    /// From now on memory lies idle for so long before it is given back.
    pub fn release_after(&'static self, time: Option<Duration>) {
        self.idle_release_ns.store(as_ns(time), Relaxed);
        self.keep_all_pools();
    }

    /// No pool begins in `context` until the result is dropped.
    pub fn close_context(&self, context: u64) -> ClosingContext<'_> {
        lock(&self.closing).push(context);
        ClosingContext { pools: self, context }
    }

    /// The pool that serves the calling thread in its current context. `None` under passthrough, or if the thread has no
    /// context.
    #[inline]
    pub fn of_this_thread(&'static self) -> Option<&'static Pool> {
        if self.abilities.strategy == Strategy::Passthrough {
            return None;
        }
        let context = next::current_context().ok().filter(|context| !context.is_null())? as u64;
        let generation = generation();
        thread_pool::remembered(generation, context).or_else(|| {
            let pool = self.of_location(Location::current()?)?;
            thread_pool::remember(generation, context, pool);
            Some(pool)
        })
    }

    /// As `of_this_thread`, if this thread asked for memory in its current context before and the context is one of this
    /// device.
    #[inline]
    pub fn remembered_on(&self, device: i32) -> Option<&'static Pool> {
        let context = next::current_context().ok()? as u64;
        let pool = thread_pool::remembered(generation(), context)?;
        (i32::from(pool.location.device) == device).then_some(pool)
    }

    /// The pool of a context, created if there is none yet.
    fn of_location(&'static self, location: Location) -> Option<&'static Pool> {
        let context = location.context;
        if let Some(&pool) = self.registry.contexts().get(&context) {
            return Some(pool);
        }
        let policy = self.abilities.policy_for(location.device)?;
        let mut contexts = self.registry.contexts_mut();
        if lock(&self.closing).contains(&context) {
            return None;
        }
        let pool = *contexts
            .entry(context)
            .or_insert_with(|| Pool::new(location, policy, None, self.state, self.registry));
        drop(contexts);
        self.keep_pool(location.device);
        Some(pool)
    }

    /// The device of a context that has a pool.
    pub fn device_of(&self, context: u64) -> Option<i16> {
        let contexts = self.registry.contexts();
        contexts.get(&context).map(|pool| pool.location.device)
    }

    /// The only pool that `address` can belong to.
    #[inline]
    pub fn possible_owner(&self, address: u64) -> Option<&'static Pool> {
        self.registry.possible_owner(address)
    }

    /// The pools of the contexts that `chosen` picks.
    fn select(&self, chosen: impl Fn(&Pool) -> bool) -> Vec<&'static Pool> {
        let contexts: &Contexts<Pool> = &self.registry.contexts();
        contexts.values().copied().filter(|pool| chosen(pool)).collect()
    }

    pub fn of_device(&self, device: i16) -> Vec<&'static Pool> {
        self.select(|pool| pool.location.device == device)
    }
}
