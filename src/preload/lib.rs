//! `libvramshim.so`: one account of a CUDA job's GPU memory, kept by standing between the job and the next layer.
//!
//! `abi` is the front door (every exported C name), `engine` what happens to a call, `next` the back door (the next
//! layer's functions). ARCHITECTURE.md has the map.

mod abi;
mod engine;
mod log;
mod next;
