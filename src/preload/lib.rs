//! `libvramshim.so`: counts a CUDA job's GPU memory, and manages it if a strategy is chosen, between the job and the next
//! layer.
//!
//! `abi` is the front door, with every exported C name; `engine` handles the calls; `next` is the back door, with the
//! functions of the next layer. `stacks` reads stacks and keeps them, `log` writes messages on stderr. ARCHITECTURE.md has
//! the map.

mod abi;
// Unit tests are a program, which has the start files.
#[cfg(not(test))]
mod dso_handle;
mod engine;
mod log;
mod next;
mod stacks;
// Unit tests are a program of their own, which unwinds.
#[cfg(not(test))]
mod unwinder;
