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

/// Changes a ticket and the answer to it.
type Lie = fn(&mut [u8], &mut [u8]);

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

fn put_both(answer: &mut [u8], size: u64, offset: u64) {
    put(answer, ANSWER_SIZE, size);
    put(answer, ANSWER_OFFSET, offset);
}

/// Makes the ticket lead to the service `random` of this process.
fn redirect(ticket: &mut [u8], random: u64) {
    ticket[TICKET_PID..TICKET_PID + 4].copy_from_slice(&std::process::id().to_le_bytes());
    put(ticket, TICKET_RANDOM, random);
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3); // FNV-1a
    let sum = ticket[..TICKET_SUM].iter().fold(0xcbf2_9ce4_8422_2325u64, mix);
    put(ticket, TICKET_SUM, sum);
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
    let start = word(ticket, TICKET_START);
    let name = format!("vramshim-ipc-{}-{start:x}-{random:016x}", std::process::id());
    let listener = listen(&name);
    let mut answer = [0; ANSWER_BYTES];
    let exporter = connect(owner);
    send(&exporter, ticket);
    receive(&exporter, &mut answer);
    let mut forged = ticket.to_vec();
    lie(&mut forged, &mut answer);
    redirect(&mut forged, random);
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| {
            // SAFETY: null pointers mean that the peer's address is not asked for. The new descriptor belongs to nothing
            // else.
            let importer = unsafe {
                let (no_address, no_length) = (std::ptr::null_mut(), std::ptr::null_mut());
                let fd = libc::accept4(listener.as_raw_fd(), no_address, no_length, libc::SOCK_CLOEXEC);
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
    for (number, &lie) in lies.iter().enumerate() {
        let context = format!("{strategy:?}, lie {number}");
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
    let lies: [Lie; 6] = [
        |_, answer| put(answer, ANSWER_OFFSET, u64::MAX),
        |_, answer| put(answer, ANSWER_OFFSET, u64::MAX - 3 * MIB + 1),
        |_, answer| put(answer, ANSWER_OFFSET, word(answer, ANSWER_OFFSET).wrapping_add(1 << 40)),
        |ticket, _| put(ticket, TICKET_SIZE, 0),
        |ticket, _| put(ticket, TICKET_SIZE, u64::MAX),
        |ticket, _| put(ticket, TICKET_SIZE, 1 << 40),
    ];
    ALL.into_iter().for_each(|strategy| refused(strategy, &lies));
    // All of the memory has another size, and the block begins there.
    let lies: [Lie; 2] = [
        |_, answer| put_both(answer, 2 * MIB, 0),
        |_, answer| put_both(answer, u64::MAX, u64::MAX - 1),
    ];
    refused(AUTO_GROWTH, &lies);
}
