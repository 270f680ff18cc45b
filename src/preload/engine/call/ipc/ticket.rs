//! What stands in the 64 bytes of `CUipcMemHandle` for a block of a policy.
//!
//! The driver's own handle would name the whole segment. A ticket names one block of one process, and where to ask for
//! it; whoever opens it asks the exporter, which still knows whether the block lives. Another process gets it by the
//! job's own means (a pipe, a file, a queue), so nothing in it is trusted but compared with what the exporter kept.

use crate::next::CUipcMemHandle;

pub const BYTES: usize = 64;
const MAGIC: [u8; 8] = *b"vramIPC\x1a";
pub const VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub version: u32,
    /// The exporter, as it sees itself: process ids of another namespace are other numbers.
    pub pid: u32,
    /// When it began, in clock ticks after boot: process ids are used again.
    pub start: u64,
    pub address: u64,
    pub size: u64,
    /// Random: the exporter's socket has it in its name, so that nobody can wait there beforehand.
    pub service: u64,
    /// Random: the block.
    pub nonce: u64,
}

impl Ticket {
    pub fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.pid.to_le_bytes());
        let words = [self.start, self.address, self.size, self.service, self.nonce];
        for (index, word) in words.into_iter().enumerate() {
            bytes[16 + 8 * index..24 + 8 * index].copy_from_slice(&word.to_le_bytes());
        }
        let sum = checksum(&bytes[..56]);
        bytes[56..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The ticket in these bytes; `None` where they are something else, a handle of the driver.
    pub fn decode(bytes: &[u8; BYTES]) -> Option<Ticket> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        if bytes[..8] != MAGIC || word(56) != checksum(&bytes[..56]) {
            return None;
        }
        let both = word(8);
        Some(Ticket {
            version: both as u32,
            pid: (both >> 32) as u32,
            start: word(16),
            address: word(24),
            size: word(32),
            service: word(40),
            nonce: word(48),
        })
    }

    /// Where the exporter listens: a name in the abstract namespace, which leaves nothing behind.
    pub fn socket_name(&self) -> String {
        format!("vramshim-ipc-{}-{:x}-{:016x}", self.pid, self.start, self.service)
    }
}

pub fn bytes_of(handle: &CUipcMemHandle) -> [u8; BYTES] {
    handle.reserved.map(|byte| byte as u8)
}

pub fn handle_of(bytes: &[u8; BYTES]) -> CUipcMemHandle {
    CUipcMemHandle {
        reserved: bytes.map(|byte| byte as std::ffi::c_char),
    }
}

/// FNV-1a. It tells a ticket from chance, not from malice.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// `None` where the kernel has no random numbers to give.
pub fn random() -> Option<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer is this frame's own, of the size told.
    let length = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    (length == bytes.len() as isize).then(|| u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKET: Ticket = Ticket {
        version: VERSION,
        pid: 4711,
        start: 0x0102_0304_0506_0708,
        address: 0x7000_0000_1000,
        size: 12345,
        service: u64::MAX,
        nonce: 1,
    };

    #[test]
    fn a_ticket_survives_the_journey() {
        assert_eq!(Ticket::decode(&TICKET.encode()), Some(TICKET));
        assert_eq!(
            Ticket::decode(&bytes_of(&handle_of(&TICKET.encode()))),
            Some(TICKET),
            "bytes above 127"
        );
    }

    #[test]
    fn nothing_else_is_a_ticket() {
        assert_eq!(Ticket::decode(&[0; BYTES]), None);
        for index in 0..BYTES {
            let mut bytes = TICKET.encode();
            bytes[index] ^= 0x10;
            assert_eq!(Ticket::decode(&bytes), None, "byte {index}");
        }
    }
}
