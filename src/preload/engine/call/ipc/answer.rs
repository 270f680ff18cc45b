//! What an exporter answers to a ticket.

use super::ticket;

pub const BYTES: usize = 96;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A CUDA error.
    Refused(i32),
    /// The driver's own handle of the segment, and where the block begins in it.
    Segment { handle: [u8; ticket::BYTES], offset: u64 },
    /// So many granules of `size` bytes follow as file descriptors, asked for one message at a time by the number of the
    /// first; the block begins at `offset` in them.
    Granules { size: u64, count: u64, offset: u64 },
}

impl Answer {
    pub fn encode(&self) -> [u8; BYTES] {
        let (kind, result, words, handle) = match *self {
            Answer::Refused(result) => (0u32, result, [0; 3], None),
            Answer::Segment { handle, offset } => (1, 0, [offset, 0, 0], Some(handle)),
            Answer::Granules { size, count, offset } => (2, 0, [offset, size, count], None),
        };
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&result.to_le_bytes());
        for (index, word) in words.into_iter().enumerate() {
            bytes[8 + 8 * index..16 + 8 * index].copy_from_slice(&word.to_le_bytes());
        }
        if let Some(handle) = handle {
            bytes[32..].copy_from_slice(&handle);
        }
        bytes
    }

    /// `None` for what no exporter of this version says.
    pub fn decode(bytes: &[u8; BYTES]) -> Option<Answer> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let mut handle = [0; ticket::BYTES];
        handle.copy_from_slice(&bytes[32..]);
        let (kind, result) = (word(0) as u32, (word(0) >> 32) as i32);
        let (offset, size, count) = (word(8), word(16), word(24));
        Some(match kind {
            0 if result != 0 => Answer::Refused(result),
            1 => Answer::Segment { handle, offset },
            2 if size > 0 && count > 0 => Answer::Granules { size, count, offset },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_survive_the_journey() {
        let handle = std::array::from_fn(|index| 200 + index as u8 % 50);
        for answer in [
            Answer::Refused(801),
            Answer::Segment {
                handle,
                offset: 1 << 40,
            },
            Answer::Granules {
                size: 2 << 20,
                count: 600,
                offset: 512,
            },
        ] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
        assert_eq!(Answer::decode(&[0; BYTES]), None);
        assert_eq!(Answer::decode(&[9; BYTES]), None);
    }
}
