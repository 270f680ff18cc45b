//! The answer of an exporter's service to a ticket, as the bytes of one message.

use super::channel::MAX_DESCRIPTORS;
use super::ticket::{self, put_words, word_at};
use base::cuda::DriverError;

pub const BYTES: usize = 96;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The exporter cannot share the block.
    Refused(DriverError),
    /// The driver's own handle of the segment, and where the block begins in it.
    Segment { handle: [u8; ticket::BYTES], offset: u64 },
    /// `count` handles of `size` bytes together follow as file descriptors. The importer asks for each message by the
    /// number of its first handle. The block begins at `offset` in the memory.
    Handles { size: u64, count: u64, offset: u64 },
}

/// One message with handles: the driver's result, and the bytes of each handle, whose descriptor comes with the
/// message.
pub struct Handed {
    pub result: i32,
    pub sizes: Vec<u64>,
}

impl Handed {
    pub const BYTES: usize = 8 * (1 + MAX_DESCRIPTORS);

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put_words(
            &mut bytes,
            [self.result as u64].into_iter().chain(self.sizes.iter().copied()),
        );
        bytes
    }

    /// Of a message with so many descriptors.
    pub fn decode(bytes: &[u8; Self::BYTES], descriptors: usize) -> Handed {
        let sizes = bytes[8..].chunks_exact(8).take(descriptors);
        Handed {
            result: word_at(bytes, 0) as i32,
            sizes: sizes.map(|size| word_at(size, 0)).collect(),
        }
    }
}

impl Answer {
    pub fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let words = match *self {
            Answer::Refused(DriverError(code)) => [(code as u64) << 32, 0, 0, 0],
            Answer::Segment { handle, offset } => {
                bytes[32..].copy_from_slice(&handle);
                [1, offset, 0, 0]
            }
            Answer::Handles { size, count, offset } => [2, offset, size, count],
        };
        put_words(&mut bytes, words);
        bytes
    }

    /// `None` for bytes that no exporter of this version sends.
    pub fn decode(bytes: &[u8; BYTES]) -> Option<Answer> {
        let word = |at| word_at(bytes, at);
        let mut handle = [0; ticket::BYTES];
        handle.copy_from_slice(&bytes[32..]);
        let (kind, code) = (word(0) as u32, (word(0) >> 32) as i32);
        let (offset, size, count) = (word(8), word(16), word(24));
        Some(match kind {
            0 if code != 0 => Answer::Refused(DriverError(code)),
            1 => Answer::Segment { handle, offset },
            2 if size > 0 && count > 0 => Answer::Handles { size, count, offset },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a peer sends is read or refused. VRAMSHIM_TEST_FUZZ sets how many inputs all fuzz targets get; a tenth
    /// comes here.
    #[test]
    fn messages_of_any_bytes_are_read_or_refused() {
        let wanted = std::env::var("VRAMSHIM_TEST_FUZZ").map_or(500_000, |text| text.parse().expect("a number"));
        let (mut state, mut understood) = (1u64, 0);
        let mut random = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as usize
        };
        let good = Answer::Handles {
            size: 2 << 20,
            count: 600,
            offset: 512,
        };
        let ticket = ticket::Ticket {
            version: ticket::VERSION,
            pid: 1,
            service: ticket::ServiceId {
                start_ticks: 2,
                random: 3,
            },
            address: 4,
            size: 5,
            nonce: 6,
        };
        for _ in 0..wanted / 10 {
            let (mut answer, mut sent, mut handed) = (good.encode(), ticket.encode(), [0; Handed::BYTES]);
            for _ in 0..=random() % 4 {
                let value = [0, 1, 2, 0x7f, 0xff, random() as u8][random() % 6];
                answer[random() % BYTES] = value;
                sent[random() % ticket::BYTES] = value;
                handed[random() % Handed::BYTES] = value;
            }
            if let Some(read) = Answer::decode(&answer) {
                understood += 1;
                assert_eq!(Answer::decode(&read.encode()), Some(read));
            }
            if let Some(read) = ticket::Ticket::decode(&sent) {
                assert_eq!(read.encode(), sent);
                assert!(!read.service.socket_name(read.pid).is_empty());
            }
            let descriptors = random() % (2 * MAX_DESCRIPTORS);
            assert!(Handed::decode(&handed, descriptors).sizes.len() <= descriptors.min(MAX_DESCRIPTORS));
        }
        assert!(understood > 0);
    }
}
