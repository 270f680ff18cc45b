//! How memory of another process is mapped here: its owner is asked, and its memory is mapped as the descriptors arrive.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::answer::{self, Answer, Handed};
use super::channel::{self, Channel};
use super::refusal::{MAPPED, Refusal};
use super::ticket::Ticket;
use crate::engine::state::location::Location;
use crate::engine::state::peers::DeviceSet;
use crate::next::{self, POSIX_FILE_DESCRIPTOR};
use base::cuda::{CudaResult, DriverError, check};

/// Undoes `mapped` bytes of mappings and the reservation of `size` bytes that they lie in.
pub fn unmap(base: u64, mapped: u64, size: u64) -> CudaResult {
    // SAFETY: the range consists of whole mappings of ours, and lies in a reservation of ours.
    unsafe {
        if mapped > 0 {
            check(next::cuMemUnmap(base, mapped as usize))?;
        }
        // If this fails, nothing is lost but address space.
        next::cuMemAddressFree(base, size as usize);
    }
    Ok(())
}

/// The exporter sent something that this library never sends.
pub fn malformed(what: &str) -> Refusal {
    Refusal::new(
        DriverError::INVALID_HANDLE,
        format!("the exporter's answer makes no sense: {what}"),
    )
}

fn unreachable(problem: io::Error) -> Refusal {
    let why = match problem.kind() {
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => {
            "the exporter is gone, or lives in another network namespace (containers must share it); it must live until \
             every importer has opened the handle"
                .to_owned()
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "the exporter does not answer".to_owned(),
        _ => format!("the exporter cannot be asked: {problem}"),
    };
    Refusal::new(DriverError::MAP_FAILED, why)
}

/// After this long without an answer the exporter counts as gone. It may be stopped in a debugger.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Sends the ticket to the process that made it.
pub fn ask(ticket: &Ticket) -> Result<(Channel, Answer), Refusal> {
    let channel = channel::connect(&ticket.service.socket_name(ticket.pid), LONGEST_WAIT).map_err(unreachable)?;
    if !channel.peer_is_ours() {
        let why = "the exporter belongs to another user, who may not share memory with this one";
        return Err(Refusal::new(DriverError::MAP_FAILED, why));
    }
    let mut bytes = [0; answer::BYTES];
    channel
        .send(&ticket.encode(), &[])
        .and_then(|()| channel.receive(&mut bytes))
        .map_err(unreachable)?;
    let answer = Answer::decode(&bytes).ok_or_else(|| malformed("no answer of this version"))?;
    Ok((channel, answer))
}

/// What `cuMemSetAccess` answers if there is no peer access between the device and that of the memory, and what
/// `cuIpcOpenMemHandle` answers then (TensorRT-LLM#1498).
const INVALID_DEVICE: i32 = 101;
const PEER_ACCESS_UNSUPPORTED: DriverError = DriverError(217);

/// Takes over handles of `total` bytes and maps them side by side, accessible from the current device and its peers: all
/// of them or none.
pub fn map_handles(channel: &Channel, total: u64, location: Location, peers: DeviceSet) -> Result<u64, Refusal> {
    let mut base = 0;
    // SAFETY: the pointer is to a variable of this frame.
    check(unsafe { next::cuMemAddressReserve(&mut base, total as usize, 0, 0, 0) })
        .map_err(|error| Refusal::by_driver(error, "no address space for it"))?;
    let mut mapped = 0;
    let outcome = map_each(channel, base, total, &mut mapped).and_then(|()| {
        let own = || std::iter::once(i32::from(location.device));
        let outcome = match next::set_access(base, total, own().chain(peers.devices())) {
            // A peer of this device need not be one of the device that the memory is on.
            Err(_) if !peers.is_empty() => next::set_access(base, total, own()),
            outcome => outcome,
        };
        outcome.map_err(|DriverError(code)| {
            let why = format!("this device may not use it (CUDA error {code}): is there peer access between the two?");
            Refusal::new(
                if code == INVALID_DEVICE {
                    PEER_ACCESS_UNSUPPORTED
                } else {
                    DriverError(code)
                },
                why,
            )
        })
    });
    match outcome {
        Ok(()) => Ok(base),
        Err(refusal) => {
            // The refusal is the error that the job gets.
            let _ = unmap(base, mapped, total);
            Err(refusal)
        }
    }
}

fn map_each(channel: &Channel, base: u64, total: u64, mapped: &mut u64) -> Result<(), Refusal> {
    let mut done: u64 = 0;
    while *mapped < total {
        let mut message = [0; Handed::BYTES];
        let descriptors = channel
            .send(&done.to_le_bytes(), &[])
            .and_then(|()| channel.receive(&mut message))
            .map_err(unreachable)?;
        let handed = Handed::decode(&message, descriptors.len());
        check(handed.result).map_err(|error| Refusal::with_way_out(error, "the exporter cannot share it", MAPPED))?;
        let sum = handed.sizes.iter().try_fold(0u64, |sum, &size| sum.checked_add(size));
        if descriptors.is_empty() || handed.sizes.contains(&0) || sum.is_none_or(|sum| sum > total - *mapped) {
            return Err(malformed("not the memory that it announced"));
        }
        done += descriptors.len() as u64;
        for (descriptor, size) in descriptors.into_iter().zip(handed.sizes) {
            map_one(base + *mapped, size, descriptor.as_raw_fd()).map_err(|error| {
                Refusal::with_way_out(error, "the driver cannot map memory of another process", MAPPED)
            })?;
            *mapped += size;
        }
    }
    Ok(())
}

/// Maps one handle. The mapping keeps the memory alive, so neither descriptor nor handle is needed afterwards.
fn map_one(address: u64, size: u64, descriptor: i32) -> CudaResult {
    let mut handle = 0;
    let os_handle = descriptor as usize as *mut std::ffi::c_void;
    // SAFETY: the descriptor is open, and is passed as a number, as this kind of handle must be. The handle is mapped
    // into a reservation of ours and released once.
    unsafe {
        check(next::cuMemImportFromShareableHandle(
            &mut handle,
            os_handle,
            POSIX_FILE_DESCRIPTOR,
        ))?;
        let result = check(next::cuMemMap(address, size as usize, 0, handle, 0));
        next::cuMemRelease(handle);
        result
    }
}
