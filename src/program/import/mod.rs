//! Files of other programs: what kind a file is (`kind`), PyTorch's memory snapshot (`snapshot`), RMM's log
//! (`rmm_log`). `source` opens them, and `pickle` reads a pickle of plain values. `replay` plays their requests; `vramshim import` writes them into a journal (`into_journal`, with
//! `stacks` beside it), so that every view shows them.

pub mod into_journal;
pub mod kind;
mod pickle;
pub mod rmm_log;
pub mod snapshot;
pub mod source;
mod stacks;
mod target;
