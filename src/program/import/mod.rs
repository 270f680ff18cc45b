//! Files of other programs: what kind a file is (`kind`), PyTorch's memory snapshot (`snapshot`) and what is live in it
//! (`live`), RMM's log (`rmm_log`). `plain_file` opens them, and `pickle_reader` reads a pickle of plain values. `replay`
//! plays their requests; `vramshim import` writes them into a journal (`into_journal`, with `stack_file` beside it), so that
//! every view shows them.

pub mod into_journal;
pub mod kind;
mod live;
mod pickle_reader;
pub mod plain_file;
pub mod rmm_log;
pub mod snapshot;
mod stack_file;
mod target;
