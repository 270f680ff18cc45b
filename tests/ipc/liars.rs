//! Exporters whose answers are damaged, or mean it no good. The test stands between the two processes: its ticket leads the
//! importer to a socket of the test, which asks the true exporter and changes the answer.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::service::{address_of, connect, connect_to, socket};
use super::{ALL, AUTO_GROWTH, Process, Strategy, pair};
use support::MIB;

const INVALID_HANDLE: &str = "400";

/// Where fields lie in a ticket (`ipc/ticket.rs`) and in an answer (`ipc/answer.rs`).
const TICKET_BYTES: usize = 64;
const TICKET_PID: usize = 12;
const TICKET_START: usize = 16;
const TICKET_SIZE: usize = 32;
const TICKET_RANDOM: usize = 40;
const TICKET_SUM: usize = 56;
const ANSWER_BYTES: usize = 96;
const ANSWER_OFFSET: usize = 8;
const ANSWER_SIZE: usize = 16;

/// What a liar says instead of the truth.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// The ticket has this size.
    Size(u64),
    /// The block begins this many bytes further on.
    Further(u64),
    /// The block begins here.
    Offset(u64),
    /// All of the memory has this size, and the block begins there.
    Memory(u64, u64),
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// A copy of a ticket that leads to the service `random` of this process.
fn forged(ticket: &[u8], random: u64, lie: Lie) -> Vec<u8> {
    let mut forged = ticket.to_vec();
    forged[TICKET_PID..TICKET_PID + 4].copy_from_slice(&std::process::id().to_le_bytes());
    put(&mut forged, TICKET_RANDOM, random);
    if let Lie::Size(size) = lie {
        put(&mut forged, TICKET_SIZE, size);
    }
    // FNV-1a
    let sum = forged[..TICKET_SUM]
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |sum, &byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    put(&mut forged, TICKET_SUM, sum);
    forged
}

fn listen(name: &str) -> OwnedFd {
    let socket = socket();
    let (address, length) = address_of(name);
    // SAFETY: the address outlives the call and has the length that the call is told.
    unsafe {
        let bound = libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length);
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        assert_eq!(libc::listen(socket.as_raw_fd(), 1), 0);
    }
    socket
}

fn send(socket: &OwnedFd, bytes: &[u8]) {
    // SAFETY: the bytes are readable.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_NOSIGNAL,
        )
    };
    assert_eq!(sent, bytes.len() as isize, "{}", std::io::Error::last_os_error());
}

fn receive(socket: &OwnedFd, bytes: &mut [u8]) {
    // SAFETY: the bytes are writable.
    let received = unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(received, bytes.len() as isize, "{}", std::io::Error::last_os_error());
}

/// The importer opens a forged ticket, and gets an answer that is changed. Returns the code that it sees.
fn lied_to(owner: &Process, user: &mut Process, ticket: &[u8], lie: Lie) -> String {
    // A name is used once: a child that another test starts meanwhile has a copy of the socket until it runs its program.
    static NAMES: AtomicU64 = AtomicU64::new(1);
    let random = NAMES.fetch_add(1, Ordering::Relaxed);
    let forged = forged(ticket, random, lie);
    let start = word(ticket, TICKET_START);
    let name = format!("vramshim-ipc-{}-{start:x}-{random:016x}", std::process::id());
    let listener = listen(&name);
    let mut answer = [0; ANSWER_BYTES];
    let exporter = connect(owner);
    send(&exporter, ticket);
    receive(&exporter, &mut answer);
    let truth = word(&answer, ANSWER_OFFSET);
    match lie {
        Lie::Size(_) => {}
        Lie::Further(bytes) => put(&mut answer, ANSWER_OFFSET, truth.wrapping_add(bytes)),
        Lie::Offset(offset) => put(&mut answer, ANSWER_OFFSET, offset),
        Lie::Memory(size, offset) => {
            put(&mut answer, ANSWER_SIZE, size);
            put(&mut answer, ANSWER_OFFSET, offset);
        }
    }
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| {
            // SAFETY: null pointers mean that the peer's address is not asked for. The new descriptor belongs to nothing
            // else.
            let importer = unsafe {
                let fd = libc::accept4(
                    listener.as_raw_fd(),
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    libc::SOCK_CLOEXEC,
                );
                assert!(fd >= 0, "{}", std::io::Error::last_os_error());
                OwnedFd::from_raw_fd(fd)
            };
            let mut asked = [0; TICKET_BYTES];
            receive(&importer, &mut asked);
            assert_eq!(asked[..], forged[..]);
            send(&importer, &answer);
        });
        let line = user.tell(&format!("open x {}", hex_of(&forged)));
        // Unblocks the thread if the importer refused the ticket without asking.
        let again = connect_to(&name);
        send(&again, &forged);
        let _ = asker.join();
        line.split(' ').next().unwrap_or_default().to_owned()
    })
}

fn refused(strategy: Strategy, lies: &[Lie]) {
    let (mut owner, mut user) = pair(strategy);
    owner.well("alloc before 5000");
    owner.well(&format!("alloc shared {}", 3 * MIB));
    let ticket = bytes_of(&owner.well("get shared"));
    for &lie in lies {
        let context = format!("{strategy:?}, {lie:x?}");
        assert_eq!(lied_to(&owner, &mut user, &ticket, lie), INVALID_HANDLE, "{context}");
        assert_eq!(user.imported(), (0, 0, 0), "{context}");
    }
    // The truth is believed as before.
    user.well(&format!("open x {}", hex_of(&ticket)));
    user.well("close x");
    let said = user.end();
    assert_eq!(said.len(), lies.len(), "{said:?}");
    assert!(said.iter().all(|words| words.contains("makes no sense")), "{said:?}");
    owner.end();
}

/// A block that would not lie in its memory is refused, and nothing of it stays open.
#[test]
fn a_block_outside_of_its_memory_is_refused() {
    for strategy in ALL {
        let lies = [
            Lie::Offset(u64::MAX),
            Lie::Offset(u64::MAX - 3 * MIB + 1),
            Lie::Further(1 << 40),
            Lie::Size(0),
            Lie::Size(u64::MAX),
            Lie::Size(1 << 40),
        ];
        refused(strategy, &lies);
    }
    let lies = [Lie::Memory(2 * MIB, 0), Lie::Memory(u64::MAX, u64::MAX - 1)];
    refused(AUTO_GROWTH, &lies);
}
