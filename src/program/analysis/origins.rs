//! Where requests come from: the stacks of the journal, and those of PyTorch's own record. Both have numbers in one range
//! here.

use std::sync::Arc;

use journal::format::Frame;
use journal::reader::Stacks;

/// The number of PyTorch's first stack. A journal has fewer stacks.
pub const FIRST_OF_TORCH: u32 = 1 << 31;

#[derive(Clone, Default)]
pub struct Origins {
    stacks: Option<Arc<Stacks>>,
    /// By number, from 0.
    torch: Arc<Vec<Vec<Frame>>>,
}

impl Origins {
    pub fn new(stacks: Option<Stacks>, torch: Vec<Vec<Frame>>) -> Self {
        Origins {
            stacks: stacks.map(Arc::new),
            torch: Arc::new(torch),
        }
    }

    pub fn stacks(&self) -> Option<&Stacks> {
        self.stacks.as_deref()
    }

    /// The frames of the stack with this number, innermost first.
    pub fn frames(&self, number: u32) -> Option<&[Frame]> {
        match number.checked_sub(FIRST_OF_TORCH) {
            Some(of_torch) => self.torch.get(of_torch as usize).map(Vec::as_slice),
            None => self.stacks()?.get(number).map(|stack| stack.frames.as_slice()),
        }
    }

    /// The numbers of all stacks, with their frames.
    pub fn all(&self) -> impl Iterator<Item = (u32, &[Frame])> {
        let of_journal = self.stacks().into_iter().flat_map(Stacks::all);
        of_journal
            .map(|(number, stack)| (number, stack.frames.as_slice()))
            .chain((FIRST_OF_TORCH..).zip(self.torch.iter().map(Vec::as_slice)))
    }
}
