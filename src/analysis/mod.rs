//! What a journal means: its events replayed into an account of memory.
//!
//! `job` reads a whole journal, `account` is the replay, `space` the free room inside segments, `codes` the names of
//! result codes. `running` finds the processes that write journals now, `watch` reads along with one of them.

pub mod account;
pub mod codes;
pub mod job;
pub mod running;
pub mod space;
pub mod watch;
