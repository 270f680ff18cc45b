//! The driver's functions, as a child of this program finds and calls them: through `dlopen` and `dlsym`, as a job does.

mod layouts;
mod library;

pub use layouts::{Access, Location, Properties};
pub use library::{Failed, Library, NOT_FOUND, file_of, mapped_files};
pub(crate) use library::{call, checked};
