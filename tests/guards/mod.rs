//! Guards: requests that are too large to be meant are refused at once, and nobody is asked for them. Growth that is too
//! fast is marked.

mod host;
mod requests;
mod surges;
