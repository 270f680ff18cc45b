//! How to get from a frame to its caller, from the unwind tables that compilers write for exceptions (`.eh_frame`).
//!
//! Source: "Linux Standard Base Core Specification", Exception Frames; "System V ABI, AMD64 supplement", 3.6 and 3.7.

use crate::next::elf::Object;

/// The way from a frame to its caller, in words of 8 bytes. `words` is the distance from a register to the end of the
/// frame, behind the return address. `saved` is the distance from there back to the caller's frame pointer; 0 if the
/// frame pointer was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is no caller.
    Last,
    /// By the frame pointer, because the tables say nothing that is understood.
    FramePointer,
    FromStack {
        words: u32,
        saved: u32,
    },
    FromFrame {
        words: u32,
        saved: u32,
    },
}

const WORDS_BITS: u32 = 18;
const SAVED_BITS: u32 = 10;
/// The bits of a packed step.
pub const BITS: u32 = 2 + WORDS_BITS + SAVED_BITS;

impl Step {
    pub fn pack(self) -> u64 {
        let (kind, words, saved) = match self {
            Step::Last => (0, 0, 0),
            Step::FramePointer => (1, 0, 0),
            Step::FromStack { words, saved } => (2, words, saved),
            Step::FromFrame { words, saved } => (3, words, saved),
        };
        kind | u64::from(words) << 2 | u64::from(saved) << (2 + WORDS_BITS)
    }

    pub fn unpack(packed: u64) -> Step {
        let words = (packed >> 2) as u32 & ((1 << WORDS_BITS) - 1);
        let saved = (packed >> (2 + WORDS_BITS)) as u32 & ((1 << SAVED_BITS) - 1);
        match packed & 3 {
            0 => Step::Last,
            1 => Step::FramePointer,
            2 => Step::FromStack { words, saved },
            _ => Step::FromFrame { words, saved },
        }
    }
}

/// The step from the frame of the code at `address`, which lies in `object`.
#[cfg(target_arch = "x86_64")]
pub fn step_at(object: &Object, address: usize) -> Step {
    tables::step_at(object, address).unwrap_or(Step::FramePointer)
}

/// Code for this architecture keeps frame pointers.
#[cfg(not(target_arch = "x86_64"))]
pub fn step_at(_: &Object, _: usize) -> Step {
    Step::FramePointer
}

#[cfg(target_arch = "x86_64")]
mod tables {
    use gimli::{
        BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, Register, RegisterRule, UnwindContext,
        UnwindContextStorage, UnwindSection, UnwindTableRow, X86_64,
    };

    use super::{SAVED_BITS, Step, WORDS_BITS};
    use crate::next::elf::Object;

    /// Places for rules: the registers that a function keeps, and states that it remembers. Code of compilers needs
    /// fewer; if there are too few, the step is made by the frame pointer.
    struct Storage;

    impl UnwindContextStorage<usize> for Storage {
        type Rules = [(Register, RegisterRule<usize>); 20];
        type Stack = [UnwindTableRow<usize, Self>; 4];
    }

    /// A distance in bytes as words, if it fits into so many bits.
    fn words(bytes: i64, bits: u32) -> Option<u32> {
        let words = u32::try_from(bytes / 8).ok().filter(|words| words >> bits == 0)?;
        (bytes % 8 == 0).then_some(words)
    }

    pub fn step_at(object: &Object, address: usize) -> Option<Step> {
        let header = object.unwind_table()?;
        let slice = |bytes| EndianSlice::new(bytes, LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame_hdr(header.as_ptr() as u64);
        let parsed = EhFrameHdr::from(slice(header)).parse(&bases, 8).ok()?;
        let gimli::Pointer::Direct(start) = parsed.eh_frame_ptr() else {
            return None;
        };
        let entries = EhFrame::from(slice(object.bytes_from(start as usize)?));
        let bases = bases.set_eh_frame(start);
        let mut context = UnwindContext::<usize, Storage>::new_in();
        let address = address as u64;
        let table = parsed.table()?;
        let row = table
            .unwind_info_for_address(&entries, &bases, &mut context, address, EhFrame::cie_from_offset)
            .ok()?;
        match row.register(X86_64::RA) {
            RegisterRule::Offset(-8) => {}
            RegisterRule::Undefined => return Some(Step::Last),
            _ => return None,
        }
        let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else {
            return None;
        };
        let saved = match row.register(X86_64::RBP) {
            RegisterRule::Undefined | RegisterRule::SameValue => 0,
            RegisterRule::Offset(offset) => words(offset.checked_neg()?, SAVED_BITS)?,
            _ => return None,
        };
        let words = words(offset, WORDS_BITS)?;
        match register {
            X86_64::RSP => Some(Step::FromStack { words, saved }),
            X86_64::RBP => Some(Step::FromFrame { words, saved }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_step_is_the_same_step() {
        let (words, saved) = ((1 << WORDS_BITS) - 1, (1 << SAVED_BITS) - 1);
        let steps = [
            Step::Last,
            Step::FramePointer,
            Step::FromStack { words, saved: 2 },
            Step::FromFrame { words: 2, saved },
        ];
        for step in steps {
            assert_eq!(Step::unpack(step.pack()), step);
            assert_eq!(step.pack() >> BITS, 0);
        }
    }
}
