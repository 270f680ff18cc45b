//! Files of other programs: what kind a file is (`kind`), PyTorch's memory snapshot (`snapshot`), RMM's log
//! (`rmm_log`). `replay` plays their requests; `vramshim import` writes them into a journal (`into_journal`, with
//! `stacks` beside it), so that every view shows them.

pub mod into_journal;
pub mod kind;
pub mod rmm_log;
pub mod snapshot;
mod stacks;
mod target;
