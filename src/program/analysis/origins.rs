//! Where requests come from: stacks of the journal, and for requests without one those of PyTorch's own record. Both
//! have numbers in one range here.

use journal::format::{Event, Frame, NoStack, Record};
use journal::reader::Stacks;

use super::stacks::TorchStacks;

/// The number of PyTorch's first stack. A journal has fewer stacks.
const FIRST_OF_TORCH: u32 = 1 << 31;

#[derive(Clone)]
pub struct Origins<'a> {
    stacks: Option<&'a Stacks>,
    /// What is left of it: each segment's stack is asked for once, in the order of time.
    torch: TorchStacks,
    /// When the journal began, in microseconds since 1970.
    began_us: u64,
}

impl<'a> Origins<'a> {
    pub fn new(stacks: Option<&'a Stacks>, torch: TorchStacks, began_us: u64) -> Self {
        Origins {
            stacks,
            torch,
            began_us,
        }
    }

    /// The record with the number of its stack, or of the reason why there is none. Records must come in the order of
    /// time.
    pub fn resolve(&mut self, record: &Record) -> Record {
        if !matches!(record.event, Event::Alloc(_) | Event::AllocFailed { .. }) {
            return *record;
        }
        if self.stacks.is_some_and(|stacks| stacks.get(record.stack).is_some()) {
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
            None => self.stacks?.get(number).map(|stack| stack.frames.as_slice()),
        }
    }
}
