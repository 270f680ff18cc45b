//! The calls of the job: one file for each family of CUDA functions.
//!
//! Five files serve all families: `booking` enters allocations and frees into ledger, account and journal; `measure`
//! asks the next layer and NVML about a device; `out_of_memory` explains a failure;
//! `guarded` refuses requests that are too large to be meant; `holders` asks NVML, for a failure,
//! which processes hold a device's memory; `refused_frees` frees what the next layer should free, and refuses to.

pub mod arrays;
mod attributes;
mod booking;
pub mod contexts;
pub mod copies;
pub mod descriptors;
pub mod driver_pools;
pub mod graphs;
pub mod guarded;
pub mod holders;
pub mod ipc;
mod linear;
mod measure;
pub mod nvml;
mod out_of_memory;
mod queries;
mod refused_frees;
mod registered;
pub mod stream_ordered;
pub mod torch;
pub mod vmm;
