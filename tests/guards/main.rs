//! Guards: requests that are too large to be meant are refused at once, and nobody is asked for them.

mod requests;
