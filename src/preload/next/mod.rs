//! The back door: the functions of the next layer, each found once and kept.
//!
//! `signatures` lists the driver functions (with the `layouts` of what they get) and `nvml` those of NVML. `symbols` finds
//! a function by name, in the loaded objects that `elf` reads, and `runtimes` those of the runtime. `contexts` has calls
//! that are made in a given context, and `primary` those for primary contexts. `results` makes a failed call once more, and
//! keeps the next layer's own result. `driver` has the driver's own functions behind a layer, and those of a layer in front
//! of us, and `abilities` what the layer is and has. `c10` makes exceptions of PyTorch.
//! `software` names frameworks, runtime and driver.
//!
//! A function that the next layer does not have answers `CUDA_ERROR_NOT_FOUND` here. The hook of such a function is never
//! handed out, because `dlsym` and `cuGetProcAddress` ask the next layer first.

mod abilities;
pub mod c10;
mod contexts;
pub mod driver;
pub mod elf;
mod layouts;
pub mod nvml;
pub mod primary;
mod results;
pub mod runtimes;
mod signatures;
mod slot;
pub mod software;
pub mod symbols;

pub use abilities::*;
pub use contexts::*;
pub use driver::{Front, layer_in_front};
pub use primary::{active_primary_context, is_primary_active};
pub use results::{of_request, refused_with, retried, told};
pub use signatures::*;

pub use base::cuda::*;
pub(crate) use slot::c_name;
pub use slot::{Function, Slot};
