//! What the commands share about how an answer looks.

pub mod format;
