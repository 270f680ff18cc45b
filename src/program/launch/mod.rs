//! What `run` and `doctor` need to start a job: the options, the devices, the library that is preloaded and what its file
//! needs (`binary`), the Python part, the simulated GPU; and the probes that `doctor` starts.

pub mod binary;
pub mod devices;
pub mod library;
pub mod options;
pub mod probes;
pub mod python;
pub mod simulator;
