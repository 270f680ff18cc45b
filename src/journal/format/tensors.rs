//! The file of PyTorch's tensors, which lies beside a journal and has its name with another ending.
//!
//! `src/python/vramshim/record.py` writes the file, `reader/tensors.rs` reads it. It is text: one line for each
//! event, with fields between tabs. The first field names the kind of the line. Inside a field, tab, line feed and
//! backslash are written `\t`, `\n` and `\\`. docs/journal-format.md describes the fields.

use super::frames::Frame;

/// The ending of the file's name.
pub const TENSORS_EXTENSION: &str = "tensors";
/// The first field of the first line.
pub const TENSORS_MAGIC: &str = "vramshim-pytorch";
pub const TENSORS_VERSION: u64 = 1;

/// One line of the file. Times are microseconds since 1970, sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorLine {
    /// `C`: a setting of PyTorch's allocator.
    Setting { name: String, value: String },
    /// `T`: the stack `number`, innermost frame first. Stacks are numbered from 0 in the order of the file.
    Stack { number: u64, frames: Vec<Frame> },
    /// The other lines: something happened on a device.
    Event {
        time_us: u64,
        device: i16,
        event: TensorEvent,
    },
    /// `D`: all events until this time are above, except the lost ones.
    Drained { time_us: u64, recorded: u64, lost: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorEvent {
    /// `A`: a tensor was allocated, by the code of this stack.
    Allocated {
        address: u64,
        /// Bytes that were asked for.
        size: u64,
        /// PyTorch's handle of the stream; 0 is the default stream.
        stream: u64,
        stack: u64,
        /// Bytes of the block that the tensor got; `None` if they are not known.
        allocated: Option<u64>,
        /// PyTorch's pool (`MempoolId_t`), `(0, 0)` for the default one; `None` if it is not known.
        pool: Option<(u64, u64)>,
    },
    /// `F`: the tensor at this address was freed.
    Freed { address: u64 },
    /// `S`: PyTorch obtained a segment.
    SegmentObtained {
        address: u64,
        size: u64,
        /// As for a tensor.
        pool: Option<(u64, u64)>,
    },
    /// `U`: PyTorch gave a segment back.
    SegmentReturned { address: u64, size: u64 },
    /// `O`: PyTorch had no memory for `size` bytes.
    OutOfMemory { size: u64, stack: u64 },
    /// `B`: PyTorch's own sums of a device. `None` is "not known".
    Balance {
        /// Bytes that live tensors asked for, that they have, and that are not free for other tensors.
        requested: Option<u64>,
        allocated: Option<u64>,
        active: Option<u64>,
        /// Bytes of all segments.
        reserved: Option<u64>,
    },
}
