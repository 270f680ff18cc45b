//! What a job is started with: the options, the library that is preloaded, the simulated GPU.

pub mod library;
pub mod options;
pub mod simulator;
