//! What `run` and `doctor` need to start a job: the options, the devices, the library that is preloaded and what its file
//! needs (`binary`), the Python part, the simulated GPU. `folder` tells whether journals can
//! be written, `environment` is what the job would have, `broken_pipe` is how it takes SIGPIPE, `processes` starts children
//! and ends them.

pub mod binary;
pub mod broken_pipe;
pub mod devices;
pub mod environment;
pub mod folder;
pub mod library;
pub mod options;
pub mod processes;
pub mod python;
pub mod simulator;
