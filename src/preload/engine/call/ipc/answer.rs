//! The answer of an exporter's service to a ticket, as the bytes of one message.

use super::ticket;
use base::cuda::DriverError;

pub const BYTES: usize = 96;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The exporter cannot share the block.
    Refused(DriverError),
    /// The driver's own handle of the segment, and where the block begins in it.
    Segment { handle: [u8; ticket::BYTES], offset: u64 },
    /// `count` granules of `size` bytes follow as file descriptors. The importer asks for each message by the number of its
    /// first granule. The block begins at `offset` in the granules.
    Granules { size: u64, count: u64, offset: u64 },
}

impl Answer {
    pub fn encode(&self) -> [u8; BYTES] {
        let (kind, code, words, handle) = match *self {
            Answer::Refused(DriverError(code)) => (0u32, code, [0; 3], None),
            Answer::Segment { handle, offset } => (1, 0, [offset, 0, 0], Some(handle)),
            Answer::Granules { size, count, offset } => (2, 0, [offset, size, count], None),
        };
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&code.to_le_bytes());
        for (index, word) in words.into_iter().enumerate() {
            bytes[8 + 8 * index..16 + 8 * index].copy_from_slice(&word.to_le_bytes());
        }
        if let Some(handle) = handle {
            bytes[32..].copy_from_slice(&handle);
        }
        bytes
    }

    /// `None` for bytes that no exporter of this version sends.
    pub fn decode(bytes: &[u8; BYTES]) -> Option<Answer> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let mut handle = [0; ticket::BYTES];
        handle.copy_from_slice(&bytes[32..]);
        let (kind, code) = (word(0) as u32, (word(0) >> 32) as i32);
        let (offset, size, count) = (word(8), word(16), word(24));
        Some(match kind {
            0 if code != 0 => Answer::Refused(DriverError(code)),
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
            Answer::Refused(DriverError::NOT_SUPPORTED),
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
