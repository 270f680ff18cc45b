//! One file a family of CUDA functions.

pub mod contexts;
pub mod graphs;
pub mod ipc;
pub mod linear;
pub mod nvml;
pub mod queries;
pub mod stream_ordered;
pub mod torch;
pub mod vmm;
