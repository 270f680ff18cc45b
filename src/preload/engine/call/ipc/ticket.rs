//! The ticket of a shared block: the 64 bytes of `CUipcMemHandle` that the job gets for it.
//!
//! The driver's own handle would name the whole segment. A ticket names one block of one process, and the socket to ask
//! for it. The importer asks the exporter, which knows whether the block still lives. The job sends the ticket to other
//! processes by its own means (a pipe, a file, a queue), so the exporter trusts nothing in it: it compares the ticket
//! with the one that it kept.

use crate::next::CUipcMemHandle;

pub const BYTES: usize = 64;
const MAGIC: [u8; 8] = *b"vramIPC\x1a";
pub const VERSION: u32 = 2;

/// One run of an exporter's service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServiceId {
    /// When the process began, in clock ticks after boot, because process ids are used again.
    pub start_ticks: u64,
    /// A random part of the socket's name, so that no other process can create the socket beforehand.
    pub random: u64,
}

impl ServiceId {
    /// The name of the socket on which the service of process `pid` listens. It is a name in the abstract namespace,
    /// which leaves no file behind.
    pub fn socket_name(&self, pid: u32) -> String {
        format!("vramshim-ipc-{pid}-{:x}-{:016x}", self.start_ticks, self.random)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub version: u32,
    /// The exporter's process id in its own pid namespace.
    pub pid: u32,
    pub service: ServiceId,
    pub address: u64,
    pub size: u64,
    /// A random number of this very block, because addresses are used again.
    pub nonce: u64,
}

impl Ticket {
    pub fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let (magic, both) = (
            u64::from_le_bytes(MAGIC),
            u64::from(self.pid) << 32 | u64::from(self.version),
        );
        let ServiceId { start_ticks, random } = self.service;
        put_words(
            &mut bytes,
            [magic, both, start_ticks, self.address, self.size, random, self.nonce],
        );
        let sum = checksum(&bytes[..56]);
        put_words(&mut bytes[56..], [sum]);
        bytes
    }

    /// The ticket in these bytes; `None` if they are a handle of the driver.
    pub fn decode(bytes: &[u8; BYTES]) -> Option<Ticket> {
        let word = |at| word_at(bytes, at);
        if bytes[..8] != MAGIC || word(56) != checksum(&bytes[..56]) {
            return None;
        }
        let both = word(8);
        Some(Ticket {
            version: both as u32,
            pid: (both >> 32) as u32,
            service: ServiceId {
                start_ticks: word(16),
                random: word(40),
            },
            address: word(24),
            size: word(32),
            nonce: word(48),
        })
    }
}

/// Writes numbers, of eight bytes each, from the begin of `bytes` on.
pub fn put_words(bytes: &mut [u8], words: impl IntoIterator<Item = u64>) {
    for (at, word) in bytes.chunks_exact_mut(8).zip(words) {
        at.copy_from_slice(&word.to_le_bytes());
    }
}

pub fn word_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

pub fn bytes_of(handle: &CUipcMemHandle) -> [u8; BYTES] {
    handle.reserved.map(|byte| byte as u8)
}

pub fn handle_of(bytes: &[u8; BYTES]) -> CUipcMemHandle {
    CUipcMemHandle {
        reserved: bytes.map(|byte| byte as std::ffi::c_char),
    }
}

/// FNV-1a. It tells a ticket from other bytes; it is no protection against forgery.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A random number; `None` if the kernel has none to give.
pub fn random() -> Option<u64> {
    let mut bytes = [0u8; 8];
    // The raw call, because glibc has its function from version 2.25 on only.
    // SAFETY: the buffer is a variable of this frame and has the size that the call is told.
    let length = unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
    (usize::try_from(length) == Ok(bytes.len())).then(|| u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKET: Ticket = Ticket {
        version: VERSION,
        pid: 4711,
        service: ServiceId {
            start_ticks: 0x0102_0304_0506_0708,
            random: u64::MAX,
        },
        address: 0x7000_0000_1000,
        size: 12345,
        nonce: 1,
    };

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
