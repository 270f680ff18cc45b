//! Which bytes a request gets.
