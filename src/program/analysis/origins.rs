//! Where requests come from: stacks of the journal, and for requests without one those of PyTorch's own record. Both
//! have numbers in one range here.

use std::sync::Arc;

use journal::format::{Event, Frame, NoStack, Record, StackKind};
use journal::reader::Stacks;

use super::torch_stacks::TorchStacks;

/// The number of PyTorch's first stack. A journal has fewer stacks.
pub const FIRST_OF_TORCH: u32 = 1 << 31;

#[derive(Clone, Default)]
pub struct Origins {
    stacks: Option<Arc<Stacks>>,
    /// What is left of it: each segment's stack is asked for once, in the order of time.
    torch: TorchStacks,
    /// When the journal began, in microseconds since 1970.
    began_us: u64,
}

impl Origins {
    pub fn new(stacks: Option<Stacks>, torch: TorchStacks, began_us: u64) -> Self {
        Origins {
            stacks: stacks.map(Arc::new),
            torch,
            began_us,
        }
    }

    /// The stacks of the journal.
    pub fn stacks(&self) -> Option<&Stacks> {
        self.stacks.as_deref()
    }

    /// The record with the number of its stack, or of the reason why there is none. If PyTorch's record has Python
    /// frames where the journal has native ones, PyTorch's are taken. Records must come in the order of time.
    pub fn resolve(&mut self, record: &Record) -> Record {
        if !matches!(record.event, Event::Alloc(_) | Event::AllocFailed { .. }) {
            return *record;
        }
        let known = self.stacks().and_then(|stacks| stacks.get(record.stack));
        let (is_known, has_python) = (
            known.is_some(),
            known.is_some_and(|stack| stack.kind != StackKind::Native),
        );
        if has_python {
            return *record;
        }
        let of_torch = match record.event {
            // A thread without Python has a stack without frames.
            Event::Alloc(allocation) => self
                .torch
                .segment(record.device, allocation.address)
                .filter(|&number| self.torch.frames(number).is_some_and(|frames| !frames.is_empty())),
            Event::AllocFailed { .. } => {
                let at_us = self.began_us.saturating_add(record.time_ns / 1000);
                self.torch.failure(record.device, at_us)
            }
            _ => None,
        };
        let number = of_torch.and_then(|number| u32::try_from(number).ok()?.checked_add(FIRST_OF_TORCH));
        let stack = match (number, NoStack::stack(record.stack)) {
            (Some(number), _) if NoStack::stack(number).is_ok() => number,
            _ if is_known => record.stack,
            // The file of stacks does not have it.
            (_, Ok(_)) => NoStack::Off as u32,
            (_, Err(reason)) => reason as u32,
        };
        Record { stack, ..*record }
    }

    /// The frames of the stack with this number, innermost first.
    pub fn frames(&self, number: u32) -> Option<&[Frame]> {
        match number.checked_sub(FIRST_OF_TORCH) {
            Some(of_torch) => self.torch.frames(of_torch.into()),
            None => self.stacks()?.get(number).map(|stack| stack.frames.as_slice()),
        }
    }

    /// The numbers of all stacks, with their frames.
    pub fn all(&self) -> impl Iterator<Item = (u32, &[Frame])> {
        let of_journal = self.stacks().into_iter().flat_map(Stacks::all);
        let of_torch = self
            .torch
            .all()
            .filter_map(|(number, frames)| Some((u32::try_from(number).ok()?.checked_add(FIRST_OF_TORCH)?, frames)));
        of_journal
            .map(|(number, stack)| (number, stack.frames.as_slice()))
            .chain(of_torch)
    }
}
