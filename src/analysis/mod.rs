//! What a journal means: its events replayed into an account of memory.
//!
//! `job` reads a whole journal, `account` is the replay, `space` the free room inside segments, `codes` the names of
//! result codes.

pub mod account;
pub mod codes;
pub mod job;
pub mod space;
