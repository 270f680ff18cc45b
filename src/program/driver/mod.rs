//! The driver's functions, as a child of this program finds and calls them: through `dlopen` and `dlsym`, as a job does.

mod layouts;
mod library;

pub use layouts::{Access, Location, Properties};
pub(crate) use library::call;
pub use library::{Library, NOT_FOUND, NotLoaded, file_of};
