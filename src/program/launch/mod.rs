//! How a job is started: the options that `run` and `doctor` share, the library that is preloaded, the simulated GPU.

pub mod library;
pub mod options;
pub mod simulator;
